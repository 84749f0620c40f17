# SPDX-License-Identifier: Apache-2.0
"""Whether a number grows from step to step. The judgement is the library's (`tg_series_judge`);
here the points are kept, and it is decided, with integers alone, when asking is worth its time."""

from __future__ import annotations

import ctypes
from typing import List, NamedTuple, Optional

from . import abi, library

POINTS_MAX = 64
RECENT = 8
PORTIONS_MAX = 8  # rises whose sizes differ by more than this factor are no one thing


class Growth(NamedTuple):
    """kind is one of abi.GROWTH_KINDS; the rest are 0 but for a leak."""

    kind: str
    bytes_per_step: int = 0
    since_step: int = 0

    @property
    def is_leak(self) -> bool:
        return self.kind == "leak"


class Series:
    """The last points of one number, at the ends of steps."""

    __slots__ = ("least", "steps", "values")

    def __init__(self, least_bytes: int) -> None:
        self.least = least_bytes  # a step: less is no growth
        self.steps: List[int] = []
        self.values: List[int] = []

    def __len__(self) -> int:
        return len(self.values)

    def clear(self) -> None:
        self.steps.clear()
        self.values.clear()

    def add(self, step: int, value: int) -> bool:
        """Whether growth may show: it rose twice running, or above what was lately its highest."""
        values = self.values
        values.append(value)
        self.steps.append(step)
        count = len(values)
        if count < 3:
            return False
        if count > POINTS_MAX:
            del values[0], self.steps[0]
        before = values[-2]
        if value < before + self.least:
            return False
        return before >= values[-3] + self.least or value > max(values[-RECENT:-1])

    def judge(self, from_step: Optional[int] = None) -> Growth:
        """What the library says of the points; or of those from a step on, and the one before."""
        first = 0
        if from_step is not None:
            first = max(0, sum(1 for step in self.steps if step < from_step) - 1)
        count = len(self.steps) - first
        if count == 0:
            return Growth("unknown")
        numbers = ctypes.c_uint64 * count
        answer = abi.tg_growth()
        library.call("tg_series_judge", numbers(*self.values[first:]), numbers(*self.steps[first:]),
                     count, ctypes.byref(answer))
        kind = abi.GROWTH_KINDS[answer.kind]
        if kind != "leak" or answer.bytes_per_step < self.least:
            return Growth("steady" if kind == "leak" else kind)
        return Growth(kind, round(answer.bytes_per_step),
                      self.steps[first + answer.first_point])

    def suspicion(self) -> Growth:
        """Two rises running that may be one thing. Too little to be called a leak, and enough to
        look: three more steps decide it."""
        if len(self.values) < 3:
            return Growth("unknown")
        first, second, third = self.values[-3:]
        small, large = sorted((second - first, third - second))
        if small < self.least or large > PORTIONS_MAX * small:
            return Growth("unknown")
        return Growth("leak", (third - first) // (self.steps[-1] - self.steps[-3]),
                      self.steps[-2])
