# SPDX-License-Identifier: Apache-2.0
"""Which lines of the program allocate what grows: snapshots of several steps, read by the library's
reader of PyTorch snapshots and judged as `tidegate leak` judges files. And which hold most now."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import abi, counters, library

SITES_MAX = 5
FRAMES_MAX = 24
_PROTOCOL = 4

Frame = Tuple[str, str, int]  # file, function, line


class Site(NamedTuple):
    """A line that grows. The stack is innermost first; own is the frame of the user's code."""

    bytes_per_step: int
    blocks_per_step: float
    first_step: int
    where: str
    stack: Tuple[Frame, ...]
    own: Optional[Frame]

    @property
    def place(self) -> str:
        """file:line, the file without its folder."""
        if self.own is None:
            return self.where
        return f"{os.path.basename(self.own[0])}:{self.own[2]}"

    def to_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return {"bytes_per_step": self.bytes_per_step, "blocks_per_step": self.blocks_per_step,
                "first_step": self.first_step, "where": self.where,
                "stack": _stack_list(self.stack)}


class HeldSite(NamedTuple):
    """A line that holds memory, and how much. The stack is innermost first."""

    size_bytes: int
    block_count: int
    where: str
    stack: Tuple[Frame, ...]

    def to_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "stack": _stack_list(self.stack)}


class Sample:
    """What is kept of the allocator at the end of one step: small, and the library's to close."""

    def __init__(self, step: int, snapshot: Dict[str, Any],
                 segments: Sequence[Dict[str, Any]]) -> None:
        self.step = step
        self.blocks: Set[Tuple[int, int]] = set(live_blocks(segments))
        self._digest: Optional[ctypes.c_void_p] = _digest(
            dict(snapshot, segments=list(segments)))

    @property
    def digest(self) -> ctypes.c_void_p:
        assert self._digest is not None
        return self._digest

    def close(self) -> None:
        digest, self._digest = self._digest, None
        if digest is not None:
            library.call("tg_digest_close", digest)


def live_blocks(segments: Sequence[Dict[str, Any]]) -> Iterator[Tuple[int, int]]:
    """(address, size) of each block that the program holds."""
    for _, address, size in _live(segments):
        yield address, size


def find(samples: Sequence[Sample], least_bytes: int) -> List[Site]:
    """The lines that grow over these steps, the largest first."""
    with _judged(samples, least_bytes) as leaks:
        return [_growing(row) for row in _rows(leaks, abi.LIST_LEAKS)]


def held(segments: Sequence[Dict[str, Any]]) -> List[HeldSite]:
    """The lines whose blocks are live now, those with most first: what has grown since nothing was
    there. None of what was allocated without history."""
    samples: List[Sample] = []
    try:
        for step, found in enumerate(((), segments)):
            samples.append(Sample(step, {"device_traces": []}, found))
        with _judged(samples, 1) as leaks:
            return [HeldSite(row.bytes, row.blocks, _text(row.where), _row_stack(row))
                    for row in _rows(leaks, abi.LIST_UNKNOWN)]
    finally:
        for sample in samples:
            sample.close()


def blocks_of(site: Optional[Site], segments: Sequence[Dict[str, Any]],
              before: Set[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """The live blocks of a site that were not there before: all of its stack, else of its line;
    without a site, all that are new."""
    fresh = [(frames, (address, size)) for frames, address, size in _live(segments)
             if (address, size) not in before]
    if site is None:
        return [block for _, block in fresh]
    stacks = {id(frames): _stack(frames) for frames, _ in fresh}  # torch shares equal stacks
    exact = [block for frames, block in fresh if stacks[id(frames)] == site.stack]
    return exact or [block for frames, block in fresh if site.own in stacks[id(frames)]]


def _live(segments: Sequence[Dict[str, Any]]) -> Iterator[Tuple[Any, int, int]]:
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == counters.LIVE:
                yield block.get("frames", ()), block.get("address", at), block["size"]
            at += block["size"]


def _stack(frames: Sequence[Dict[str, Any]]) -> Tuple[Frame, ...]:
    return tuple((frame["filename"], frame["name"], frame["line"]) for frame in frames)


@contextlib.contextmanager
def _parsed(snapshot: Dict[str, Any]) -> Iterator[ctypes.c_void_p]:
    data = pickle.dumps(snapshot, protocol=_PROTOCOL)
    handle = ctypes.c_void_p()
    library.call("tg_snapshot_parse", data, len(data), ctypes.byref(handle))
    try:
        yield handle
    finally:
        library.call("tg_snapshot_close", handle)


def _digest(snapshot: Dict[str, Any]) -> ctypes.c_void_p:
    digest = ctypes.c_void_p()
    with _parsed(snapshot) as parsed:
        library.call("tg_digest_make", parsed, None, ctypes.byref(digest))
    return digest


@contextlib.contextmanager
def _judged(samples: Sequence[Sample], least_bytes: int) -> Iterator[ctypes.c_void_p]:
    inputs = (abi.tg_leak_input * len(samples))()
    for one, sample in zip(inputs, samples):
        one.digest = sample.digest
        one.rank = one.pid = -1
        one.first_step = one.last_step = sample.step
    params = abi.tg_leak_params(min_bytes_per_step=least_bytes)
    leaks = ctypes.c_void_p()
    library.call("tg_leaks_find", inputs, len(samples), ctypes.byref(params), ctypes.byref(leaks))
    try:
        yield leaks
    finally:
        library.call("tg_leaks_close", leaks)


def _rows(leaks: ctypes.c_void_p, which: int) -> Iterator[abi.tg_leak_site]:
    """The first of a list, but for what lay there before history began."""
    for index in range(SITES_MAX):
        row = library.call("tg_leaks_site", leaks, which, index)
        if not row:
            return
        if row.contents.stack_count > 0:
            yield row.contents


def _row_stack(row: abi.tg_leak_site) -> Tuple[Frame, ...]:
    return tuple(_frame(row.stack[i]) for i in range(row.stack_count))


def _growing(row: abi.tg_leak_site) -> Site:
    stack = _row_stack(row)
    own = stack[row.own_frame] if row.own_frame < len(stack) else None
    return Site(round(row.bytes_per_step), row.blocks_per_step, row.first_step, _text(row.where),
                stack, own)


def _stack_list(stack: Tuple[Frame, ...]) -> List[Dict[str, Any]]:
    return [{"file": file, "function": function, "line": line}
            for file, function, line in stack[:FRAMES_MAX]]


def _frame(frame: abi.tg_leak_frame) -> Frame:
    return _text(frame.file), _text(frame.function), frame.line


def _text(raw: Optional[bytes]) -> str:
    return (raw or b"").decode("utf-8", "replace")
