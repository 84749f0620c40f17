# SPDX-License-Identifier: Apache-2.0
"""Two hundred planted series: every leak found within 2 %, no false alarm, and what is too short
is `unknown`. All in one test, run four at a time, since what counts is the score; each failure is
listed with the seed that makes it again:

    python3 test/gen plant OUT; tidegate leak --json OUT/NAME $(arguments in OUT/NAME.answer.json)
"""

import concurrent.futures
import dataclasses
import random
import re
import shutil

import pytest

from gen import kinds, plant

CASES = plant.cases(200)


def judge(answer, case):
    """What is wrong with an answer; empty: nothing."""
    wrong = []
    if answer["verdict"] != case.verdict:
        wrong.append(f"verdict {answer['verdict']}, planted {case.verdict}")
    ranks = {r["rank"]: r for r in answer["ranks"]}
    if set(ranks) != set(case.rates) and None not in case.rates:
        wrong.append(f"ranks {sorted(ranks)}")
    if case.verdict == "unknown":
        if answer["leaks"]:
            wrong.append(f"calls {answer['leaks'][0]['where']} a leak")
        return wrong
    # Of one or two files the steps inside may be taken, however they are found: not asked there.
    if answer["step_source"] not in case.sources:
        wrong.append(f"steps from {answer['step_source']}, planted {case.sources}")
    for (_, rank), rate in zip(sorted(ranks.items(), key=lambda r: r[0] or 0),
                               case.rates.values()):
        if abs(rank["bytes_per_step"] - rate) > 0.02 * rate:
            wrong.append(f"rank {rank['rank']}: {rank['bytes_per_step'] / (1 << 20):.3f} MiB a "
                         f"step, planted {rate / (1 << 20):.3f}")
        if rank["verdict"] != ("leak" if rate else "no leak"):
            wrong.append(f"rank {rank['rank']}: {rank['verdict']}")
    places = [s["where"] for s in answer["leaks"]]
    if places != ([case.where] if case.verdict == "leak" else []):
        wrong.append(f"at {places}, planted {case.where}")
    return wrong


def run_case(tidegate, root, choice):
    """One case from its seed to its verdict."""
    case = plant.make(*choice)
    folder = root / case.name
    case.write(str(folder))
    result = tidegate("leak", "--json", folder, *case.argv)
    shutil.rmtree(folder)
    if result.status != 0:
        return [f"{case.name} ({case.kind}, {case.layout}): {result.err.strip()}"]
    return [f"{case.name} ({case.kind}, {case.layout}): {w}" for w in judge(result.json(), case)]


@pytest.mark.slow
def test_two_hundred(tidegate, tmp_path):
    """Every case right."""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        runs = pool.map(lambda c: run_case(tidegate, tmp_path, c), CASES)
        wrong = [line for lines in runs for line in lines]
    assert not wrong, f"{len(wrong)} complaints:\n" + "\n".join(wrong)


@pytest.mark.parametrize("layout", plant.SINGLE + plant.FILES)
@pytest.mark.parametrize("kind", (kinds.linear, kinds.sawtooth), ids=lambda k: k.__name__)
def test_one_of_each(tidegate, tmp_path, kind, layout):
    """The plain cases on their own, so that a broken layout shows by name."""
    assert run_case(tidegate, tmp_path, ("one", kind, layout, False)) == []


@pytest.mark.parametrize("seed, kind, layout", (
    ("13-39", kinds.linear, "ranks"), ("9-15", kinds.alternating, "cleared"),
    ("11-87", kinds.noise, "cleared"), ("12-151", kinds.double_buffer, "oom"),
    ("14-107", kinds.warm_up_leak, "cleared"), ("2", kinds.linear, "post_update")))
def test_two_files_tell_nothing(tidegate, tmp_path, seed, kind, layout):
    """Two or three files, each of one step by its name: the micro-batches inside are no steps."""
    assert run_case(tidegate, tmp_path, (seed, kind, layout, True)) == []


def _kept(pattern):
    """Steps that keep one unit, several, or none."""
    return [kinds.Step(8 << 20 if k == "." else 8 * int(k) << 20, k != ".") for k in pattern]


@pytest.mark.parametrize("pattern, verdict, rate", (
    ("1111", "leak", 1), (".1.1.1.", "leak", 1 / 2), ("13131", "leak", 2),
    ("..1..1..1..", "leak", 1 / 3), ("921111", "leak", 1), ("...11111", "leak", 1),
    ("111...", "no leak", 0), ("11111....", "no leak", 0), (".5...", "no leak", 0),
    ("421....", "no leak", 0), ("......", "no leak", 0), ("...7.......", "no leak", 0),
    ("11.", "unknown", 0), ("111..", "unknown", 0), ("....1", "unknown", 0),
    (".1.1.", "unknown", 0)))
def test_just_enough(tidegate, tmp_path, pattern, verdict, rate):
    """At the edge of what the contract decides: three whole periods, or three steps after the last
    growth; with less, unknown. Units of 8 MiB kept in each step, '.' for none."""
    planter = plant.Planter("edge", kinds.linear, "cleared")
    planter.plan = kinds.Plan(pattern, _kept(pattern), verdict, rate * (8 << 20))
    case = planter.make()
    case.verdict, case.rates = verdict, {0: rate * (8 << 20)}
    case.write(str(tmp_path / "c"))
    assert judge(tidegate("leak", "--json", tmp_path / "c").json(), case) == []


