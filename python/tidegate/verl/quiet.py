# SPDX-License-Identifier: Apache-2.0
"""Seams keep still while a peer starts up. An engine that starts sizes itself by the card's free
memory, which must neither fall nor rise meanwhile: so nothing is given back until it says that it
is done. One start-up is waited for as long as one deadline in all, however many calls fall into it;
after that memory stays as it is until it ends."""

from __future__ import annotations

import time
from typing import Dict

from .. import seams
from ..card import Card
from . import books

# By card: how long the start-up that is under way has been waited for.
_waited: Dict[int, float] = {}


def is_quiet(where: Card) -> bool:
    """Whether memory may be given back now. Who starts up is said once each time, and what that
    means. Without a ledger nobody can say that he does."""
    return wait(where, 0.0)


def wait(where: Card, seconds: float) -> bool:
    """The same, waited for. May run in any thread: it calls neither torch nor the driver."""
    mine = books.tenant(where)
    who = "" if mine is None else mine.starting_peer(0.0)
    if mine is not None and who:
        if where.index not in _waited:
            _waited[where.index] = 0.0
            seams.announce(f"{who}: nothing is given back until it has started")
        began = time.monotonic()
        who = mine.starting_peer(max(0.0, seconds - _waited[where.index]))
        _waited[where.index] = _waited.get(where.index, 0.0) + time.monotonic() - began
    if not who:
        _waited.pop(where.index, None)
    return not who
