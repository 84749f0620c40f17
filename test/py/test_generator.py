# SPDX-License-Identifier: Apache-2.0
"""The generator is right before anything is judged by it: its plans, its allocator and its
answers agree when computed in another way."""

import random

import pytest

from gen import forms, kinds, plant, program, samples
from replay import live_at, marks

CASES = plant.cases(200)


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda k: k.__name__)
@pytest.mark.parametrize("seed", range(6))
def test_plans_run_as_written(kind, seed):
    """What a program holds at the end of each step is what its plan says, and its snapshot's
    blocks and history say the same."""
    plan = kind(random.Random(seed), False)
    process = program.Program(program.Shape(expandable=seed % 2 == 1, flush=seed % 3 == 0,
                                            streams=seed == 4))
    site = process.site(plan, 14)
    process.build()
    ends = []
    for t in range(len(plan.steps)):
        process.step(t)
        ends.append(process.clock.read())
        assert sum(b.requested for b in site.held.values()) == kinds.series(plan)[t]
    stack = tuple((f["filename"], f["line"], f["name"]) for f in site.stack)
    states = live_at(process.snapshot(), ends)
    assert [s.get(stack, 0) for s in states] == kinds.series(plan)
    assert sum(states[-1].values()) == process.alloc.live()


@pytest.mark.parametrize("sample", [s for _, s in samples.everything()],
                         ids=[n for n, _ in samples.everything()])
def test_blocks_tile_segments(sample):
    """The invariants of a real snapshot."""
    for segment in sample["segments"]:
        addr = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == addr and block["size"] % 512 == 0 and block["size"] > 0
            addr += block["size"]
        assert addr == segment["address"] + segment["total_size"]
    for trace in sample["device_traces"]:
        times = [e["time_us"] for e in trace]
        assert times == sorted(times)


def test_actions_all_occur():
    """Every action that torch writes is in some sample."""
    seen = {e["action"] for _, s in samples.everything() for t in s["device_traces"] for e in t}
    from gen.allocator import ACTIONS  # pylint: disable=import-outside-toplevel
    assert seen == set(ACTIONS)


def test_cases_cover_everything():
    """Two hundred cases: every kind decided and short, every layout."""
    assert {k for _, k, _, s in CASES if s} == set(kinds.WITH_SHORT)
    assert {k for _, k, _, s in CASES if not s} == set(kinds.KINDS)
    assert {la for _, _, la, _ in CASES} == set(plant.SINGLE + plant.FILES + plant.SPARSE)


def test_seed_decides():
    """The same seed makes the same bytes."""
    one, two = (plant.make(*CASES[3]) for _ in range(2))
    assert one.files == two.files and one.answer() == two.answer()
    assert plant.make("other", *CASES[3][1:]).files != one.files


@pytest.mark.parametrize("version", forms.VERSIONS)
def test_versions_lack_what_they_should(version):
    """A shape has no key of a later version."""
    event = forms.shape(samples.rich(), version)["device_traces"][0][0]
    assert ("time_us" in event) == (version != "2.0")
    assert ("pool_id" in event) == (version == "head")


def test_marks_are_found():
    """The annotations of a planted program are one a step."""
    process = program.Program(program.Shape())
    process.build()
    for t in range(5):
        process.step(t)
    assert len(marks(process.snapshot())) == 5
