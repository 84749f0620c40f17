# SPDX-License-Identifier: Apache-2.0
"""Seams: places where another program's code calls ours instead of its own.

A function is replaced by identity everywhere a module of this process has bound it, so that names
taken by `from … import` are found too; an attribute of a class or object is replaced there alone.
Whatever was replaced can be put back at once, and is when the mode becomes off. A replacement that
somebody kept elsewhere must ask the mode itself and pass the call on: `modes.passing` makes it so.

What is said goes to stderr, one line at a time, each with the name of the process before it."""

from __future__ import annotations

import os
import sys

from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from . import identity
from .locks import ForkSafeLock

_ABSENT = object()
# One object stands for all that are equal: that two names have it says nothing of either.
_SHARED = (type(None), bool, int, float, str, bytes, tuple)
_lock = ForkSafeLock()


class Seam:
    """One replaced function or attribute. places: (owner, name, what the owner itself held)."""

    def __init__(self, name: str, original: Any, replacement: Any) -> None:
        self.name = name
        self.original = original
        self.replacement = replacement
        self.places: List[Tuple[Any, str, Any]] = []


_seams: Dict[str, Seam] = {}
_said: Set[str] = set()


def _printable(text: str) -> str:
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def announce(text: str, below: Iterable[str] = ()) -> None:
    """Prints "[trainer rank 0] text" as one line on stderr, whatever is in the text: names of the
    program, and what others raise, which may be several lines. below: a line each, indented, in the
    same write. Never raises."""
    try:
        lines = [f"[{identity.speaker()}] {_printable(' '.join(text.split()))}"]
        lines += [f"  {_printable(line)}" for line in below]
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
    except Exception:  # closed, none, or the program's own that fails: nobody listens
        pass


def tell_run(program: str) -> None:
    """Tells `tidegate run`, if it started us, that seams of this program ("verl") are active here:
    one line in the run's file, which is never made here. Never raises."""
    folder = os.environ.get("TIDEGATE_RUN")
    if not folder:
        return
    try:
        fd = os.open(os.path.join(folder, "seams"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except (OSError, ValueError):  # the run is over, or on another machine
        return
    try:
        os.write(fd, f"{os.getpid()} {program}\n".encode("utf-8", "replace"))
    except OSError:
        pass
    finally:
        os.close(fd)


def warn_once(key: str, text: str) -> None:
    """Announces text the first time that key is named in this process."""
    with _lock:
        if key in _said:
            return
        _said.add(key)
    announce(f"tidegate: {text}")


def _bindings(value: Any) -> List[Tuple[Any, str]]:
    """(module, name) of every module-level name that is bound to this very object; empty for a
    value such as None, to which anybody's may be."""
    found: List[Tuple[Any, str]] = []
    if isinstance(value, _SHARED):
        return found
    for module in list(sys.modules.values()):
        namespace = getattr(module, "__dict__", None)
        if isinstance(namespace, dict):
            found += [(module, name) for name, bound in list(namespace.items()) if bound is value]
    return found


def install_function(name: str, original: Any, replacement: Any) -> Seam:
    """Binds replacement wherever a module has bound original. The same name twice: the second is
    bound where the first one's original still is, and both count as one seam."""
    with _lock:
        seam = _seams.setdefault(name, Seam(name, original, replacement))
        for module, bound in _bindings(original):
            if getattr(module, "__name__", "").split(".")[0] == __package__:
                continue  # what we keep of the original is what we call
            setattr(module, bound, seam.replacement)
            seam.places.append((module, bound, original))
        return seam


def install_attribute(name: str, owner: Any, attribute: str, replacement: Any) -> Seam:
    """Replaces one attribute of a class or object, by its own name there or inherited."""
    with _lock:
        original = getattr(owner, attribute)
        seam = _seams.setdefault(name, Seam(name, original, replacement))
        seam.places.append((owner, attribute, vars(owner).get(attribute, _ABSENT)))
        setattr(owner, attribute, replacement)
        return seam


def restore(name: str) -> None:
    """Puts one seam's originals back, also where the replacement was bound after we installed it.
    What somebody else has put there since stays."""
    with _lock:
        seam = _seams.pop(name, None)
        if seam is None:
            return
        for owner, attribute, held in reversed(seam.places):
            if vars(owner).get(attribute, _ABSENT) is not seam.replacement:
                continue
            if held is _ABSENT:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, held)
        for module, bound in _bindings(seam.replacement):
            setattr(module, bound, seam.original)


def restore_all() -> None:
    """Puts everything back."""
    with _lock:
        for name in list(_seams):
            restore(name)


def active() -> List[str]:
    """Names of the seams that are installed now."""
    with _lock:
        return list(_seams)


def find(name: str) -> Optional[Seam]:
    """The seam of this name, if it is installed."""
    return _seams.get(name)
