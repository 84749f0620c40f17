# SPDX-License-Identifier: Apache-2.0
"""What a program may keep from step to step, and what a good answer says of it.

A plan lists, for each step, how large the site's tensor is, whether it is kept, and which earlier
ones are let go (by their step) before or after it is made. The site allocates in every step, kept
or not: only what is held at the end of a step differs, as with the logits of a real model.

Each kind comes long enough to be decided (at least three whole periods, or three steps after the
last growth), and some come short: then the answer is `unknown`. Short ones end where a careful
reader could not tell: a linear leak after one increment, a period seen less than three times, a
cap or a jump with fewer than three flat steps behind it. They stay clear of the edges: a series
that gains or loses one point at either end keeps its answer. `slack` adds steps at the end, for
files where a reader may lose more: without marks the last step or two cannot be told to be whole.
"""

import dataclasses
import typing

MIB = 1 << 20
UNIT = 1 << 16  # sizes are multiples of 64 KiB


@dataclasses.dataclass
class Step:
    """One step of a site."""

    size: int
    keep: bool = False
    drop_before: typing.Sequence[int] = ()
    drop_after: typing.Sequence[int] = ()


@dataclasses.dataclass
class Plan:
    """A site's behaviour and its answer. `rate` is bytes a step over whole periods."""

    kind: str
    steps: typing.List[Step]
    verdict: str
    rate: float = 0.0
    first_step: typing.Optional[int] = None  # of a leak: the first step (from 0) that grew


def size(rng, low=2 * MIB, high=96 * MIB):
    """A tensor's bytes."""
    return rng.randrange(low, high, UNIT)


def series(plan):
    """Bytes held at the end of each step, from the plan alone."""
    held, out = {}, []
    for t, step in enumerate(plan.steps):
        if step.keep:
            held[t] = step.size
        for gone in list(step.drop_before) + list(step.drop_after):
            held.pop(gone, None)
        out.append(sum(held.values()))
    return out


def linear(rng, short, slack=0):
    """The same amount each step."""
    b = size(rng)
    if short:
        return _one_increment("linear", b)
    return Plan("linear", [Step(b, True) for _ in range(rng.randint(6, 12) + slack)],
                "leak", b, 0)


def _one_increment(kind, b):
    """Two steps, of which the second grows. Not both: a file that shows its own beginning has a
    point before the first step, and two equal increments may be called a leak."""
    return Plan(kind, [Step(b), Step(b, True)], "unknown")


def every_kth(rng, short, slack=0):
    """Every k-th step only. Short: twice."""
    k = rng.choice((2, 3, 4))
    b = size(rng, 8 * MIB)
    n = 2 * k + 1 if short else 4 * k + 1 + slack
    steps = [Step(b, t % k == k - 1) for t in range(n)]
    return Plan(f"every {k}th step", steps, "unknown" if short else "leak",
                0 if short else b / k, k - 1)


def alternating(rng, short, slack=0):
    """Two sizes in turn. Short: two steps, one increment."""
    a, b = size(rng), size(rng)
    if short:
        return _one_increment("alternating", b)
    n = rng.randint(7, 12) + slack
    return Plan("alternating", [Step((a, b)[t % 2], True) for t in range(n)], "leak",
                (a + b) / 2, 0)


def warm_up_leak(rng, short, slack=0):
    """Irregular growth for some steps, then a steady leak. Short: one step after at most two of
    the warm-up; more could as well be a leak of random sizes."""
    b = size(rng, high=32 * MIB)
    w = rng.randint(1, 2 if short else 3)
    n = w + (1 if short else rng.randint(6, 9) + slack)
    steps = [Step(b * (7 - 2 * t) + size(rng), True) for t in range(w)]
    steps += [Step(b, True) for _ in range(n - w)]
    return Plan("warm-up, then leak", steps, "unknown" if short else "leak", 0 if short else b, w)


def warm_up_flat(rng, short, slack=0):
    """Irregular growth for some steps, then nothing. Short: one flat step."""
    w = rng.randint(2, 4)
    n = w + (1 if short else rng.randint(4, 8) + slack)
    b = size(rng, 4 * MIB)
    steps = [Step(b * (w - t) + UNIT * rng.randint(0, 9), True) for t in range(w)]
    steps += [Step(b) for _ in range(n - w)]
    return Plan("warm-up, then flat", steps, "unknown" if short else "no leak")


def cache(rng, short, slack=0):
    """A cache of the last `cap` tensors. Short: one step at the cap."""
    cap = rng.randint(3, 5)
    n = cap + (1 if short else rng.randint(4, 8) + slack)
    b = size(rng)
    steps = [Step(b, True, [t - cap] if t >= cap else []) for t in range(n)]
    return Plan("cache to a cap", steps, "unknown" if short else "no leak")


