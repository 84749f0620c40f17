# SPDX-License-Identifier: Apache-2.0
"""Who holds the card's memory when torch runs out of it: said once, before torch raises as ever.

torch tells an observer between its last attempt and its exception, in the thread that allocates and
without its own lock. So counters and blocks may be read; nothing is allocated on the card, nobody
is waited for, and nothing is raised. An observer cannot be taken back: this one is attached once,
in a process that joins the ledger in modes observe and on, and asks the mode each time.

Programs that catch the error try again: of what comes in one go the first is told with its account,
then the second, fourth, eighth, … in one line."""

from __future__ import annotations

import json
import math
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from . import (accounts, card, figures, growing_sites, identity, modes, observing, seams,
               status_table, tenancy, torch_sources)
from .locks import ForkSafeLock

BURST_SECONDS = 60.0  # what comes within so long of the last one belongs to it
ACCOUNTS_MAX = 8  # in the life of a process
OTHERS_MAX = 8  # tenants with a line of their own
SLOW_SECONDS = 1.0  # sites that take longer are the last: somebody records much


class Shortage(NamedTuple):
    """What torch says of one error. asked_bytes: what it wanted of the driver; limit_bytes: what
    the process may have of the card, its total where torch has no limit."""

    where: card.Card
    asked_bytes: int
    limit_bytes: int
    free_bytes: int
    total_bytes: int

    @property
    def text(self) -> str:
        """"on GPU 0: torch asked for 20.0 GiB, 3.1 GiB of 139.8 GiB are free"."""
        text = (f"on {self.where.title}: torch asked for {figures.size(self.asked_bytes)}, "
                f"{figures.size(self.free_bytes)} of {figures.size(self.total_bytes)} are free")
        if 0 < self.limit_bytes < self.total_bytes:
            text += f", and this process may have {figures.size(self.limit_bytes)}"
        return text


class Bursts:
    """Which errors are told. Pure: the time is an argument."""

    def __init__(self) -> None:
        self.accounts = 0
        self.count = 0  # in the burst that is on
        self.first_at = self.last_at = -math.inf

    def meet(self, now: float) -> int:
        """1: it is told with its account; more: in a line, as that many so far; 0: not."""
        if now - self.last_at > BURST_SECONDS and self.accounts < ACCOUNTS_MAX:
            self.accounts += 1
            self.count, self.first_at = 0, now
        self.last_at = now
        self.count += 1
        return self.count if self.count & (self.count - 1) == 0 else 0


class Observer:
    """What torch calls. slow: sites have taken too long once."""

    def __init__(self) -> None:
        self.bursts = Bursts()
        self.is_slow = False
        self._busy = threading.Lock()

    def __call__(self, device: int, asked: int, limit: int, free: int) -> None:
        if modes.mode() == modes.OFF or not self._busy.acquire(blocking=False):
            return
        try:
            self.meet(device, asked, limit, free)
        except Exception as problem:  # torch would raise ours instead of its own
            seams.warn_once("oom account", f"who holds the memory cannot be told: {problem}")
        finally:
            self._busy.release()

    def meet(self, device: int, asked: int, limit: int, free: int) -> None:
        """One error."""
        now = time.monotonic()
        count = self.bursts.meet(now)
        torch = card.torch_if_loaded()
        if count == 0 or torch is None:
            return
        where = card.at(device, torch)
        short = Shortage(where, asked, limit, free, where.driver_memory()[1])
        found, sites = None, []
        if count == 1:
            look = torch_sources.Look(torch_sources.figures(where), free, short.total_bytes)
            found = accounts.account(where, look)
            sites = self.sites(where)
            seams.announce(f"out of memory {short.text}", below=told(found, sites))
        else:
            seams.announce(f"out of memory {short.text}; {count} times in "
                           f"{figures.seconds(now - self.bursts.first_at)}")
        if observing.is_recording():
            observing.write_line(_line(short, count, found, sites))

    def sites(self, where: card.Card) -> List[growing_sites.HeldSite]:
        """The lines that hold most, where stacks are recorded and can be had without the events
        that go with them; what it takes else may be minutes."""
        if self.is_slow or not torch_sources.is_history_on(where.torch):
            return []
        began = time.monotonic()
        try:
            return growing_sites.held(torch_sources.segments_without_events(where))
        except Exception as problem:  # without the library, or with a history that it cannot read
            seams.warn_once("oom sites", f"the lines that hold most cannot be told: {problem}")
            return []
        finally:
            self.is_slow = time.monotonic() - began > SLOW_SECONDS


