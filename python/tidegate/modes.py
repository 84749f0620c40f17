# SPDX-License-Identifier: Apache-2.0
"""What Tidegate may do by itself in this process: nothing (off, the default although installed),
look (observe), or act (on). It governs seams, never a call that the user wrote.

TIDEGATE=off|observe|on is read once, when first asked."""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, List, Optional

from . import seams
from .errors import BadValue
from .locks import ForkSafeLock

OFF = "off"
OBSERVE = "observe"
ON = "on"
ALL = (OFF, OBSERVE, ON)

_lock = ForkSafeLock()
_mode: Optional[str] = None
_told: List[Callable[[], None]] = []  # who wants to know of a change


def _read() -> str:
    said = os.environ.get("TIDEGATE", OFF).strip().lower() or OFF
    if said in ALL:
        return said
    seams.warn_once("TIDEGATE", f"TIDEGATE={said!r} is no mode: off, observe or on; "
                                "taken as off")
    return OFF


def mode() -> str:
    """"off", "observe" or "on"."""
    global _mode
    if _mode is None:
        with _lock:
            if _mode is None:
                _mode = _read()
    return _mode


def set_mode(value: str) -> None:
    """Changes the mode of this process. off puts back whatever seams have replaced."""
    global _mode
    if value not in ALL:
        raise BadValue(0, f"{value!r} is no mode: \"off\", \"observe\" or \"on\"")
    with _lock:
        _mode = value
    if value == OFF:
        seams.restore_all()
    for tell in _told:
        tell()


def when_changed(tell: Callable[[], None]) -> None:
    """tell is called after each set_mode."""
    _told.append(tell)


def off() -> None:
    """set_mode("off")."""
    set_mode(OFF)


def passing(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A replacement for a seam, with the original's name, signature and documentation: calls `ours`
    while the mode is not off, and `original` otherwise. A coroutine function stays one."""
    def chosen() -> Callable[..., Any]:
        return original if mode() == OFF else ours

    if inspect.iscoroutinefunction(original):
        @functools.wraps(original)
        async def waiting_seam(*arguments: Any, **named: Any) -> Any:
            return await chosen()(*arguments, **named)

        return waiting_seam

    @functools.wraps(original)
    def seam(*arguments: Any, **named: Any) -> Any:
        return chosen()(*arguments, **named)

    return seam
