# SPDX-License-Identifier: Apache-2.0
"""The live watch: does memory grow from step to step, which line allocates it, and who keeps it?

`step()` marks the end of a step. Without growth it costs two calls, torch's counters and the
driver's, and some integers. When growth shows, torch is asked to keep the stacks of live blocks, if
nobody else records history and TIDEGATE_HISTORY=never does not forbid it; three steps later the
lines that grow are known, the container that keeps their blocks is looked for once, and both are
said in one line. Then the history is off again. doc/design/watch.md has the reasons."""

from __future__ import annotations

import importlib
import json
import operator
import os
import threading
import time
from typing import Any, Callable, Dict, List, Optional

from . import (accounts, card, counters, errors, figures, growing_sites, holders, library, looking,
               modes, observing, oom_account, reclaiming, seams, tenancy, torch_sources)
from .counters import Counters
from .growth import Growth, Series

LEAST_BYTES = 1 << 20  # a step: smaller growth is not followed
LEAST_OUTSIDE_BYTES = 2 << 20  # the driver's own grain
OUTSIDE_POINTS = 6  # other processes come and go: more must agree
SAMPLES = 3  # after the first, which is taken before history begins
SLOW_SECONDS = 1.0  # a snapshot that takes longer is the last: somebody records much
SEARCHES_MAX = 4  # in the life of a process
AGAIN = 1.5  # growth beyond this multiple of what was said is news
ALL_DRIVER_SECONDS = 4e-6  # the driver is asked at every step where it is quicker than this
DRIVER_TRIALS = 8
DRIVER_PERIOD = 4
LEDGER_SECONDS = 1.0

SOURCES = ("optimizer", "verl", "program")  # the last that speaks up is the one that counts


def step(number: Optional[int] = None, *, source: str = "program") -> None:
    """Marks the end of a step: call it once each step, at the same place. `number` is the program's
    own count, 0 or more; without it steps are counted. Does nothing without torch or before CUDA
    starts, and never raises."""
    if not _busy.acquire(blocking=False):
        return  # another thread's mark, or one from inside a mark
    try:
        if type(number) is not int or number >> 63 != 0:
            number = _whole(number)
        _watch.mark(number, source if source in SOURCES else SOURCES[-1])
    except Exception as problem:  # watching is never worth the program's life
        _watch.fail(problem)
    finally:
        _busy.release()


def _whole(number: Any) -> Optional[int]:
    """A step's number of another type, or None where it is none: that is said once."""
    if number is None:
        return None
    try:
        whole = operator.index(number)
        if whole >> 63 == 0:
            return whole
    except Exception:  # its class decides
        pass
    seams.warn_once("step number", "step() takes a whole number from 0 to 2**63 - 1, and was given "
                    f"another {looking.class_name(type(number))}: the step is counted instead")
    return None


def follow(optimizer: Any = None) -> Any:
    """Marks a step at the end of each `optimizer.step()`; of any optimizer's where none is named.
    Returns torch's handle, whose `remove()` ends it."""
    def hook(*_arguments: Any) -> None:
        step(source="optimizer")

    if optimizer is not None:
        return optimizer.register_step_post_hook(hook)
    torch_optimizers = importlib.import_module("torch.optim.optimizer")
    return torch_optimizers.register_optimizer_step_post_hook(hook)


class _Search:
    """The time between growth seen and growth explained: samples of a few steps."""

    def __init__(self, found: Counters, step_number: int, growth: Growth) -> None:
        self.counters = found
        self.growth = growth
        self.from_step = growth.since_step
        self.samples: List[growing_sites.Sample] = []
        self.last: Dict[str, Any] = {}
        self.seconds = 0.0
        self.is_ours = False
        self.is_taken = False  # somebody has begun a history of their own since
        self.is_forbidden = os.environ.get("TIDEGATE_HISTORY", "").strip().lower() == "never"
        is_others = found.is_history_on()
        self.take(step_number)
        if not is_others and not self.is_forbidden:
            self.begin_history()

    def begin_history(self) -> None:
        try:
            self.counters.begin_history()
            self.is_ours = True
        except Exception:  # a torch, or an allocator, that has none: no line, then
            pass

    def take(self, step_number: int) -> None:
        began = time.perf_counter()
        self.last = self.counters.snapshot()
        self.samples.append(growing_sites.Sample(step_number, self.last,
                                                 self.counters.segments(self.last)))
        self.is_taken = any(len(trace) > 1 for trace in self.last.get("device_traces", ()))
        self.seconds = time.perf_counter() - began

    @property
    def is_complete(self) -> bool:
        return len(self.samples) > SAMPLES or self.seconds > SLOW_SECONDS

    def sites(self) -> List[growing_sites.Site]:
        """The lines that grow, where stacks were to be had."""
        if len(self.samples) < 3 or not counters.has_history(self.last):
            return []
        return growing_sites.find(self.samples, LEAST_BYTES)

    def holder(self, site: Optional[growing_sites.Site]) -> Optional[holders.Holder]:
        """Who keeps the newest blocks; None where there are none."""
        segments = self.counters.segments(self.last)
        blocks = growing_sites.blocks_of(site, segments, self.samples[0].blocks)
        del segments
        self.last = {}  # its thousands of dicts would be walked through, too
        if not blocks:
            return None
        with self.counters.without_overrides():
            return holders.find_holder(blocks, self.counters.tensor_types(),
                                       self.counters.address_of,
                                       files=() if site is None else
                                       [file for file, _, _ in site.stack])

    def close(self) -> None:
        """Ends our history, unless it is another's by now."""
        for sample in self.samples:
            sample.close()
        if self.is_ours:
            self.is_ours = False
            if not self.is_taken:
                self.counters.end_history()


