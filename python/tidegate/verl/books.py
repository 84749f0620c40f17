# SPDX-License-Identifier: Apache-2.0
"""The trainer in the node's ledger: what it holds, and how many hand-overs it has made; and the
wait for the other trainers of one replica, by what they have written there.

A hand-over of a rank is done when it has given back what it can, has had the driver asked, and has
then raised its number. The numbers go with the seams that a tenant notes: "verl 0.9.1: 4 of 4,
hand-over 12, run 7f3a". A run is told from others on the node by where its ranks meet."""

from __future__ import annotations

import os
import re
import time
import zlib
from ctypes import byref, c_uint64
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from .. import accounts, card, library, reclaiming, seams, tenancy
from . import process

_NOTE = re.compile(r"hand-over ([0-9]+), run ([0-9a-f]{4})$")
_LOOK_SECONDS = 0.005
# Freed memory may take a moment to be the driver's again: what a dead process held, two seconds.
_SETTLE_SECONDS = 2.0


def run_mark() -> str:
    """Four digits that ranks of one run share."""
    meeting = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    return f"{zlib.crc32(meeting.encode()) & 0xffff:04x}"


def publish(where: card.Card) -> None:
    """Writes down what torch holds, what the driver says, and how far this rank is. Only trainers
    have such books. Never raises."""
    if not process.is_trainer():
        return
    try:
        accounts.publish(where, f"verl {process.summary()}, hand-over {process.SYNC.hand_overs}, "
                                f"run {run_mark()}")
    except Exception as problem:  # the ledger is for others: the program goes on without
        seams.warn_once("verl books", f"cannot write to the ledger: {problem}")


def serve(where: card.Card) -> None:
    """Gives what peers have asked this trainer for since the last step. Never raises."""
    if not process.acts():  # who asked sees that nobody has looked
        return
    try:
        mine = tenant(where)
        if mine is None or mine.starting_peer():  # then the request stands until a later step
            return
        asked = mine.asked()
        if asked > 0:
            reclaiming.run(where, asked)
            publish(where)
    except Exception as problem:  # they learn that they were not served
        seams.warn_once("verl peers asked", f"cannot give what peers ask for: {problem}")


def tenant(where: card.Card) -> Optional[tenancy.Tenant]:
    """This process in the ledger, or None where it cannot be."""
    device = where.device()
    return None if device is None else tenancy.tenant(device)


# ---- the other ranks ----------------------------------------------------------------------------

class Awaited(NamedTuple):
    """What a leader waits for: ranks of its replica, other than itself, that have come as far as
    itself, and room on each one's GPU for what sleeps there under the tags."""

    ranks: Sequence[int]
    hand_over: int
    tags: Sequence[str]


class Lacking(NamedTuple):
    """The awaited ranks that are not there yet."""

    late_ranks: List[int]
    full_ranks: List[int]  # come, but their GPUs have no room yet
    unknown_ranks: List[int]  # not in this node's ledger

    @property
    def is_nothing(self) -> bool:
        return not self.late_ranks and not self.full_ranks


def lacking(view: Any, awaited: Awaited, run: str) -> Lacking:
    """What a view of the ledger says is not there yet."""
    found = _ranks_of(view, run)
    late, full, unknown = [], [], []
    for rank in awaited.ranks:
        tenant = found.get(rank)
        if tenant is None:
            unknown.append(rank)
        elif _hand_over_of(tenant, run) < awaited.hand_over:
            late.append(rank)
        else:
            device = view.devices[tenant.device]
            if device.free_bytes < _asleep(view, bytes(device.uuid), awaited.tags):
                full.append(rank)
    return Lacking(late, full, unknown)


def _asleep(view: Any, uuid: bytes, tags: Sequence[str]) -> int:
    """What sleeps on any GPU of the node under these tags."""
    asleep, short = c_uint64(), c_uint64()
    library.call("tg_reclaim_target", byref(view), uuid, ",".join(tags).encode(), 0, byref(asleep),
                 byref(short))
    return asleep.value


def _hand_over_of(tenant: Any, run: str) -> int:
    """-1: it has noted none of this run."""
    noted = _NOTE.search(library.text(tenant.seams))
    return int(noted.group(1)) if noted is not None and noted.group(2) == run else -1


def _ranks_of(view: Any, run: str) -> Dict[int, Any]:
    tenants = [tenant for tenant in view.tenants[:view.tenant_count]
               if not tenant.is_dead and tenant.rank >= 0 and _hand_over_of(tenant, run) >= 0]
    return {tenant.rank: tenant for tenant in tenants}


def wait(awaited: Awaited, seconds: float) -> Lacking:
    """Looks into the ledger until nothing is lacking, or the time is over; when all have come and
    a GPU is full, no longer than memory takes to settle. Runs in a thread of its own: it calls
    neither torch nor the driver. Raises what reading the ledger raises."""
    run = run_mark()
    deadline = time.monotonic() + seconds
    settled: Optional[float] = None
    while True:
        view = tenancy.read()
        if view is None:
            return Lacking([], [], list(awaited.ranks))
        now, still = time.monotonic(), lacking(view, awaited, run)
        settled = None if still.late_ranks else settled or now + _SETTLE_SECONDS
        if still.is_nothing or now >= min(deadline, settled or deadline):
            return still
        time.sleep(_LOOK_SECONDS)
