# SPDX-License-Identifier: Apache-2.0
"""How much room the other side needs on this GPU, and how it is made.

What it needs: what the ledger says sleeps under the tags that are about to wake. Where the engine
is no tenant: what it took when it last woke, by the driver's free memory before and after its
answer. Before that is known: everything that can be had.

What is made: until that fits, and torch's whole cache in any case, since the engine works with
more than it wakes, and verl itself would give no less."""

from __future__ import annotations

import time
from typing import Dict, NamedTuple, Optional, Sequence, Tuple

from .. import errors, observing, reclaiming, seams, torch_sources
from ..card import Card
from . import books, process, quiet

ALL_TAGS: Tuple[str, ...] = ()

_took: Dict[Tuple[int, Tuple[str, ...]], int] = {}  # by card and tags, at the last wake


class State(NamedTuple):
    """One look at the card, by the driver and by torch's allocator."""

    free_bytes: int
    torch: torch_sources.Figures

    @property
    def returnable_bytes(self) -> int:
        """What one pass over torch's cache would give: nothing where it is not worth a pass."""
        found = torch_sources.Cache().bound(self.torch)
        return found if found >= reclaiming.MIN_GAIN_BYTES else 0


def look(where: Card) -> State:
    """About 50 µs. Raises what torch raises when the device has failed."""
    return State(where.driver_memory()[0], torch_sources.figures(where))


def need(where: Card, tags: Sequence[str]) -> Optional[int]:
    """Bytes that are about to wake on this card; None: not known yet. No tags: all that sleeps, or
    will wake in this sync if it goes as the last one did."""
    asleep = _asleep(where, tags)
    if asleep > 0:
        return asleep
    mine = {key: taken for (index, key), taken in _took.items() if index == where.index}
    if tags:
        return mine.get(_key(tags))
    if not mine:
        return None
    return sum(taken for key, taken in mine.items() if key not in process.SYNC.woken)


def _key(tags: Sequence[str]) -> Tuple[str, ...]:
    return tuple(sorted(tags))


def remember(where: Card, tags: Sequence[str], before: State, after: State) -> int:
    """What the engine took while it woke. torch's own growth meanwhile is not the engine's, and a
    wake of what was awake tells nothing of the next."""
    grown = after.torch.reserved - before.torch.reserved
    taken = max(0, before.free_bytes - after.free_bytes - grown)
    if taken >= reclaiming.MIN_GAIN_BYTES:
        _took[(where.index, _key(tags))] = taken
    process.SYNC.woken.add(_key(tags))
    return taken


def _asleep(where: Card, tags: Sequence[str]) -> int:
    """Bytes of others that the ledger has asleep on this card; 0 also where it cannot be asked."""
    try:
        mine = books.tenant(where)
        return 0 if mine is None else mine.target(",".join(tags) or None)[0]
    except errors.TidegateError as problem:
        seams.warn_once("verl ledger", f"the ledger cannot be asked ({problem}): the engine's need "
                        "is taken from what it last took")
        return 0


def _target(where: Card, wanted: Optional[int]) -> Tuple[Optional[int], Optional[int]]:
    """(what is missing; what a reclaim is for, 0: none is worth a pass). None: not known."""
    now = look(where)
    missing = None if wanted is None else max(0, wanted - now.free_bytes)
    return missing, missing if missing != 0 else now.returnable_bytes


def is_due(where: Card, wanted: Optional[int]) -> bool:
    """Whether `make` has something to do."""
    return _target(where, wanted)[1] != 0


def make(where: Card, wanted: Optional[int], call: str, tags: Sequence[str], purpose: str) -> None:
    """Reclaims inline, in the calling thread, for a call of verl's, and writes it down as such a
    hand-over. What was missing, and what came of it, is said. While a peer starts up memory stays
    as it is. Raises what reclaim does."""
    before, began = observing.measure(), time.perf_counter()
    missing, target = _target(where, wanted)
    is_giving = target != 0 and quiet.is_quiet(where)
    receipt = reclaiming.run(where, target) if is_giving else None
    observing.record_handover(call, tags, before, observing.measure(),
                              time.perf_counter() - began, None, is_said=False)
    if receipt is not None and receipt.passes > 0 and missing != 0:
        seams.announce(receipt.line(purpose))
