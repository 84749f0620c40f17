# SPDX-License-Identifier: Apache-2.0
"""What stays on the card, and why: each figure measured on its own where it can be, and left out
where it cannot. What nobody claims is "unattributed"; it is the driver's used memory less all that
was measured, so that the items of an account add up to what is used."""

from __future__ import annotations

import time
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

from . import card, errors, preloaded, seams, tags, tenancy, torch_sources
from .receipts import Item

# Free memory in torch's segments that is worth a look at each block: after a reclaim that ran, and
# where it may be a live pool's.
_WORTH_A_LOOK_BYTES = 1 << 20
_MAY_BE_POOL_BYTES = 20 << 20

_outside: Dict[int, Tuple[float, Optional[int]]] = {}
_blocks: Dict[int, Tuple[torch_sources.Figures, Tuple[int, int, int]]] = {}


def outside_torch(where: card.Card, reserved: int, is_fresh: bool) -> Optional[int]:
    """What the driver charges to this process beyond torch's segments and our own memory: context,
    libraries, other allocators. None where the driver does not tell."""
    kept = _outside.get(where.index)
    if kept is None or is_fresh or time.monotonic() - kept[0] > tenancy.OUTSIDE_KEPT_SECONDS:
        own = where.process_bytes()
        claimed = (reserved - torch_sources.in_default_tag(where, reserved)
                   + tags.own_bytes(where.uuid))
        bytes_outside = None if own is None else max(0, own - claimed)
        kept = _outside[where.index] = (time.monotonic(), bytes_outside)
    return kept[1]


def _in_torch(where: card.Card, now: torch_sources.Figures, is_fresh: bool) -> List[Item]:
    """torch's segments. The counters tell free pieces from live ones; only a look at every block
    tells which free memory belongs to a live pool. It holds while the counters stay as they are."""
    items = [Item("live", now.live), Item("pending event", now.pending)]
    least = _WORTH_A_LOOK_BYTES if is_fresh else _MAY_BE_POOL_BYTES
    free = now.idle + (now.split if is_fresh else 0)
    kept = _blocks.get(where.index)
    if kept is not None and kept[0] == now:
        returnable, pool, pinned = kept[1]
    else:
        is_worth_it = free >= least and torch_sources.asleep_bytes(where) == 0
        found = torch_sources.segments(where) if is_worth_it else []
        if not found:
            return items + [Item("pinned by a live neighbour", now.split), Item("cached", now.idle)]
        returnable, pool, pinned = torch_sources.cached(found)
        pinned += torch_sources.plugged_rest(where)
        _blocks[where.index] = (now, (returnable, pool, pinned))
    return items + [Item("pinned by a live neighbour", pinned), Item("live pool", pool),
                    Item("cached", returnable)]


def _in_tags(where: card.Card, now: torch_sources.Figures) -> List[Item]:
    """This process's tags, but for what torch has in the default tag."""
    usual, both = preloaded.default_tag(), torch_sources.in_default_tag(where, now.reserved)
    return [Item(name, max(0, size - both) if name == usual else size)
            for name, size in tags.own(where.uuid)]


class Account(NamedTuple):
    """Who holds the used memory of a card. own: this process but for its tags; others: tenants,
    each with what it holds; items of 0 bytes are left out."""

    own: Tuple[Item, ...]
    tags: Tuple[Item, ...]
    others: Tuple[Tuple[tenancy.TenantStatus, int], ...]
    unattributed_bytes: int

    def items(self) -> Tuple[Item, ...]:
        """The account as a list, in which each process is one line."""
        found = [*self.own, Item("tags of this process", _sum(self.tags))]
        found += [Item(f"{one.title} (dead)" if one.is_dead else one.title, held)
                  for one, held in self.others]
        return _held([*found, Item("unattributed", self.unattributed_bytes)])


def _sum(items: Iterable[Item]) -> int:
    return sum(item.size_bytes for item in items)


def _held(items: Iterable[Item]) -> Tuple[Item, ...]:
    return tuple(item for item in items if item.size_bytes > 0)


def _of_others(where: card.Card, unclaimed: int) -> List[Tuple[tenancy.TenantStatus, int]]:
    """The other tenants. unclaimed: what is used and none of ours. A dead one counts only as far as
    the living leave something: the driver has its memory back before the ledger hears of it."""
    found = tenancy.others(where.uuid)
    rows = [(one, one.occupied_bytes) for one in found if not one.is_dead]
    left = max(0, unclaimed - sum(held for _, held in rows))
    for one in found:
        if one.is_dead:
            rows.append((one, min(one.occupied_bytes, left)))
            left -= rows[-1][1]
    return [row for row in rows if row[1] > 0]


def account(where: card.Card, look: Optional[torch_sources.Look] = None, *,
            is_fresh: bool = True) -> Account:
    """The account of one card, at a look that was just taken or now. is_fresh: something has run
    since the last one, so what costs milliseconds is measured again."""
    now, free, total = torch_sources.look(where) if look is None else look
    own = _in_torch(where, now, is_fresh)
    mine = _held(_in_tags(where, now))
    outside = outside_torch(where, now.reserved, is_fresh)
    if outside is not None:
        own.append(Item(tenancy.OUTSIDE, outside))
    left = total - free - _sum(own) - _sum(mine)
    others = _of_others(where, left)
    left -= sum(held for _, held in others)
    return Account(_held(own), mine, tuple(others), max(0, left))


def stays(where: card.Card, look: Optional[torch_sources.Look] = None, *,
          is_fresh: bool = True) -> Tuple[Item, ...]:
    """The same as the list that a receipt has."""
    return account(where, look, is_fresh=is_fresh).items()


def declare(mine: tenancy.Tenant, where: card.Card, now: torch_sources.Figures) -> None:
    """What torch holds, and what of it could be given back. What lies in the default tag, all that
    is free first, is held there already; it can be given back all the same."""
    live, cached = now.live + now.pending, now.split + now.idle
    tagged, usual = torch_sources.in_default_tag(where, live + cached), preloaded.default_tag()
    idle = max(0, now.idle - tagged)
    mine.declare("live", live - max(0, tagged - cached))
    mine.declare("cached", max(0, cached - tagged), idle)
    if usual is not None:
        mine.declare(usual, 0, now.idle - idle)


def publish(where: card.Card, seams_text: Optional[str] = None,
            look: Optional[torch_sources.Look] = None) -> None:
    """Writes into the ledger what this process holds on the card, as the driver and torch say now:
    "live", "cached" and what of it could be given back, "context and libraries". Joins the first
    time. Never raises: the ledger is for others."""
    try:
        device = where.device()
        mine = None if device is None else tenancy.tenant(device)
        if mine is None:
            return
        now = torch_sources.figures(where) if look is None else look.torch
        declare(mine, where, now)
        mine.declare(tenancy.OUTSIDE, outside_torch(where, now.reserved, False) or 0)
        mine.measure()
        if seams_text is not None:
            mine.note(seams_text)
    except errors.TidegateError as problem:
        seams.warn_once("publish", f"cannot write to the ledger: {problem}")
