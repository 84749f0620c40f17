# SPDX-License-Identifier: Apache-2.0
"""The trainer asks the engine to wake: `resume` of verl's client of the engine, on every rank.

With `on`, each rank first makes room on its own GPU, inline in the calling thread. Only one rank,
the leader, asks the engine; where the replica spans several GPUs it waits until the ledger shows
that the others have made room too, in a thread, with a deadline and without a collective. When all
that is not enough the account is printed and the engine is asked all the same: verl's own call is
never left out, and nothing is raised, unless TIDEGATE_STRICT=1 asks for it.

Engines of which one replica computes on several GPUs as one (tensor parallel) are only looked at:
their ranks would have to wake as one."""

from __future__ import annotations

import asyncio
import math
import os
import time
from typing import Any, Awaitable, Callable, List, NamedTuple, Optional, Sequence

from .. import accounts, errors, features, figures, modes, seams
from ..card import Card
from ..patience import wait_seconds
from . import books, process, quiet, room
from .versions import Target

_SETTLE_SECONDS = 2.0
_LOOK_SECONDS = 0.02

Resume = Callable[[Any, List[str]], Awaitable[Any]]


class Side(NamedTuple):
    """What a rollout object says of its replica. looks_only: why it is only observed, or ""."""

    engine: str
    peers: Sequence[int]  # the trainer's other ranks on its GPUs
    is_leader: bool
    looks_only: str
    utilization: Optional[float]  # the share of a GPU that the engine may use


def is_strict() -> bool:
    """$TIDEGATE_STRICT: what would not fit is raised in the trainer, too."""
    return os.environ.get("TIDEGATE_STRICT", "") == "1"


# ---- what verl's objects say --------------------------------------------------------------------

def side_of(rollout: Any, target: Target) -> Side:
    """Reads what all versions have. Raises what it meets where they have it no longer."""
    config = rollout.config
    tensor, data, pipeline = (int(getattr(config, f"{name}_parallel_size", None) or 1)
                              for name in ("tensor_model", "data", "pipeline_model"))
    size = tensor * data * pipeline
    rank = int(os.environ.get("RANK", "0"))
    place = getattr(rollout, "rollout_rank", None)
    place = rank % size if place is None else int(place)
    feature = features.hand_over(process.version(), target.engine, tensor)
    looks_only = "" if feature.state == features.WORKS else feature.reason
    split = getattr(config, "disaggregation", None)
    if not looks_only and split is not None and getattr(split, "enabled", False):
        looks_only = "prefill and decode have servers of their own"
    first = rank - place
    peers = [each for each in range(first, first + size) if each != rank]
    return Side(target.engine, peers, _is_leader(rollout, target, place), looks_only,
                getattr(config, "gpu_memory_utilization", None))


def _is_leader(rollout: Any, target: Target, place: int) -> bool:
    """Whether this rank asks the engine. SGLang has one such rank for each pipeline stage."""
    ask = getattr(rollout, "_is_server_tp_leader", None)
    if ask is not None:
        return bool(ask())
    mesh = getattr(rollout, "device_mesh", None)
    if target.engine == "sglang" and mesh is not None:
        return bool(mesh["infer_tp"].get_local_rank() == 0)
    return place == 0


# ---- the seam -----------------------------------------------------------------------------------

def resuming(original: Resume, target: Target) -> Resume:
    """ServerAdapter.resume, and what it was before."""
    async def resume(self, tags: list[str]) -> Any:
        where = process.here()
        if where is None:
            return await original(self, tags)
        process.announce(where)
        process.SYNC.hand_overs += 1
        side = _side(self, target)
        if side is not None and modes.mode() == modes.ON:
            await _prepare(where, side, tags)
        return await _watched(where, side, tags, original(self, tags))

    return resume


def _side(rollout: Any, target: Target) -> Optional[Side]:
    """None where verl's object is not what is known: then its call is passed on."""
    try:
        return side_of(rollout, target)
    except Exception as problem:
        seams.warn_once("verl replica", f"{target} cannot be told from which replica it is "
                        f"({type(problem).__name__}: {problem}): its calls are passed on")
        return None