class Watch:
    """What one process knows of its steps. Used by one thread at a time."""

    def __init__(self, find: Callable[[], Optional[Counters]] = counters.find,
                 clock: Callable[[], float] = time.perf_counter) -> None:
        self.find = find
        self.clock = clock
        self.counters: Optional[Counters] = None
        self.pid = os.getpid()
        self.is_failed = False
        self.source = 0
        self.step_number = 0
        self.live = Series(LEAST_BYTES)
        self.outside = Series(LEAST_OUTSIDE_BYTES)
        self.search: Optional[_Search] = None
        self.searches = 0
        self.told_bytes = 0  # a step, of torch's memory; what was said last
        self.outside_told_bytes = 0
        self.growth_text = self.told_text = self.holder_text = "null"  # JSON, for lines to come
        self.driver_seconds: List[float] = []
        self.driver_period = 1
        self.driver = (0, 0)  # free, total
        self.ledger_at = -LEDGER_SECONDS

    def mark(self, number: Optional[int], source: str) -> None:
        """The end of a step."""
        found = self.counters
        if os.getpid() != self.pid:
            return  # a forked child cannot use its parent's CUDA
        if found is None:
            found = self.counters = None if self.is_failed else self.find()
            if found is None:
                return
        if not self.count(number, source):
            return
        at = self.step_number
        allocated, reserved = found.read()
        rose = self.live.add(at, allocated)
        if at % self.driver_period == 0:
            self.ask_driver(found)
            free, total = self.driver
            rose_outside = self.outside.add(at, max(0, total - free - reserved))
            if rose_outside and _can_judge():
                self.consider_outside(at)
        if self.search is not None:
            self.go_on(self.search, at)
        elif rose and _can_judge():
            self.consider(found, at)
        now = self.clock()
        if now - self.ledger_at >= LEDGER_SECONDS:
            self.ledger_at = now
            _meet_ledger(found.device)
        if observing.is_recording():
            self.record(at, allocated, reserved)

    def count(self, number: Optional[int], source: str) -> bool:
        """Whether this mark is one of those that count: of several sources the nearest to the
        program. A step number that does not rise begins a new series."""
        rank = SOURCES.index(source)
        if rank < self.source:
            return False
        if number is None:
            number = self.step_number + 1
        if rank > self.source or number <= self.step_number:
            self.live.clear()
            self.outside.clear()
            self.end_search()
        self.source, self.step_number = rank, number
        return True

    def ask_driver(self, found: Counters) -> None:
        """Where the driver is slow to answer, it is asked less often."""
        began = self.clock()
        self.driver = found.driver()
        if len(self.driver_seconds) < DRIVER_TRIALS:
            self.driver_seconds.append(self.clock() - began)
            if len(self.driver_seconds) == DRIVER_TRIALS:
                is_slow = min(self.driver_seconds) > ALL_DRIVER_SECONDS
                self.driver_period = DRIVER_PERIOD if is_slow else 1

    # ---- growth of torch's own memory

    def consider(self, found: Counters, at: int) -> None:
        """It rose: is that growth, and news? Of growth that was told before only the last steps'
        rate is of interest."""
        growth = self.live.judge()
        if self.told_bytes > 0 or growth.kind == "unknown":
            growth = self.live.suspicion()
        if not growth.is_leak or growth.bytes_per_step < AGAIN * self.told_bytes:
            return
        self.growth_text = _growth_text(growth, "torch", [])
        if self.searches < SEARCHES_MAX:
            self.searches += 1
            self.search = _Search(found, at, growth)

    def go_on(self, search: _Search, at: int) -> None:
        """Another step of a search; the last one ends it."""
        search.take(at)
        if not search.is_complete:
            return
        try:
            self.conclude(search, at)
        finally:
            self.end_search()

    def conclude(self, search: _Search, at: int) -> None:
        growth = self.live.judge()
        if self.told_bytes > 0 or not growth.is_leak:
            growth = self.live.judge(search.from_step)
        if not growth.is_leak or growth.bytes_per_step < AGAIN * self.told_bytes:
            self.growth_text = self.told_text  # it was a warm-up
            return
        sites = search.sites()
        holder = search.holder(sites[0] if sites else None)
        self.told_bytes = growth.bytes_per_step
        self.growth_text = self.told_text = _growth_text(growth, "torch", sites)
        if holder is not None:
            self.holder_text = json.dumps(holder.to_dict())
        seams.announce(_told(at, growth, sites, holder, search))

    def end_search(self) -> None:
        search, self.search = self.search, None
        if search is not None:
            search.close()

    # ---- growth outside torch

    def consider_outside(self, at: int) -> None:
        """The driver's used memory rose beyond what torch holds."""
        if len(self.outside) < OUTSIDE_POINTS:
            return
        growth = self.outside.judge()
        if not growth.is_leak or growth.bytes_per_step < AGAIN * self.outside_told_bytes:
            return
        self.outside_told_bytes = growth.bytes_per_step
        if self.growth_text == "null":
            self.growth_text = _growth_text(growth, "outside torch", [])
        seams.announce(f"step {at}: +{figures.size(growth.bytes_per_step)} a step outside torch "
                       f"since step {growth.since_step}: NCCL, CUDA graphs, other processes")

    # ---- what goes out

    def record(self, at: int, allocated: int, reserved: int) -> None:
        free, total = self.driver
        observing.write_line(
            f'{observing.head("step")}, "step": {at}, "source": "{SOURCES[self.source]}", '
            f'"driver_used_bytes": {total - free}, "reserved_bytes": {reserved}, '
            f'"allocated_bytes": {allocated}, "growth": {self.growth_text}, '
            f'"holder": {self.holder_text}}}')

    def fail(self, problem: Exception) -> None:
        """Watching ends; the program goes on."""
        self.is_failed, self.counters = True, None
        try:
            self.end_search()
        except Exception:  # torch has failed once already
            pass
        seams.warn_once("watch", f"steps are watched no longer: {problem}")


