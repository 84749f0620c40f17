# SPDX-License-Identifier: Apache-2.0
"""verl's own hand-overs: the places where it gives torch's cache back so that the engine can have
the memory. `observe` lets them run and measures them. `on` puts one exact reclaim in their place
while weights are handed to the engine, and where verl asks for more than torch's empty_cache;
everywhere else it lets them run too.

Nothing here raises: what our side cannot do, verl's own function does, and it is said once. Before
CUDA has started, and on what is no NVIDIA card, verl's function is all that runs."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any, Callable

from .. import card, library, modes, observing, seams
from ..patience import wait_seconds
from . import books, platform_door, process, quiet, room
from .versions import Target


def give_back(call: str, original: Callable[[], None], is_thorough: bool) -> None:
    """One hand-over by verl. is_thorough: it asks for more than the cache, as its helper does."""
    where = process.here()
    sync = process.SYNC
    if modes.mode() == modes.OFF or where is None or sync.is_giving:
        original()
        return
    is_handing = is_thorough or sync.open > 0
    sync.arrived += 1
    if is_handing or not process.is_trainer():
        # A trainer's first ones come while verl still loads its modules.
        process.announce(where, "" if process.is_trainer() else process.WORKER)
    sync.is_giving = True
    try:
        if not (is_handing and process.acts() and _reclaim(where, call)):
            observing.observe(call, (), original)
    finally:
        sync.is_giving = False
    if is_handing:
        books.publish(where)


def _reclaim(where: card.Card, call: str) -> bool:
    """An exact hand-over instead of verl's; False where verl's has to run."""
    try:
        library.functions()  # without them nothing can be judged, not even that all is well
        wanted = room.need(where, room.ALL_TAGS)
        if room.is_due(where, wanted):
            quiet.wait(where, wait_seconds())
        room.make(where, wanted, call, (), "the rollout engine")
        return True
    except Exception as problem:  # whatever it is, verl's own function still does its work
        seams.warn_once("verl reclaim", f"cannot reclaim ({problem}): verl's own function runs")
        return False


def helper(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.memory_utils.aggressive_empty_cache."""
    def aggressive_empty_cache(force_sync: bool = True, max_retries: int = 3) -> None:
        own = functools.partial(original, force_sync=force_sync, max_retries=max_retries)
        give_back("aggressive_empty_cache", own, is_thorough=True)

    return aggressive_empty_cache


def through(call: str, original: Callable[..., None], *arguments: Any) -> None:
    """The doors of the device module."""
    if call == "empty_cache":
        give_back(call, original, is_thorough=False)
    else:
        original(*arguments)


def device_module(original: Any, target: Target) -> property:
    """PlatformCUDA.device_module: the module with our doors in it."""
    def module(self: Any) -> ModuleType:
        theirs: ModuleType = original.fget(self)
        return theirs if modes.mode() == modes.OFF else platform_door.door(theirs, through)

    return property(module, doc=original.__doc__)


def platform_settings(original: Any, target: Target) -> Callable[..., None]:
    """PlatformCUDA.set_allocator_settings: seen, and passed on."""
    def set_allocator_settings(self, settings: str) -> None:
        process.allocator_settings = settings
        original(self, settings)

    return set_allocator_settings


def segments_setting(original: Any, target: Target) -> Callable[..., None]:
    """verl.utils.device.set_expandable_segments, before there was a platform."""
    def set_expandable_segments(enable: bool) -> None:
        process.allocator_settings = f"expandable_segments:{enable}"
        original(enable)

    return set_expandable_segments