async def _prepare(where: Card, side: Side, tags: Sequence[str]) -> None:
    """Room on this GPU, and on the replica's others. Raises only what strictness asks for."""
    if side.looks_only:
        seams.warn_once("verl looks only", f"only observes {side.engine}: {side.looks_only}")
        return
    try:
        wanted = room.need(where, tags)
        if room.is_due(where, wanted) and not quiet.is_quiet(where):
            await asyncio.to_thread(quiet.wait, where, wait_seconds())
        room.make(where, wanted, "resume", tags, f"{side.engine} {' '.join(tags)}")
        books.publish(where)
        if side.is_leader:
            await _wait_for_peers(side, tags)
            await _settle(where, wanted)
        _check(where, side, tags, wanted)
    except errors.TidegateWouldNotFit:
        raise
    except Exception as problem:  # whatever it is, verl's own call still goes out
        seams.warn_once("verl resume", f"cannot make room ({type(problem).__name__}: {problem}): "
                        "the engine is asked as before")


_peers_given_up: List[int] = []  # once one has not come in time, nobody waits for any again


async def _wait_for_peers(side: Side, tags: Sequence[str]) -> None:
    if not side.peers or _peers_given_up:
        return
    awaited = books.Awaited(side.peers, process.SYNC.hand_overs, tags)
    lacking = await asyncio.to_thread(books.wait, awaited, wait_seconds())
    if lacking.late_ranks:
        _peers_given_up.extend(lacking.late_ranks)
        seams.warn_once("verl peers", f"rank {_listed(lacking.late_ranks)} has not made room in "
                        f"{figures.seconds(wait_seconds())}; the engine is asked, from now on "
                        "without waiting")
    if lacking.unknown_ranks:
        seams.warn_once("verl unknown peers", f"rank {_listed(lacking.unknown_ranks)} of this "
                        "replica is not in this node's ledger; nobody waits for it")


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


async def _settle(where: Card, wanted: Optional[int]) -> None:
    """Lets memory arrive that others have let go or were asked for: with nobody there to give any,
    or room enough, at once."""
    if _missing(where, wanted) == 0:
        return
    seconds = wait_seconds() if is_strict() else min(_SETTLE_SECONDS, wait_seconds())
    deadline = time.monotonic() + seconds
    mine = books.tenant(where)
    is_hopeless = mine is None or mine.ask(_missing(where, wanted)) == 0
    if is_hopeless and not is_strict():
        return
    while _missing(where, wanted) > 0 and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)


def _missing(where: Card, wanted: Optional[int]) -> int:
    return 0 if wanted is None else max(0, wanted - room.look(where).free_bytes)


def _check(where: Card, side: Side, tags: Sequence[str], wanted: Optional[int]) -> None:
    """Says the account when it will not fit, and raises it where that was asked for."""
    missing = _missing(where, wanted)
    if missing == 0 or wanted is None:
        return
    text = _account(where, side, tags, wanted, missing)
    if is_strict():
        failure = errors.TidegateWouldNotFit(0, text)
        failure.asked_bytes = wanted
        failure.available_bytes = wanted - missing
        raise failure
    seams.announce(f"{text} The engine is asked all the same")


def _account(where: Card, side: Side, tags: Sequence[str], size_bytes: int, missing: int) -> str:
    unit, factor = figures.shared_unit(size_bytes)
    stays = ", ".join(f"{item} {held / factor:.1f}" for item, held in accounts.stays(where)
                      if held >= factor / 20)
    text = (f"wake {' '.join(tags)} needs {size_bytes / factor:.1f} {unit}, "
            f"{(size_bytes - missing) / factor:.1f} can be had: {stays}. Try param_offload=True")
    if side.utilization is not None:
        total = where.driver_memory()[1]
        fitting = math.floor((float(side.utilization) - missing / total) * 100) / 100
        if fitting > 0:
            text += f", or gpu_memory_utilization <= {fitting:.2f}"
    return text + "."


async def _watched(where: Card, side: Optional[Side], tags: Sequence[str],
                   call: Awaitable[Any]) -> Any:
    """verl's own call, and what the engine took while it ran."""
    before = _looked(where)
    began = time.perf_counter()
    result = await call
    after = _looked(where)
    if side is not None and side.is_leader and before is not None and after is not None:
        taken = room.remember(where, tags, before, after)
        if taken > 0:
            spent = figures.seconds(time.perf_counter() - began)
            seams.warn_once(f"verl took {' '.join(tags)}", f"{side.engine} woke {' '.join(tags)}: "
                            f"took {figures.size(taken)} in {spent}")
    return result


def _looked(where: Card) -> Optional[room.State]:
    try:
        return room.look(where)
    except Exception as problem:
        seams.warn_once("verl look", f"cannot ask the driver ({problem}): what the engine takes is "
                        "not known")
        return None