def _meet_ledger(index: int) -> None:
    """Says in the ledger what this process holds, and serves what peers have asked for since: here,
    in the program's own thread, is the place for it. With the mode off neither."""
    mode = modes.mode()
    if mode == modes.OFF or not card.is_usable():
        return
    try:
        where = card.current()
        if where is None or where.index != index:
            return  # a thread that has not chosen its device: reclaim would run on another
        oom_account.attach()  # here CUDA has started, which it may not have when we joined
        device = where.device()
        mine = None if device is None else tenancy.tenant(device)
        if mine is None:
            return
        accounts.declare(mine, where, torch_sources.figures(where))
        mine.measure()
        # While a peer starts up the request stands: it is served at a later mark.
        may_give = mode == modes.ON and not mine.starting_peer()
        asked = mine.asked() if may_give else 0
        if asked > 0:
            seams.announce(reclaiming.run(where, asked).line("a peer that asked"))
    except errors.TidegateError as problem:
        seams.warn_once("watch ledger", f"the ledger is not told of steps: {problem}")


def _can_judge() -> bool:
    """Without the library steps are written down all the same."""
    try:
        library.functions()
        return True
    except errors.LibraryMissing as problem:
        seams.warn_once("judge", f"growth is not looked for: {problem}")
        return False


def _growth_text(growth: Growth, where: str, sites: List[growing_sites.Site]) -> str:
    return json.dumps({"bytes_per_step": growth.bytes_per_step, "since_step": growth.since_step,
                       "where": where, "sites": [site.to_dict() for site in sites]})


def _told(at: int, growth: Growth, sites: List[growing_sites.Site],
          holder: Optional[holders.Holder], search: _Search) -> str:
    text = f"step {at}: +{figures.size(growth.bytes_per_step)}/step since step {growth.since_step}"
    if sites:
        text += f", {sites[0].place}"
        if len(sites) > 1:
            text += f" and {len(sites) - 1} more"
    elif search.seconds > SLOW_SECONDS:
        text += ", line not known: the history of another tool, whose files tell it (tidegate leak)"
    elif search.is_forbidden:
        text += ", line not known: TIDEGATE_HISTORY=never"
    else:
        text += ", line not known"
    if holder is None:
        return text
    return f"{text}; {'kept by ' if holder.is_found else ''}{holder}"


_watch = Watch()
_busy = threading.Lock()
