# SPDX-License-Identifier: Apache-2.0
"""A receipt: what an operation did, as the driver confirms it, why it stopped, what stayed and why.

It prints as a small table; its fields are numbers. How to read it: doc/guide/receipt.md."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, NamedTuple, Optional, Tuple

from . import figures

TARGET_MET = "target met"
NOTHING_LEFT = "nothing left"
NO_PROGRESS = "no progress"
DEADLINE = "deadline"
NOT_ALLOWED = "not allowed"


@dataclass(frozen=True)
class SourceUse:
    """One source in one operation. skipped: why it did not run, or ""."""

    name: str
    runs: int
    gained_bytes: int
    seconds: float
    skipped: str = ""


class Item(NamedTuple):
    """Bytes with a name: what stayed ("live", "context and libraries"), or a tag that woke."""

    item: str
    size_bytes: int


@dataclass(frozen=True)
class Receipt:
    """reason: why it stopped ("target met", "nothing left", "no progress", "deadline"), or "done"
    for prepare, sleep and wake. asked_bytes None: everything that can be had. gained_bytes: by how
    much the driver's free memory grew while sources ran, what a sleep gave or a wake took;
    driver_bytes: by how much the driver's free memory changed over the whole operation."""

    reason: str
    asked_bytes: Optional[int] = None
    gained_bytes: int = 0
    driver_bytes: int = 0
    passes: int = 0
    seconds: float = 0.0
    sources: Tuple[SourceUse, ...] = ()
    stays: Tuple[Item, ...] = ()
    operation: str = "reclaim"
    tags: Tuple[Item, ...] = ()
    copied_bytes: int = 0
    phases: Dict[str, float] = field(default_factory=dict)

    def line(self, purpose: str = "") -> str:
        """"reclaim for sglang kv_cache: needed 7.0, got 46.3 GiB (driver) in 48 ms, 1 pass, …"."""
        if self.operation != "reclaim":
            names = ", ".join(tag.item for tag in self.tags)
            moved = self.gained_bytes
            if self.operation == "prepare":
                moved = sum(tag.size_bytes for tag in self.tags)
            return (f"{self.operation} {names or 'nothing'} {figures.size(moved)} in "
                    f"{figures.seconds(self.seconds)}")
        unit, factor = figures.shared_unit(max(self.asked_bytes or 0, abs(self.driver_bytes))
                                           or 1 << 30)
        asked = "" if self.asked_bytes is None else f"needed {self.asked_bytes / factor:.1f}, "
        skipped = [f"{use.name} skipped ({use.skipped})" for use in self.sources
                   if use.skipped not in ("", NOT_ALLOWED)]
        passes = f"{self.passes} pass" + ("" if self.passes == 1 else "es")
        text = (f"{self.operation}{' for ' + purpose if purpose else ''}: {asked}"
                f"got {self.driver_bytes / factor:.1f} {unit} (driver) in "
                f"{figures.seconds(self.seconds)}, {passes}, {self.reason}")
        return "; ".join([text, *skipped])

    def to_dict(self) -> Dict[str, Any]:
        """Plain values, for JSON."""
        return {**asdict(self), "sources": [asdict(use) for use in self.sources],
                "stays": [stay._asdict() for stay in self.stays],
                "tags": [tag._asdict() for tag in self.tags]}

    def __str__(self) -> str:
        rows = [(use.name, figures.size(use.gained_bytes), _how(use)) for use in self.sources]
        rows += [(tag.item, figures.size(tag.size_bytes), "") for tag in self.tags]
        rows += [(name, "", figures.seconds(spent)) for name, spent in self.phases.items()]
        rows += [("stays: " + stay.item, figures.size(stay.size_bytes), "") for stay in self.stays]
        wide = max((len(row[0]) for row in rows), default=0)
        return "\n".join([self.line()] + [f"  {name:<{wide}}  {amount:>8}  {how}".rstrip()
                                          for name, amount, how in rows])


def _how(use: SourceUse) -> str:
    if use.runs == 0:
        return f"not run: {use.skipped}" if use.skipped else "not run"
    times = "once" if use.runs == 1 else f"{use.runs} times"
    return f"{times}, {figures.seconds(use.seconds)}"