# ---- words --------------------------------------------------------------------------------------

def told(found: accounts.Account, sites: List[growing_sites.HeldSite]) -> List[str]:
    """The account as people read it: a line for each process, one for each site."""
    mine = [f"{name} {figures.size(held)}" for name, held in (*found.own, *found.tags)]
    lines = ["  ".join([f"{identity.speaker()}, this process", *mine])]
    others = sorted(found.others, key=lambda row: -row[1])
    lines += [status_table.tenant_line(one).strip() for one, _ in others[:OTHERS_MAX]]
    rest = others[OTHERS_MAX:]
    if rest:
        lines.append(f"{len(rest)} more hold {figures.size(sum(held for _, held in rest))}")
    lines.append(f"unattributed {figures.size(found.unattributed_bytes)}")
    lines += [f"{site.where} holds {figures.size(site.size_bytes)} in {site.block_count} block"
              f"{'' if site.block_count == 1 else 's'}" for site in sites]
    return lines


def _items(items: Tuple[Any, ...]) -> List[Dict[str, Any]]:
    return [item._asdict() for item in items]


def _other(one: tenancy.TenantStatus, held: int) -> Dict[str, Any]:
    return {"name": one.name, "rank": one.rank, "pid": one.pid, "dead": one.is_dead,
            "size_bytes": held,
            "tags": [{"name": tag.name, "occupied_bytes": tag.occupied_bytes,
                      "returnable_bytes": tag.returnable_bytes, "asleep_bytes": tag.asleep_bytes}
                     for tag in one.tags]}


def _account_dict(found: accounts.Account) -> Dict[str, Any]:
    return {"own": _items(found.own), "tags": _items(found.tags),
            "others": [_other(one, held) for one, held in found.others],
            "unattributed_bytes": found.unattributed_bytes}


def _line(short: Shortage, count: int, found: Optional[accounts.Account],
          sites: List[growing_sites.HeldSite]) -> str:
    now = torch_sources.figures(short.where)
    rest: Dict[str, Any] = {
        "device": short.where.index, "count": count, "asked_bytes": short.asked_bytes,
        "free_bytes": short.free_bytes, "total_bytes": short.total_bytes,
        "limit_bytes": short.limit_bytes,
        "driver_used_bytes": short.total_bytes - short.free_bytes,
        "reserved_bytes": now.reserved, "allocated_bytes": now.live,
        "account": None if found is None else _account_dict(found),
        "sites": [site.to_dict() for site in sites]}
    return f"{observing.head('oom')}, {json.dumps(rest)[1:]}"


# ---- attaching ----------------------------------------------------------------------------------

_observer = Observer()
_lock = ForkSafeLock()
_attached_to: Any = None  # the module torch


def attach() -> None:
    """Has torch tell us of its errors from now on: once, in modes observe and on, after the program
    has started CUDA, which torch's own function would do. Costs nothing the second time. Never
    raises."""
    torch = None if modes.mode() == modes.OFF else card.torch_if_loaded()
    if torch is None or _attached_to is torch:
        return
    try:
        with _lock:
            _attach_to(torch)
    except Exception as problem:  # a torch without it, or another allocator than its own
        seams.warn_once("oom observer", "torch does not tell when it runs out of memory "
                        f"({problem}): who holds it then will not be said")


def _attach_to(torch: Any) -> None:
    global _attached_to
    where = card.current()
    if where is None or _attached_to is torch:
        return
    _attached_to = torch
    where.device()  # opened while there is memory for it
    torch._C._cuda_attach_out_of_memory_observer(_observer)


tenancy.when_joined(attach)
modes.when_changed(attach)
