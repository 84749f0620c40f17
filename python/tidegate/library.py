# SPDX-License-Identifier: Apache-2.0
"""libtidegate.so in this process: found once, opened once, its failures raised as exceptions.

It is searched for at $TIDEGATE_LIBRARY and nowhere else if that is set; else where the wheel puts
it, beside this package; else where the system's loader finds it. Importing opens nothing. A library
that is missing, damaged or of another version is one clear exception at every call that needs it,
and `is_usable` is what those ask who would rather step aside."""

from __future__ import annotations

import ctypes
import os
import pathlib
import stat
import struct
import sysconfig
from typing import Any, Dict, Iterator, List, Optional

from . import abi, errors
from .locks import ForkSafeLock

SONAME = "libtidegate.so.0"
VERSION = "0.1.0"  # of the headers that abi.py was written from

_lock = ForkSafeLock()
_functions: Optional[Dict[str, Any]] = None
_path: Optional[str] = None
_failure: Optional[errors.LibraryMissing] = None


def _candidates() -> Iterator[str]:
    said = os.environ.get("TIDEGATE_LIBRARY")
    if said:
        yield said
        return
    beside = pathlib.Path(__file__).resolve().parent
    # Where pure Python and machine code are installed apart, the library is with the latter.
    for folder in (beside.parent, pathlib.Path(sysconfig.get_path("platlib"))):
        for path in sorted((folder / ".tidegate.mesonpy.libs").glob("libtidegate.so*")):
            yield str(path)
    yield SONAME


def _declare(loaded: Any, loaded_quick: Any) -> Dict[str, Any]:
    functions = {}
    for name, (result, arguments) in abi.FUNCTIONS.items():
        function = getattr(loaded_quick if name in abi.QUICK else loaded, name)
        function.restype = result
        function.argtypes = arguments
        functions[name] = function
    return functions


def _check_whole(path: str) -> None:
    """The loader does not look at a file's size: what is cut off ends the process by SIGBUS, now or
    at the first call. So the file must reach as far as its own headers say."""
    if not os.path.isabs(path) and not os.path.exists(path):
        return  # the loader's to find
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(f"{path} is no file")  # to open a pipe would wait for its writer
    with open(path, "rb") as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
        if len(head) < 64 or head[:5] != b"\x7fELF\x02":
            raise OSError(f"{path} is no library of 64 bits")
        table, sections = struct.unpack_from("<QQ", head, 32)
        entry, count, section_entry, section_count = struct.unpack_from("<HHHH", head, 54)
        rows = b""
        if table < size:
            file.seek(table)
            rows = file.read(entry * count)
    ends = [sections + section_entry * section_count, table + entry * count]
    if len(rows) == entry * count and entry >= 56:
        for at in range(0, len(rows), entry):
            offset, = struct.unpack_from("<Q", rows, at + 8)
            length, = struct.unpack_from("<Q", rows, at + 32)
            ends.append(offset + length)
    if max(ends) > size:
        raise OSError(f"{path} is cut off: it has {size} bytes of {max(ends)}")


def _open(path: str) -> Dict[str, Any]:
    """Errors: OSError as the loader says it, AttributeError for what lacks a function."""
    _check_whole(path)
    functions = _declare(ctypes.CDLL(path), ctypes.PyDLL(path))
    version = functions["tg_version"]().decode("ascii", "replace")
    if version != VERSION:
        raise OSError(f"{path} is version {version}, this package {VERSION}")
    return functions


def _find() -> Dict[str, Any]:
    global _path
    complaints: List[str] = []
    for path in _candidates():
        try:
            found = _open(path)
            _path = path
            return found
        except (OSError, AttributeError) as problem:
            complaints.append(str(problem))
    raise errors.LibraryMissing(0, f"libtidegate.so cannot be used: {'; '.join(complaints)}. "
                                "Install the wheel again, or set TIDEGATE_LIBRARY to the file")


def functions() -> Dict[str, Any]:
    """The library's functions by name. Raises LibraryMissing, each time the same."""
    global _functions, _failure
    if _functions is not None:
        return _functions
    with _lock:
        if _functions is None and _failure is None:
            try:
                _functions = _find()
            except errors.LibraryMissing as problem:
                _failure = problem
        if _functions is None:
            assert _failure is not None
            raise errors.LibraryMissing(0, _failure.text)
        return _functions


def path() -> str:
    """The file that was opened, for whoever opens it by itself. Raises LibraryMissing."""
    functions()
    assert _path is not None
    return _path


def is_usable() -> bool:
    """Whether calls into the library can succeed."""
    try:
        functions()
    except errors.LibraryMissing:
        return False
    return True


def call(name: str, *arguments: Any) -> Any:
    """Calls a function of the library. A negative status is raised as the exception for it, with
    the sentence that the library wrote; else the result is returned."""
    function = functions()[name]
    result = function(*arguments)
    if function.restype is ctypes.c_int and result < 0:
        raise last_error(result)
    return result


def last_error(status: int) -> errors.TidegateError:
    """The exception for a status that this thread has just been answered."""
    table = functions()
    last = table["tg_last_error"]().contents
    if last.status == status:
        return errors.from_status(status, text(last.text), last.native)
    return errors.from_status(status, text(table["tg_error_text"](status)))


def text(field: bytes) -> str:
    """A terminated text of the library's, harmless to print."""
    return "".join(sign if sign.isprintable() else "?" for sign in field.decode("utf-8", "replace"))
