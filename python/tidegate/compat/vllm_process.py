# SPDX-License-Identifier: Apache-2.0
"""What vLLM's process says of us, to people and to the ledger: one line, at the first call."""

from __future__ import annotations

import sys

from . import engine_process


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


ENGINE = engine_process.Engine("vLLM", version, _name)


def announce(what: str) -> None:
    """Says what is done here; later calls say nothing more."""
    ENGINE.announce(what)