def one_time(rng, short, slack=0):
    """Made once, kept for good, seen for longer than the steps before it: else it could be the
    first of a leak every k-th step. Short: one step after it."""
    at = rng.randint(1, 3)
    n = at + (2 if short else at + rng.randint(3, 7) + slack)
    b = size(rng, 4 * MIB)
    return Plan("one-time", [Step(b, t == at) for t in range(n)],
                "unknown" if short else "no leak")


def sawtooth(rng, short, slack=0):
    """Collected, and all let go every k-th step. Short: one period and a half."""
    k = rng.choice((2, 3, 4)) if not short else rng.choice((3, 4))
    n = k + k // 2 + 1 if short else 4 * k + rng.randint(0, k - 1) + slack
    b = size(rng)
    steps = [Step(b, True, (), range(t - t % k, t + 1) if t % k == k - 1 else ())
             for t in range(n)]
    return Plan(f"sawtooth of {k}", steps, "unknown" if short else "no leak")


def double_buffer(rng, short, slack=0):
    """Two buffers of two sizes in turn: the new one is there before the old one goes. Short: one
    change seen."""
    a, b = size(rng, 4 * MIB), size(rng, 4 * MIB)
    if short:
        a, b = min(a, b), max(a, b) + MIB
    n = 2 if short else rng.randint(8, 12) + slack
    steps = [Step((a, b)[t % 2], True, (), [t - 1] if t else ()) for t in range(n)]
    return Plan("double buffer", steps, "unknown" if short else "no leak")


def _looks_ordered(sizes):
    """What chance makes too: later ones tend to be larger or smaller (more such pairs than half a
    deviation allows, by the test of Mann and Kendall), a record in the last third, or so few turns
    that it could be a slow sawtooth (of n - 2 places two thirds are turns)."""
    n = len(sizes)
    turns = sum((b > a) != (c > b) for a, b, c in zip(sizes, sizes[1:], sizes[2:]))
    score = sum((b > a) - (b < a) for i, a in enumerate(sizes) for b in sizes[i + 1:])
    third = n // 3
    return (abs(score) > 0.5 * (n * (n - 1) * (2 * n + 5) / 18) ** 0.5
            or turns < (n - 2) / 2 or max(sizes[-third:]) >= max(sizes[:-third])
            or min(sizes[-third:]) <= min(sizes[:-third]))


def noise(rng, short, slack=0):
    """The last batch is held until the next; its size varies. Decided where chance made no trend.
    Short: two batches, the second larger."""
    b = size(rng, 8 * MIB, 64 * MIB)
    n = rng.randint(10, 14) + slack
    sizes = []
    while not sizes or _looks_ordered(sizes):
        sizes = [int(b * rng.uniform(0.7, 1.3)) // UNIT * UNIT for _ in range(n)]
    if short:
        sizes = [b, b + b // 4 // UNIT * UNIT]
    # The old one goes first: wherever in a step a reader looks, it sees one of them.
    steps = [Step(s, True, [t - 1] if t else ()) for t, s in enumerate(sizes)]
    return Plan("last batch varies", steps, "unknown" if short else "no leak")


def late(rng, short, slack=0):
    """Nothing for some steps, then a leak. Short: one increment."""
    b = size(rng)
    s = rng.randint(3, 5)
    n = s + (1 if short else rng.randint(5, 8) + slack)
    return Plan("leak that starts late", [Step(b, t >= s) for t in range(n)],
                "unknown" if short else "leak", 0 if short else b, s)


def random_size(rng, short, slack=0):
    """Another size each step, always kept: the rate is the mean. Short: one increment."""
    b = size(rng, 4 * MIB, 48 * MIB)
    if short:
        return _one_increment("random sizes", b)
    sizes = [int(b * rng.uniform(0.5, 1.5)) // UNIT * UNIT for _ in range(rng.randint(8, 14))]
    rate = sum(sizes) / len(sizes)
    # The first two and the last are the mean of all: a reader that does not see one of them grow
    # (it may not know that the step is whole) must find the same rate.
    sizes = [int(rate)] * 2 + sizes + [int(rate)] * (1 + slack)
    return Plan("random sizes", [Step(s, True) for s in sizes], "leak", rate, 0)


def steady(rng, _short, slack=0):
    """Nothing kept."""
    b = size(rng)
    return Plan("nothing kept", [Step(b) for _ in range(rng.randint(6, 10) + slack)],
                "no leak")


KINDS = (linear, every_kth, alternating, warm_up_leak, warm_up_flat, cache, one_time, sawtooth,
         double_buffer, noise, late, random_size, steady)
WITH_SHORT = KINDS[:-1]
