# SPDX-License-Identifier: Apache-2.0
"""Sizes and times as people read them: the same words as the command's."""

from __future__ import annotations

from typing import Tuple

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(size_bytes: float) -> str:
    """"46.3 GiB", "512 MiB", "-1.5 GiB": three digits that matter, one decimal below ten."""
    value, unit = float(abs(size_bytes)), 0
    while value >= 1023.5 and unit + 1 < len(_UNITS):
        value /= 1024
        unit += 1
    sign = "-" if size_bytes < 0 else ""
    digits = 0 if unit == 0 or (unit < 3 and value >= 9.95) else 1
    return f"{sign}{value:.{digits}f} {_UNITS[unit]}"


def shared_unit(largest_bytes: float) -> Tuple[str, int]:
    """The unit of a sentence in which one figure alone names it: GiB, below one of them MiB."""
    return ("GiB", 1 << 30) if largest_bytes >= 1 << 30 else ("MiB", 1 << 20)


def gib(size_bytes: float) -> str:
    """"7.0": GiB alone, where a sentence names the unit once."""
    return f"{size_bytes / (1 << 30):.1f}"


def seconds(duration: float) -> str:
    """"48 ms", "0.2 ms", "3.1 s"."""
    if duration >= 1:
        return f"{duration:.1f} s"
    milliseconds = duration * 1e3
    return f"{milliseconds:.0f} ms" if milliseconds >= 9.5 else f"{milliseconds:.2g} ms"
