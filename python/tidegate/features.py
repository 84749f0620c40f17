# SPDX-License-Identifier: Apache-2.0
"""What works with which versions, what only looks, and what is refused: one table.

Seams ask it (`hand_over`), the command has it compiled in, made from here by tools/feature-table:
what `tidegate doctor` shows and what happens are the same. Facts about versions of a program come
from that program's own table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterable, List, Optional, Tuple

from .verl import versions
from .verl.versions import Version

WORKS = "works"
OBSERVES = "observe only"
REFUSED = "refused"
STATES = (WORKS, OBSERVES, REFUSED)

ENGINES = ("sglang", "vllm")
# Engines with an allocator of ours in them: (the first version that is known, the newest tried).
ENGINE_VERSIONS: Dict[str, Tuple[Version, Version]] = {
    "sglang": ((0, 5, 12), (0, 5, 12)), "vllm": ((0, 24), (0, 24))}


@dataclass(frozen=True)
class Feature:
    """A row. program "": any; since and until (which it no longer holds for): versions of the
    program; engine "": both; where: what else must hold for the row, in words."""

    name: str
    state: str
    reason: str = ""
    program: str = ""
    since: Optional[Version] = None
    until: Optional[Version] = None
    engine: str = ""
    where: str = ""

    def holds_for(self, version: Version, engine: str) -> bool:
        """Whether the row speaks of this version and engine."""
        return ((self.since is None or self.since <= version)
                and (self.until is None or version < self.until)
                and self.engine in ("", engine))


_HAND_OVER = "exact hand-over"
_SLEEP = "sleep and wake, all or nothing"
_ONE_GPU = "one GPU an engine"
_TP = "tp > 1"


def _together(engine: str) -> Optional[Tuple[Version, str]]:
    """(the first version that has trainer and engine in processes of their own, why it matters)."""
    found = [target for target in versions.TARGETS
             if target.together and engine in target.module]
    ends = [target.until for target in found if target.until is not None]
    return (max(ends), found[0].together) if ends else None


def _of_engine(engine: str) -> Iterable[Feature]:
    together = _together(engine)
    apart_since = versions.OLDEST
    if together is not None:
        apart_since, why = together
        yield Feature(_HAND_OVER, OBSERVES, why, "verl", versions.OLDEST, apart_since, engine)
    yield Feature(_HAND_OVER, WORKS, "", "verl", apart_since, None, engine, _ONE_GPU)
    yield Feature(_HAND_OVER, OBSERVES, "the engine's ranks cannot yet wake as one", "verl",
                  apart_since, None, engine, _TP)


def _rows() -> List[Feature]:
    rows = [
        Feature(_HAND_OVER, REFUSED, "its seams are not known", "verl", until=versions.OLDEST),
    ]
    for engine in ENGINES:
        rows += _of_engine(engine)
    rows += [
        Feature("observe: receipts, growth, holder", WORKS, "", "verl", versions.OLDEST),
        Feature("offloading through exact host copies", WORKS, "", "verl",
                versions.OFFLOADS_SINCE, where="TIDEGATE_OFFLOAD=1"),
        Feature(_SLEEP, REFUSED, "its plugins are not known", "sglang",
                until=ENGINE_VERSIONS["sglang"][0]),
        Feature(_SLEEP, WORKS, "run with 0.5.12 on one card", "sglang",
                ENGINE_VERSIONS["sglang"][0], where=f"enable_memory_saver=True, {_ONE_GPU}"),
        Feature(_SLEEP, REFUSED, "its allocator is not known", "vllm",
                until=ENGINE_VERSIONS["vllm"][0]),
        Feature(_SLEEP, WORKS, "run with 0.24.0 on one card", "vllm",
                ENGINE_VERSIONS["vllm"][0], where="enable_sleep_mode=True"),
        Feature("reclaim, tag, prepare, sleep, wake, step, HostCopies from Python", WORKS),
        Feature("all of it on ROCm, NPU and CPU", REFUSED,
                "only NVIDIA devices are known; calls do nothing there"),
        Feature("engine memory that sleeps without the engine's own sleep mode", REFUSED,
                "nothing is preloaded into an engine in this version"),
    ]
    return rows


FEATURES: Tuple[Feature, ...] = tuple(_rows())


def hand_over(version: Version, engine: str, ranks: int) -> Feature:
    """The row for a hand-over in this version of verl to an engine of so many ranks."""
    for row in FEATURES:
        fits = row.where in ("", _TP if ranks > 1 else _ONE_GPU)
        if row.name == _HAND_OVER and fits and row.holds_for(version, engine):
            return row
    return Feature(_HAND_OVER, REFUSED, f"no seams for the engine {engine}", "verl")
