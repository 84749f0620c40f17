# SPDX-License-Identifier: Apache-2.0
"""reclaim: memory back from torch's caches until the target is met, and a receipt.

Which source runs, and when to stop, the library decides (tidegate/reclaim.h); here sources are run,
and what came of it is measured: by the driver's free memory, not by torch's counters, since only
the driver's is what another program can have.

One reclaim of a process runs at a time: others wait for it. One that is called while it runs in the
same thread, as by a finalizer in the middle of a collection, gives nothing and says so."""

from __future__ import annotations

import ctypes
import os
import time
from ctypes import byref, c_uint32
from typing import Dict, Optional, Tuple

from . import abi, accounts, card, checks, figures, library, torch_sources
from .locks import ForkSafeLock
from .receipts import NOT_ALLOWED, NOTHING_LEFT, Item, Receipt, SourceUse

# One segment of torch's large pool: what is smaller is not worth a collection of garbage.
MIN_GAIN_BYTES = 20 << 20

_lock = ForkSafeLock()
_records: Dict[Tuple[int, bool], "Record"] = {}


class Record:
    """The sources of one card (or of the host), and how they have done in this process so far: what
    the library judges them by."""

    def __init__(self, where: card.Card, is_host: bool) -> None:
        self.card = where
        self.sources = torch_sources.for_host() if is_host else torch_sources.for_card()
        self.table = (abi.tg_source * len(self.sources))()
        for row, source in zip(self.table, self.sources):
            row.name = source.name.encode()
            row.cost_ns = source.cost_ns
        self._is_host = is_host

    def look(self) -> torch_sources.Look:
        """For the host, free is what the kernel says could be had without swapping."""
        if not self._is_host:
            return torch_sources.look(self.card)
        with open("/proc/meminfo", encoding="ascii") as file:
            rows = dict(line.split(":", 1) for line in file)
        free, total = (int(rows[name].split()[0]) << 10 for name in ("MemAvailable", "MemTotal"))
        return torch_sources.Look(torch_sources.figures(self.card), free, total)

    def set_bounds(self, now: torch_sources.Figures) -> None:
        for row, source in zip(self.table, self.sources):
            row.bound_bytes = source.bound(now)


class Pass:
    """One reclaim over a record."""

    def __init__(self, record: Record, count: int, target: Optional[int], min_gain: int,
                 deadline_ns: int) -> None:
        self.record = record
        self.count = count
        self.functions = library.functions()
        self.state = abi.tg_reclaim(
            target_bytes=abi.EVERYTHING if target is None else target, min_gain_bytes=min_gain,
            deadline_ns=deadline_ns)
        self.before = self.now = record.look()

    def go(self) -> int:
        """Runs sources until the library says stop, and returns why: a number of abi.STOPS."""
        table, state, chosen = self.record.table, self.state, c_uint32()
        self.functions["tg_reclaim_begin"](byref(state), table, self.count)
        while True:
            self.record.set_bounds(self.now.torch)
            state.now_ns = time.monotonic_ns()
            stop: int = self.functions["tg_reclaim_next"](byref(state), table, self.count,
                                                          byref(chosen))
            if stop != abi.GO_ON:
                return stop
            self._run(self.record.sources[chosen.value], table[chosen.value])

    def _run(self, source: torch_sources.Source, row: abi.tg_source) -> None:
        begun_ns, before = time.monotonic_ns(), self.now
        source.run(self.record.card)
        after = self.now = self.record.look()
        run = abi.tg_source_run(
            free_before_bytes=before.free, free_after_bytes=after.free,
            freed_bytes=max(0, before.torch.live - after.torch.live),
            bound_after_bytes=source.bound(after.torch), spent_ns=time.monotonic_ns() - begun_ns)
        self.functions["tg_reclaim_book"](byref(self.state), byref(row), byref(run))


def _uses(record: Record, count: int) -> Tuple[SourceUse, ...]:
    uses = []
    for index, source in enumerate(record.sources):
        row = record.table[index]
        if index < count and row.runs_now > 0:
            uses.append(SourceUse(source.name, row.runs_now, row.gained_now_bytes,
                                  row.spent_now_ns / 1e9))
            continue
        why = f"gave {figures.size(row.last_gain_bytes)} last time" if row.runs > 0 else ""
        uses.append(SourceUse(source.name, 0, 0, 0.0, why if index < count else NOT_ALLOWED))
    return tuple(uses)


def _nothing(target: Optional[int], began: float) -> Receipt:
    return Receipt(NOTHING_LEFT, target, seconds=time.monotonic() - began)


def _reclaim_now(where: card.Card, target: Optional[int], min_gain: int, deadline_ns: int,
                 no_graphs: bool, host: bool, began: float) -> Receipt:
    key = (where.index, host)
    record = _records.get(key)
    if record is None or record.card is not where:
        record = _records[key] = Record(where, host)
    count = len(record.sources) - (0 if host or no_graphs else 1)
    attempt = Pass(record, count, target, min_gain, deadline_ns)
    stop = attempt.go()
    stays: Tuple[Item, ...] = ()
    if not host:
        accounts.publish(where, look=attempt.now)
        stays = accounts.stays(where, attempt.now, is_fresh=attempt.state.runs > 0)
    return Receipt(
        abi.STOPS[stop], target, attempt.state.gained_bytes,
        attempt.now.free - attempt.before.free, attempt.state.runs, time.monotonic() - began,
        _uses(record, count), stays)


def run(where: card.Card, target: Optional[int] = None, *, timeout: Optional[float] = None,
        min_gain: int = MIN_GAIN_BYTES, no_graphs: bool = False, host: bool = False) -> Receipt:
    """reclaim on a card that the caller has: what seams call. Raises LibraryMissing, and what torch
    raises when the device has failed."""
    began = time.monotonic()
    if _lock.is_mine() or torch_sources.is_capturing(where):
        return _nothing(target, began)
    deadline_ns = 0 if timeout is None else time.monotonic_ns() + max(1, int(timeout * 1e9))
    try:
        if not _lock.acquire(timeout=-1 if timeout is None else timeout):
            return Receipt(abi.STOPS[abi.DEADLINE], target, seconds=time.monotonic() - began)
        return _reclaim_now(where, target, min_gain, deadline_ns, no_graphs, host, began)
    finally:
        try:
            _lock.release()
        except RuntimeError:  # it was not taken: Ctrl-C may come before and behind that
            pass


def reclaim(target: Optional[int] = None, *, timeout: Optional[float] = None,
            min_gain: int = MIN_GAIN_BYTES, no_graphs: bool = False, host: bool = False) -> Receipt:
    """Gives memory back from torch's caches until the driver's free memory has grown by `target`
    bytes (None: by all that can be had), and says what came of it.

    On the calling thread's current device, in the calling thread. timeout: seconds after which no
    further source runs. min_gain: less is not worth a run. no_graphs: the caller promises that no
    CUDA graph was captured in this process, so cuBLAS's workspaces may go as well. host: host
    memory instead, torch's pinned cache. Before CUDA has started nothing is held or done.

    Raises BadValue, TorchMissing, NoDevice (no NVIDIA card can be used here), LibraryMissing."""
    if target is not None:
        checks.check_bytes("target", target, "bytes to give back, or None for everything")
    checks.check_bytes("min_gain", min_gain, "bytes that are worth a run")
    checks.check_seconds("timeout", timeout)
    library.functions()
    where = card.require()
    if where is None:
        return _nothing(target, time.monotonic())
    return run(where, target, timeout=timeout, min_gain=min_gain, no_graphs=no_graphs, host=host)


os.register_at_fork(after_in_child=_records.clear)
