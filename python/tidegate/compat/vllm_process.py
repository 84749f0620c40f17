# SPDX-License-Identifier: Apache-2.0
"""What vLLM's process says of us, to people and to the ledger: one line, at the first call."""

from __future__ import annotations

import multiprocessing
import sys

from .. import card, errors, identity, modes, seams, tenancy

_announced = False


def version() -> str:
    """vLLM's, "" if it does not say."""
    return str(getattr(sys.modules.get("vllm"), "__version__", ""))


def _name() -> str:
    """"vllm", of several that compute as one "vllm tp 0"."""
    parallel = sys.modules.get("vllm.distributed.parallel_state")
    try:
        group = None if parallel is None else parallel.get_tp_group()
        size, rank = getattr(group, "world_size", 1), getattr(group, "rank_in_group", 0)
    except Exception:  # not yet, or no longer known by these names
        return "vllm"
    several = isinstance(size, int) and isinstance(rank, int) and size > 1
    return f"vllm tp {rank}" if several else "vllm"


def announce(what: str) -> None:
    """Says what is done here; later calls say nothing more."""
    global _announced
    if _announced:
        return
    _announced = True
    if multiprocessing.parent_process() is not None:  # not the user's own program
        identity.stand_for(_name())
    where = card.current()
    gpu = "" if where is None else f"GPU {where.index}, "
    seams.announce(f"tidegate {modes.mode()}: {gpu}vLLM {version()}: {what}")
    seams.tell_run("vllm")


def note(where: card.Card, what: str) -> None:
    """The same in the ledger, where readers find it beside the figures. Joins it."""
    try:
        device = where.device()
        mine = None if device is None else tenancy.tenant(device)
        if mine is not None:
            mine.note(f"vllm {version()}: {what}")
    except errors.TidegateError as problem:
        seams.warn_once("vllm note", f"cannot write to the ledger: {problem}")
