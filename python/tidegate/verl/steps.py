# SPDX-License-Identifier: Apache-2.0
"""verl's steps: weights are handed to the engine once in each, which opens a sync and ends a step;
and the engine's server, which tells when it falls asleep and wakes."""

from __future__ import annotations

import time
from typing import Any, Awaitable, Callable, Mapping, Optional, Sequence

from .. import figures, seams, watching
from . import books, process
from .versions import Target


def handing(original: Callable[..., Awaitable[Any]], target: Target) -> Callable[..., Any]:
    """ActorRolloutRefWorker.update_weights, and what it was before."""
    async def hand_weights(*arguments: Any, **named: Any) -> Any:
        where = process.here()
        if where is not None:
            process.announce(where)
        process.SYNC.open += 1
        process.SYNC.woken.clear()
        try:
            result = await original(*arguments, **named)
        finally:
            process.SYNC.open -= 1
        if where is not None:
            books.serve(where)
        watching.step(_number(arguments, named), source="verl")
        return result

    return hand_weights


def _number(arguments: Sequence[Any], named: Mapping[str, Any]) -> Optional[int]:
    """verl's own count of steps, where this version passes it along."""
    said = named.get("global_steps", arguments[1] if len(arguments) > 1 else None)
    return said if isinstance(said, int) else None


def serving(original: Callable[..., Awaitable[Any]], target: Target) -> Callable[..., Any]:
    """sleep and wake_up of the engine's server."""
    async def serve(*arguments: Any, **named: Any) -> Any:
        process.announce(process.here(), f"{target.engine} server")
        began = time.perf_counter()
        result = await original(*arguments, **named)
        seams.warn_once(f"verl: {target}", f"{target.attribute}: the engine answered in "
                        f"{figures.seconds(time.perf_counter() - began)}")
        return result

    return serve
