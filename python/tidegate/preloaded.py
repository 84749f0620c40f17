# SPDX-License-Identifier: Apache-2.0
"""The preload, where it stands before the CUDA runtime of this process: it reads TIDEGATE by itself
at the start, and follows when the mode is changed. What it allocates lies in the process's own
memories, which are this package's too: one tenant on each GPU, whoever comes first."""

from __future__ import annotations

import os
from ctypes import byref, c_void_p
from typing import Dict, List, Optional

from . import abi, errors, library, modes, seams

_OBJECT = "/libtidegate-preload.so"

_is_there: Optional[bool] = None  # it comes with the process, and stays
_usual: Dict[int, c_void_p] = {}  # the default tag on each GPU where it was asked about


def is_there() -> bool:
    """Whether it is mapped into this process."""
    global _is_there
    if _is_there is None:
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                _is_there = any(line.rstrip().endswith(_OBJECT) for line in maps)
        except OSError:
            _is_there = False
    return _is_there


def default_tag() -> Optional[str]:
    """The tag of what the program allocates by itself; None: it has none."""
    said = os.environ.get("TIDEGATE_DEFAULT_TAG", "")
    if not said or os.environ.get("TIDEGATE", "").strip().lower() != modes.ON or not is_there():
        return None
    return said


def keeps_host() -> bool:
    """Whether the default tag keeps its host copies when it wakes."""
    return os.environ.get("TIDEGATE_DEFAULT_KEEP_HOST", "") == "1"


def gpus() -> List[int]:
    """On which GPUs the process has memory of its own, the program's or this package's."""
    if not is_there():
        return []
    bits: int = library.functions()["tg_process_gpus"]()
    return [number for number in range(abi.LEDGER_DEVICES) if bits >> number & 1]


def open_usual(index: int) -> Optional[c_void_p]:
    """The default tag on a GPU, also before the program allocates. None: there is none, which the
    preload says where it matters."""
    name, handle = default_tag(), c_void_p()
    if name is None:
        return None
    if index not in _usual:
        try:
            library.call("tg_process_tag", index, name.encode(), byref(handle))
        except errors.TidegateError:
            return None
        _usual[index] = handle
    return _usual[index]


def usual_info(index: int) -> Optional[abi.tg_tag_info]:
    """What the default tag on a GPU has now; None: nothing."""
    if default_tag() is None or index not in gpus():
        return None
    handle = open_usual(index)
    if handle is None:
        return None
    info = abi.tg_tag_info()
    library.call("tg_tag_info", handle, byref(info))
    return info


def acts() -> bool:
    """Whether it gives memory from tags now."""
    return modes.mode() == modes.ON and is_there()


def path() -> Optional[str]:
    """The object beside the library; None: it does not lie there."""
    try:
        found = os.path.dirname(os.path.realpath(library.path())) + _OBJECT
    except errors.LibraryMissing:
        return None
    return found if os.access(found, os.R_OK) else None


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
os.register_at_fork(after_in_child=_usual.clear)