@pytest.mark.parametrize("layout", ("cleared", "optimizer", "profiler", "period"))
def test_one_leak_among_everything(tidegate, tmp_path, layout):
    """One program with a leak, a cache, a sawtooth, a double buffer, a varying batch and one-time
    state, each at a line of its own: only the leak is called one, and the others have their
    lists."""
    rng, steps = random.Random(7), 18
    others = {"cache": [kinds.Step(30 << 20, True, [t - 4] if t >= 4 else []) for t in
                        range(steps)],
              "sawtooth": [kinds.Step(20 << 20, True, (), range(t - 2, t + 1) if t % 3 == 2
                                      else ()) for t in range(steps)],
              "buffer": [kinds.Step((16, 48)[t % 2] << 20, True, [t - 1]) for t in range(steps)],
              "batch": kinds.noise(rng, False, 8).steps[:steps],
              "once": [kinds.Step(64 << 20, t == 2) for t in range(steps)]}
    planter = plant.Planter("all", kinds.linear, layout)
    planter.site, planter.shape = (14, "linear"), dataclasses.replace(planter.shape, native=False)
    planter.plan = kinds.Plan("linear", [kinds.Step(10 << 20, True)] * steps, "leak", 10 << 20)
    make = planter.program

    def with_others(*args, **more):
        program = make(*args, **more)
        for line, plan in enumerate(others.values(), 101):
            program.site(kinds.Plan("", plan, ""), line, "own")
        return program

    planter.program = with_others
    planter.case.rates = {None: 10 << 20}
    case = planter.make()
    case.write(str(tmp_path / "c"))
    answer = tidegate("leak", "--json", tmp_path / "c", *case.argv).json()
    assert judge(answer, case) == []
    listed = {k: {int(s["where"].split(":")[1].split()[0]) for s in answer[k]}
              for k in ("one_time", "comes_and_goes")}
    assert {101, 105} <= listed["one_time"]
    assert 102 in listed["comes_and_goes"]


def test_leak_under_a_varying_batch(tidegate, tmp_path):
    """The same line both leaks and holds the last batch, whose size varies: the leak is seen in
    most cases, and in none called no leak. Beyond the contract: no series of this length gives the
    rate within 2 %; a fifth is asked for."""
    verdicts = []
    for seed in range(8):
        rng = random.Random(seed)
        planter = plant.Planter("noisy", kinds.linear, "cleared")
        planter.site = (14, "own")
        planter.plan = kinds.Plan("linear", [kinds.Step(16 << 20, True)] * 16, "leak", 16 << 20)
        make = planter.program

        def noisy(*args, make=make, rng=rng, **more):
            program = make(*args, **more)
            sizes = [rng.randrange(20, 44) << 20 for _ in range(16)]
            program.site(kinds.Plan("", [kinds.Step(s, True, [t - 1]) for t, s in
                                         enumerate(sizes)], ""), 14, "own")
            return program

        planter.program = noisy
        planter.make().write(str(tmp_path / str(seed)))
        answer = tidegate("leak", "--json", tmp_path / str(seed)).json()
        verdicts.append(answer["verdict"])
        if answer["verdict"] == "leak":
            assert answer["bytes_per_step"] == pytest.approx(16 << 20, rel=0.2)
    assert verdicts.count("leak") >= 6 and "no leak" not in verdicts


def test_writers_agree(tidegate, tmp_path):
    """The writer of the bytes changes nothing in the answer."""
    answers = set()
    for writer in ("py2", "py3", "py4", "py5", "cpp", "nomemo", "pure"):
        planter = plant.Planter("writers", kinds.alternating, "optimizer")
        planter.writer = writer
        folder = tmp_path / writer
        planter.make().write(str(folder))
        result = tidegate("leak", "--json", "run.pickle", cwd=folder)
        answers.add(re.sub(r'"pickle \d"', "", result.out))  # the format is told
    assert len(answers) == 1


def test_restart(tidegate, tmp_path):
    """The trainer is restarted in step 4: another pid, all memory made anew, steps go on. The
    leak after it is told at its own rate; the drop in between is no sawtooth."""
    planter = plant.Planter("restart", kinds.linear, "cleared")
    planter.writer, rate = "py4", 24 << 20
    planter.plan = kinds.Plan("linear", [kinds.Step(rate, True)] * 10, "leak", rate, 0)
    for pid, steps in ((4711, range(1, 4)), (5200, range(4, 11))):
        program = planter.program()
        for t, step in enumerate(steps):
            program.step(t)
            planter.add(f"profile/step{step}/torch_memory_rank0_pid{pid}.pickle", program)
            program.clear()
    planter.case.write(str(tmp_path / "r"))
    answer = tidegate("leak", "--json", tmp_path / "r").json()
    assert answer["verdict"] == "leak"
    assert answer["bytes_per_step"] == pytest.approx(rate, rel=0.02)


def test_paths_may_be_files(tidegate, tmp_path):
    """A folder, its files in any order, and some of both are the same run."""
    case = plant.make("order", kinds.linear, "cleared", False)
    case.write(str(tmp_path / "c"))
    files = sorted(str(p) for p in (tmp_path / "c").rglob("*.pickle*"))
    answers = [tidegate("leak", "--json", *paths).json() for paths in (
        [tmp_path / "c"], files, files[::-1], [files[0], tmp_path / "c"])]
    for answer in answers:
        del answer["inputs"]
    assert all(a == answers[0] for a in answers)
