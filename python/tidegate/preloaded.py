# SPDX-License-Identifier: Apache-2.0
"""The preload, where it stands before the CUDA runtime of this process: it reads TIDEGATE by itself
at the start, and follows when the mode is changed."""

from __future__ import annotations

from . import errors, library, modes, seams

_OBJECT = "/libtidegate-preload.so"


def is_there() -> bool:
    """Whether it is mapped into this process."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            return any(line.rstrip().endswith(_OBJECT) for line in maps)
    except OSError:
        return False


def follow() -> None:
    """In other modes than on no tag has a say in what is allocated; what is there stays. Where it
    was not on at the start there is nothing that could follow."""
    if not is_there():
        return
    try:
        library.call("tg_process_serve", int(modes.mode() == modes.ON))
    except errors.LibraryMissing as problem:
        seams.warn_once("preload", f"it does not learn of the mode {modes.mode()}: {problem}")


modes.when_changed(follow)
