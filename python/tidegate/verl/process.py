# SPDX-License-Identifier: Apache-2.0
"""What the seams of one process share: which role verl gave it, the weight sync that is open, and
what they say.

A trainer is a process that has loaded verl's workers. Others that import verl are the engine's
server and the engine's workers: in these nothing is ever reclaimed."""

from __future__ import annotations

import sys
from typing import Optional, Set, Tuple

from .. import card, identity, modes, oom_account, seams
from . import seaming, versions

SEAMING: Optional[seaming.Seaming] = None  # set once, before a seam can be called

WORKER = "rollout worker"  # what a process is that neither trains nor serves
_WORKERS = tuple({target.module for target in versions.TARGETS if target.seam == versions.STEP})


class Sync:
    """Written by the thread that calls the seams, which in a trainer is one."""

    def __init__(self) -> None:
        self.open = 0  # weight syncs under way: 0 or 1
        self.is_giving = False  # a hand-over of verl's is running: those inside it are part of it
        self.hand_overs = 0  # calls of resume so far: the same on all ranks of a replica
        self.arrived = 0  # hand-overs of verl that came to us
        self.woken: Set[Tuple[str, ...]] = set()  # what has woken in the sync that is open


SYNC = Sync()
allocator_settings = ""  # what verl has set last


def is_trainer() -> bool:
    """Whether this process trains, or drives those that do."""
    return any(name in sys.modules for name in _WORKERS)


def here() -> Optional[card.Card]:
    """The card of the calling thread; None before CUDA has started, and where there is none."""
    try:
        return card.current()
    except Exception as problem:  # whatever torch has become: its own functions still run
        seams.warn_once("verl card", f"cannot tell the card ({type(problem).__name__}: {problem}): "
                        "seams step aside")
        return None


def announce(where: Optional[card.Card], engine: str = "") -> None:
    """A seam has been called: the first one is said. where None: in the engine's server, which has
    no card of its own. engine: what this process is, if no trainer. The caller knows: a server may
    have loaded the trainer's modules, too."""
    if engine:
        identity.stand_for(engine)
    if where is not None:
        oom_account.attach()
    if SEAMING is not None:
        SEAMING.announce(where)


def version() -> versions.Version:
    """verl's."""
    return () if SEAMING is None else SEAMING.version


def summary() -> str:
    """"0.9.1: 4 of 4"."""
    if SEAMING is None:
        return "none"
    active, known = SEAMING.counts()
    return f"{SEAMING.version_text}: {active} of {known}"


def acts() -> bool:
    """Whether seams may reclaim here."""
    return modes.mode() == modes.ON and is_trainer()
