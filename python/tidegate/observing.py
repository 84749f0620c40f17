# SPDX-License-Identifier: Apache-2.0
"""What the program's own hand-overs of memory do, measured and written down: one line of JSON for
each hand-over and each step, appended to $TIDEGATE_OUT/rank{R}_pid{P}.jsonl. The keys are in
doc/schema/observe-1.json.

Nothing here raises into the program or changes what it does. Lines go out whole, with one write
each, so that a reader sees whole lines while the program runs. A folder that cannot be written is
said once; the measuring goes on."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Dict, NamedTuple, Optional, Sequence, Tuple, TypeVar

from . import counters, figures, identity, seams
from .counters import Measure
from .locks import ForkSafeLock

SCHEMA = "tidegate.observe/1"
CHANGED = 0.1  # a hand-over that gives this share more or less than the last is said again

_Result = TypeVar("_Result")


class Handover(NamedTuple):
    """One hand-over by the program's own means. Bytes that came back are positive."""

    kind: str
    tags: Tuple[str, ...]
    seconds: float
    torch_bytes: int  # by how much torch's reserved memory fell
    driver_bytes: int  # by how much the driver's free memory grew
    freed_bytes: int  # by how much live memory fell meanwhile: what Python's gc freed
    exact_bytes: Optional[int]  # what an exact hand-over would have given; None: not known


class _Lines:
    """The file of this process. TIDEGATE_OUT is read once."""

    def __init__(self) -> None:
        self.pid = 0
        self.folder: Optional[str] = None
        self.file = -1
        self.place: Optional[Tuple[int, int]] = None  # device and inode of the file
        self.who = ""  # what lines say of this process

    def begin(self) -> bool:
        """Whether lines go anywhere. Opens the file: at first, and anew in a forked child."""
        if self.pid != os.getpid():
            self._open()
        return self.file >= 0

    def write(self, line: str) -> None:
        if self.begin():
            if not self._is_ours():
                self.file = -1
                self._open()
            try:
                os.write(self.file, line.encode("utf-8", "backslashreplace") + b"\n")
            except OSError as problem:
                self._warn(problem)

    def _open(self) -> None:
        if self.folder is None:
            self.folder = os.environ.get("TIDEGATE_OUT", "")
        if self.file >= 0 and self._is_ours():
            os.close(self.file)  # the parent's: lines of two processes stay apart
        self.file, self.pid = -1, os.getpid()
        rank = identity.rank()
        self.who = f'"rank": {"null" if rank is None else rank}, "pid": {self.pid}'
        if not self.folder:
            return
        path = os.path.join(self.folder, f"rank{rank or 0}_pid{self.pid}.jsonl")
        try:
            os.makedirs(self.folder, exist_ok=True)
            self.file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.place = _place(self.file)
        except OSError as problem:
            self._warn(problem)

    def _is_ours(self) -> bool:
        """Whether the descriptor is still the file: a program that becomes a daemon closes all, and
        what it opens then has the numbers of what it closed."""
        try:
            return _place(self.file) == self.place
        except OSError:
            return False

    def _warn(self, problem: OSError) -> None:
        seams.warn_once("TIDEGATE_OUT", f"TIDEGATE_OUT={self.folder} cannot be written: "
                                        f"{problem.strerror}; nothing is recorded there")


def _place(file: int) -> Tuple[int, int]:
    found = os.fstat(file)
    return found.st_dev, found.st_ino


_lines = _Lines()
_lock = ForkSafeLock()  # a finalizer that hands memory over may come in the middle of a line
_said: Dict[str, int] = {}  # what the last hand-over of a kind that was announced gave


def is_recording() -> bool:
    """Whether lines go anywhere."""
    return _lines.begin()


def write_line(line: str) -> None:
    """Appends a line that is JSON already."""
    with _lock:
        _lines.write(line)


def head(event: str) -> str:
    """How each line begins: an object that is still open."""
    return (f'{{"schema": "{SCHEMA}", "event": "{event}", "time": {time.time():.3f}, '
            f'{_lines.who}')


# ---- hand-overs


def measure() -> Optional[Measure]:
    """The figures of this moment; None without torch, before CUDA starts, or where it refuses."""
    try:
        found = counters.find()
        return None if found is None else found.measure()
    except Exception as problem:  # torch's errors are not the program's
        seams.warn_once("measure", f"torch's counters cannot be read: {problem}")
        return None


def estimate() -> Optional[int]:
    """What an exact hand-over would give back now, without giving it: the bytes of torch's cache
    that the driver can have. Without history a snapshot costs about a millisecond; while somebody
    records history none is taken, since theirs may take minutes."""
    try:
        found = counters.find()
        if found is None or found.is_history_on():
            return None
        return counters.returnable_bytes(found.segments(found.snapshot()))
    except Exception as problem:
        seams.warn_once("estimate", f"torch's segments cannot be read: {problem}")
        return None


def observe(kind: str, tags: Sequence[str], call: Callable[[], _Result]) -> _Result:
    """Runs the program's own hand-over, and records it. What it raises is raised."""
    before, exact = measure(), estimate()
    began = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    record_handover(kind, tags, before, measure(), seconds, exact)
    return result


def record_handover(kind: str, tags: Sequence[str], before: Optional[Measure],
                    after: Optional[Measure], seconds: float, estimate: Optional[int],
                    is_said: bool = True) -> Optional[Handover]:
    """Writes down one hand-over that has been measured; None where there was nothing to measure.
    The first of a kind is announced, and those that give otherwise than the last; is_said False:
    somebody else says it."""
    if before is None or after is None:
        return None
    try:
        one = Handover(kind, tuple(tags), seconds, before.reserved - after.reserved,
                       after.driver_free - before.driver_free, before.allocated - after.allocated,
                       estimate)
        if is_recording():
            write_line(_handover_line(one, after))
        if is_said and _is_new(one):
            seams.announce(said(one))
        return one
    except Exception as problem:
        seams.warn_once("record_handover", f"a hand-over could not be recorded: {problem}")
        return None


def said(one: Handover) -> str:
    """The line on stderr."""
    purpose = f" for {' '.join(one.tags)}" if one.tags else ""
    text = (f"{one.kind}{purpose}: torch gave back {figures.gib(one.torch_bytes)}, "
            f"the driver got {figures.gib(one.driver_bytes)} GiB in "
            f"{figures.seconds(one.seconds)}")
    if one.exact_bytes is not None:
        text += f"; an exact hand-over gives {figures.gib(one.exact_bytes)} in one pass"
    return text


def _is_new(one: Handover) -> bool:
    with _lock:
        last = _said.get(one.kind)
        if last is not None and abs(one.torch_bytes - last) <= CHANGED * max(abs(last), 1 << 30):
            return False
        _said[one.kind] = one.torch_bytes
        return True


def _handover_line(one: Handover, after: Measure) -> str:
    rest: Dict[str, Any] = {
        "handover": one.kind, "tags": list(one.tags), "seconds": round(one.seconds, 6),
        "torch_bytes": one.torch_bytes, "driver_bytes": one.driver_bytes,
        "freed_bytes": one.freed_bytes, "exact_bytes": one.exact_bytes,
        "driver_used_bytes": after.driver_used, "reserved_bytes": after.reserved,
        "allocated_bytes": after.allocated,
    }
    return f"{head('handover')}, {json.dumps(rest)[1:]}"
