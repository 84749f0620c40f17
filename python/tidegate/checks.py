# SPDX-License-Identifier: Apache-2.0
"""Arguments that callers get wrong, refused with the name of the argument and what it takes."""

from __future__ import annotations

from typing import Optional

from .errors import BadValue


def check_bytes(name: str, value: int, meaning: str) -> None:
    """meaning: what the figure is, for the sentence."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise BadValue(0, f"{name}={value!r}: a whole number, 0 or more: {meaning}")


def text_bytes(name: str, value: str, meaning: str) -> bytes:
    """A text for the library, which would take it as ended by a NUL inside it. meaning: what the
    text is, for the sentence."""
    if isinstance(value, str) and "\0" not in value:
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    raise BadValue(0, f"{name}={value!r}: {meaning}")


def check_seconds(name: str, value: Optional[float]) -> None:
    """None: no limit."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 4e6:
        raise BadValue(0, f"{name}={value!r}: seconds, 0 or more, or None for no limit")
