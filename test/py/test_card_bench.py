# SPDX-License-Identifier: Apache-2.0
"""What bench/card does with figures once a card has given them: no card, no torch."""
import asyncio
import json
import os
import subprocess
import sys
import threading
import types
import xml.etree.ElementTree as tree

import pytest

from card_scripts import CARD, by_name, card_on_path, load  # noqa: F401


def test_without_a_card_nothing_is_tried(tmp_path):
    (tmp_path / "pynvml.py").write_text(
        "def nvmlInit():\n    raise OSError('the driver is not loaded')\n")
    done = subprocess.run([sys.executable, CARD / "run", "--results", tmp_path / "results"],
                          env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
                          capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (2, "")
    assert done.stdout == "no NVIDIA card is seen here: unknown: the driver is not loaded\n"
    assert not (tmp_path / "results").exists()


def turn(step, loss, give_ms, reserved=1 << 30):
    return {"step": step, "losses": [loss], "peak_bytes": 8 << 30, "give_weights_ms": 0.0,
            "give_kv_cache_ms": give_ms, "at": float(step), "while_rollout_runs": {
                "reserved_bytes": reserved, "allocated_bytes": 1, "process_bytes": reserved,
                "used_bytes": 2}}


def run_of(way, rows):
    return {"way": way, "rows": rows, "error": None, "pid": 1, "samples": [],
            "rollout_facts": {"needs_bytes": 3 << 30, "total_bytes": 10 << 30, "pid": 2}}


def test_a_loss_that_differs_in_its_last_bit_is_counted(capsys):
    turns = load("turns")
    options = types.SimpleNamespace(steps=3)
    alone = run_of("alone", [turn(i, repr(0.1 * i), 0) for i in range(3)])
    other = run_of("tidegate", [turn(i, repr(0.1 * i), 5) for i in range(3)])
    rows = by_name(turns.rows_of_way(other, alone, options))
    assert rows["tidegate: losses that differ from the trainer alone"]["value"] == 0
    other["rows"][2]["losses"] = [repr(0.2 + 2 ** -55)]
    rows = by_name(turns.rows_of_way(other, alone, options))
    assert rows["tidegate: losses that differ from the trainer alone"]["pass"] is False
    assert rows["tidegate: needed together, by what the card has"]["value"] == pytest.approx(1.1)


def test_a_run_that_broke_off_fails(capsys):
    turns = load("turns")
    broken = run_of("helper", [turn(0, "1", 2)])
    broken["error"] = "OutOfMemoryError: no"
    rows = turns.rows_of_way(broken, broken, types.SimpleNamespace(steps=3))
    assert [row["pass"] for row in rows] == [False]
    assert "OutOfMemoryError" in rows[0]["what"]


def test_picture_is_xml_and_keeps_its_peak():
    plot = load("line_plot")
    points = [(i / 10, 80.0 if i == 7778 else 1.0) for i in range(10000)]
    text = plot.picture("a < b", [plot.Panel("used", "GiB", "s", [("NVML", points, True)]),
                                  plot.Panel("nothing", "ms", "step", [("x", [], False)])])
    assert tree.fromstring(text).tag.endswith("svg")
    thin = plot.thin(points)
    assert len(thin) <= plot.MOST_POINTS and max(y for _, y in thin) == 80.0


@pytest.mark.parametrize("most", [0.3, 1, 7, 139.8, 2500])
def test_ticks_are_few_and_reach_far(most):
    ticks = load("line_plot").ticks(most)
    assert 3 <= len(ticks) <= 6 and ticks[-1] > most / 2


@pytest.mark.parametrize("least, most, wanted", [
    (-0.98, 19.4, [0, 5, 10, 15]), (1, 5, [1, 2, 3, 4, 5]), (3, 3, [3])])
def test_ticks_of_a_range_are_round(least, most, wanted):
    assert load("line_plot").between(least, most) == wanted


def verl_run(mode, loss=0.5, lines=(), observed=None):
    norm = 0.0 if mode == "on" else 1.5
    steps = [{"step": n, "critic/rewards/mean": 0.25, "actor/pg_loss": loss,
              "actor/grad_norm": norm, "timing_s/step": 8.0, "timing_s/update_weights": 0.3}
             for n in range(1, 5)]
    if mode == "without":
        steps = [{**step, "timing_s/step": 9.0, "timing_s/stop_profile": 1.0} for step in steps]
    return {"mode": mode, "steps": steps, "card": {"name": "of the run"}, "machine": {},
            "lines": list(lines), "observed": observed or {},
            "status": [{"code": 0, "json": False, "said": "GPU 0", "at": 1}], "leak": None,
            "used_mib": [(0.0, 1024), (1.0, 2048)], "tail": ""}


def test_processes_of_verl_are_told_apart():
    beside = load("verl_beside")
    said = "[trainer rank 0] tidegate on: GPU 0, torch 2.11, verl 0.9.1, 4 of 4 seams"
    found = beside.announced(verl_run("on", lines=[
        f"[ 1.0] (WorkerDict pid=7) {said}", f"[ 2.0] (vLLMHttpServer pid=8) {said}",
        f"[ 3.0] (vLLMHttpServer pid=8) (EngineCore pid=9) {said}",
        f"[ 3.5] (vLLMHttpServer pid=8) (Worker pid=10) {said}", "[ 4.0] tidegate status"]))
    assert {role: len(lines) for role, lines in found.items()} == \
        {"trainer": 1, "server": 1, "engine": 2}


def test_with_on_the_engine_s_memory_must_be_in_the_ledger(capsys):
    beside = load("verl_beside")
    assert beside.both_are_tenants(verl_run("observe")) == []
    run = verl_run("on", lines=["[ 9.0] (Worker pid=7) [vllm] tidegate on: GPU 0, vLLM 0.24.0: "
                                "sleep and wake are Tidegate's"])
    assert [row["pass"] for row in beside.both_are_tenants(run)] == [True, False]
    run["status"][0]["said"] = "vllm  pid 7  on  weights 1.0  kv_cache asleep (40.0)"
    assert [row["pass"] for row in beside.both_are_tenants(run)] == [True, True]
    assert beside.both_are_tenants({**run, "lines": []})[0]["pass"] is False


def test_files_of_all_modes_become_rows(tmp_path, monkeypatch, capsys):
    """Losses may be as far from those without as two runs without are from each other."""
    beside = load("verl_beside")
    handed = {"rank0_pid1.jsonl": [{"event": "handover"}] * 9 + [{"event": "step"}] * 4}
    runs = [verl_run("without"), verl_run("observe", loss=0.5003, observed=handed),
            verl_run("on", loss=0.51), verl_run("without", loss=0.5001)]
    runs[0]["leak"] = {"code": 0}  # the one that wrote memory files is not the measure of time
    runs[2]["steps"][0]["response_length/mean"] = 63.0
    runs[2]["host_bytes"] = 3 << 30
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(json.dumps(run))
    monkeypatch.setattr(sys, "argv", ["verl_beside.py", *(str(tmp_path / f"{number}.json")
                                                         for number in range(4)),
                                      "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        beside.main()
    assert ended.value.code == 1
    written = next(tmp_path.glob("verl-*.json"))
    body = json.loads(written.read_text())
    assert body["card"] == {"name": "of the run"}
    rows = by_name(body["rows"])
    far = "rewards and losses, by how far two runs without differ"
    assert rows[f"observe: {far}"]["value"] == pytest.approx(2)
    assert rows[f"observe: {far}"]["pass"] is True
    assert rows[f"on: {far}"]["pass"] is False  # the loss, and the norms beyond all measure
    assert rows["observe: first step, figures that differ from without"]["pass"] is True
    assert rows["on: first step, figures that differ from without"]["value"] == 1
    assert rows["observe: steps with a gradient"]["value"] == 4
    assert rows["on: steps with a gradient"]["pass"] is False
    assert rows["observe: hand-overs written down"]["value"] == 9 / 4
    assert rows["on/without: seconds of step"]["value"] == 1
    assert f"without, again: {far}" not in rows
    assert rows["on: host memory, GiB, most"]["value"] == 3
    assert rows["observe: host memory"]["value"] is None
    assert tree.fromstring(written.with_suffix(".svg").read_text()).tag.endswith("svg")


def test_one_run_without_is_no_measure(capsys):
    beside = load("verl_beside")
    assert beside.later_steps(verl_run("on"), verl_run("without"), None)["value"] is None


def test_each_answer_has_a_seed_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    seeds = load("same_seeds")
    keys = [{"step": s, "sample_index": p, "rollout_n": n, "validate": False}
            for s in range(1, 6) for p in range(64) for n in range(4)]
    assert len({seeds.seed_of(key, {}) for key in keys}) == len(keys)

    async def run(self, sampling_params, trajectory, *, session_id):
        await asyncio.sleep(0)  # the others of the group begin before it looks
        return sampling_params["seed"]

    async def group(shared):
        return await asyncio.gather(*(
            seeds.seeded(run)(None, shared, keys[5], session_id=i) for i in range(4)))

    shared = {"temperature": 1.0}
    assert len(set(asyncio.run(group(shared)))) == 4
    assert shared == {"temperature": 1.0}


def test_the_leak_must_be_named_by_step_6(capsys):
    leak = load("leak_kept")
    at = f"leak_kept.py:{leak.made_at()}"
    text = f"[trainer rank 0] step 6: +512 MiB/step since step 2, {at}; " \
           "kept by list 'outputs' (6 items) in dict of Actor, leak_kept.py:40"
    kept = {"code": 0, "errors": "", "said": [text], "marks_us": []}
    clean = {"code": 0, "errors": "", "said": [], "marks_us": [900.0, 50.0, 9.0, 8.0]}
    assert all(row["pass"] is not False for row in leak.judge(kept, clean))
    for wrong in (text.replace("step 6", "step 7"), text.replace("'outputs'", "'others'"),
                  text.replace(at, "torch.py:1")):
        rows = leak.judge({**kept, "said": [wrong]}, clean)
        assert any(row["pass"] is False for row in rows)
    rows = leak.judge(kept, {**clean, "said": [text]})
    assert any(row["pass"] is False for row in rows)


def oom_result():
    """A run as it should be, of four tensors of 2 GiB beside a tenant of 35."""
    gib, site = 1 << 30, f"oom_said.py:{load('oom_said').made_at()} starve"
    error = {"class": "torch.OutOfMemoryError", "is_torchs": True, "ms": 3.0,
             "text": "CUDA out of memory. Tried to allocate 279.62 GiB. GPU 0 has 95 GiB free"}
    head = "[trainer] out of memory on GPU 0: torch asked for 280 GiB, 95 GiB of 140 GiB are free"
    account = {"own": [{"item": "live", "size_bytes": 8 * gib}], "tags": [],
               "others": [{"name": "rollout", "tags": [
                   {"name": "weights", "occupied_bytes": 35 * gib}]}],
               "unattributed_bytes": gib // 10}
    line = {"event": "oom", "account": account, "driver_used_bytes": 45 * gib,
            "sites": [{"where": site, "size_bytes": 8 * gib}]}
    return {"held_bytes": 35 * gib, "lines": [line, {**line, "account": None}],
            "said": [head, "  rollout", f"{head}; 2 times in 9 ms", f"{head}; 4 times in 30 ms"],
            "seen": {"plain": dict(error, text=error["text"].replace("95", "96")),
                     "errors": [dict(error) for _ in range(5)], "kept_bytes": 8 * gib,
                     "allocated_bytes": 8 * gib, "reserved_bytes": [9 * gib, 9 * gib]}}


def test_out_of_memory_as_it_should_be_passes(capsys):
    rows = load("oom_said").judge(oom_result())
    assert len(rows) == 10
    assert [row["pass"] for row in rows if row["target"] is not None] == [True] * 9


@pytest.mark.parametrize("spoil, name", [
    (lambda one: one["seen"]["errors"][1].update(is_torchs=False), "torch.OutOfMemoryError"),
    (lambda one: one["seen"]["errors"][1].update(text="other"), "texts of torch's error"),
    (lambda one: one["seen"].update(reserved_bytes=[0, 1 << 20]), "allocated on the card"),
    (lambda one: one["said"].append(one["said"][0]), "accounts said"),
    (lambda one: one["said"].pop(), "counts said"),
    (lambda one: one["lines"].pop(0), "who holds the card"),
    (lambda one: one["lines"][0]["account"].update(others=[]), "other tenant's tag"),
    (lambda one: one["lines"][0]["account"].update(own=[]), "live, by torch's count"),
    (lambda one: one["lines"][0].update(sites=[]), "line that holds most"),
    (lambda one: one["lines"][0]["account"].update(unattributed_bytes=1 << 30), "unattributed"),
    (lambda one: one.update(seen=None), "oom"),
])
def test_out_of_memory_that_is_told_wrongly_fails_its_row(capsys, spoil, name):
    result = oom_result()
    spoil(result)
    failed = [row["name"] for row in load("oom_said").judge(result) if row["pass"] is False]
    assert len(failed) == 1 and name in failed[0]


def test_samples_are_read_back():
    samples = load("memory_samples")
    assert samples.parsed("12.340 1000 77=400 78=0") == (12.34, 1000, {77: 400, 78: 0})
    assert samples.parsed("12.340 1000") == (12.34, 1000, {})


def test_offloading_is_asked_for_as_a_user_asks(monkeypatch):
    once = load("verl_once")
    options = types.SimpleNamespace(same=False, mode="on", offload=True, more=["a=b"])
    assert once.overrides(options) == [
        f"+ray_kwargs.ray_init.runtime_env.env_vars.{name}"
        for name in ("TIDEGATE=on", "TIDEGATE_OFFLOAD='1'")] + ["a=b"]


def test_the_machines_memory_is_watched_at_its_least(monkeypatch):
    once, done = load("verl_once"), threading.Event()
    seen = iter([100, 90, 40, 95])

    def free():
        left = next(seen, None)
        if left is None:
            done.set()
        return 99 if left is None else left

    monkeypatch.setattr(once, "free_bytes", free)
    with once.HostWatch(every_s=0.001) as watch:
        assert done.wait(20)
    assert watch.most_bytes == 60 and not watch.thread.is_alive()


# ---- offloading ----------------------------------------------------------------------------------

def moved(way, out_s, rss, **more):
    """Six rounds of 12 GiB; out_s: seconds of the first and of each later one."""
    size = 12 << 30
    return {"way": way, "bytes": size, "wrong": 0, "rounds": [[out_s[0], 0.25]] + [[out_s[1], 0.25]]
            * 5, "grown": {"VmRSS": int(rss * size), "VmPin": 0, "available": size}, **more}


def offloaded(**changed):
    ours = {**moved("tidegate", (1.0, 0.24), 1.001), "size_bytes": 12 << 30, "is_pinned": True,
            "plain_copies": [0.235, 0.24], "starved": {"said": "no", "stayed": True, "same": True},
            **changed}
    plain, pinned = moved("plain", (9.0, 8.0), 0.0), moved("pinned", (12.0, 0.235), 1.9)
    return by_name(load("offload").rows_of({"tidegate": ours, "plain": plain, "pinned": pinned}))


def test_offloading_is_measured_by_its_later_rounds(capsys):
    rows = offloaded()
    assert {name: row["pass"] for name, row in rows.items() if row["pass"] is not None} == {
        "offload: out, later rounds": True, "offload: back, later rounds": True,
        "offload: host memory": True, "offload: host memory, as the kernel has it": True,
        "offload: pinned": True, "offload: a load that lacks memory": True,
        **{f"{way}: tensors that came back otherwise": True
           for way in ("tidegate", "plain", "pinned")}}
    assert rows["offload: out, later rounds"]["value"] == pytest.approx(0.235 / 0.24)
    assert rows["offload: out, first round, beside plain"]["value"] == pytest.approx(9)
    assert rows["pinned: host memory"]["value"] == pytest.approx(1.9)


@pytest.mark.parametrize("changed, name", [
    (moved("tidegate", (0.1, 0.26), 1.001), "offload: out, later rounds"),
    (moved("tidegate", (0.1, 0.24), 1.03), "offload: host memory, as the kernel has it"),
    ({"size_bytes": 13 << 30}, "offload: host memory"),
    ({"is_pinned": False}, "offload: pinned"),
    ({"wrong": 1}, "tidegate: tensors that came back otherwise"),
    ({"starved": {"said": "no", "stayed": False, "same": True}},
     "offload: a load that lacks memory"),
    ({"starved": {"said": None, "stayed": True, "same": True}},
     "offload: a load that lacks memory"),
])
def test_offloading_that_misses_is_said(capsys, changed, name):
    assert [row["name"] for row in offloaded(**changed).values() if row["pass"] is False] == [name]


def test_losses_of_fsdp_that_differ_are_counted(capsys):
    alone = {"losses": ["1", "2", "3", "4"], "left": []}
    moved_ = {"losses": ["1", "2", "3", "5"], "left": [0.1]}
    rows = load("offload").fsdp_rows({"fsdp2": (alone, alone), "fsdp1": (alone, moved_)})
    assert [(row["value"], row["pass"]) for row in rows] == [(0, True), (1, False)]


def test_the_engines_that_were_carried_are_unpacked_once(tmp_path):
    unpacked = load("verl_once").unpacked
    for name, folder in (("vllm", "site"), ("verl_ray", "vr")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "one.py").write_text("")
        subprocess.run(["tar", "-C", tmp_path, "-cJf", tmp_path / f"{name}.tar.xz", folder],
                       check=True)
    (tmp_path / "verl_ray.tar.xz").rename(tmp_path / "later")
    place = unpacked(tmp_path, tmp_path / "place")
    assert sorted(path.name for path in place.iterdir()) == ["site"]
    (tmp_path / "later").rename(tmp_path / "verl_ray.tar.xz")
    (place / "site" / "one.py").write_text("mine")
    unpacked(tmp_path, place)
    assert (place / "vr" / "one.py").exists()
    assert (place / "site" / "one.py").read_text() == "mine"


# ---- vLLM beside itself --------------------------------------------------------------------------

class SleepingEngine:
    """An engine over numbers: what it is asked, and a card of 100 that a stranger shares."""

    def __init__(self, loses=False, first_ms=100.0):
        self.loses, self.first_ms = loses, first_ms
        self.needs, self.taken, self.tokens = 60, 0, [1, 2]
        self.asleep, self.slept = set(), 0
        self.content = True

    def stranger(self):
        def ask(request, *values):
            self.taken = 100 - values[0] if request == "take_all_but" else 0
            return self.taken, 1.0

        return types.SimpleNamespace(ask=ask)

    def ask(self, request, *values):
        beside = load("rollout_link")
        if request == "sleep":
            self.asleep = {"weights", "kv_cache"}
            self.content = values[0] == 1
            self.slept += 1
        if request == "load_weights":
            self.content = True
        if request == "wake" and self.taken + self.needs > 100:
            self.content = not self.loses
            raise beside.RolloutFailed("wake: TidegateWouldNotFit: wake needs 60")
        if request == "wake":
            self.asleep -= {values[0]} if values[0] else self.asleep
        answer = {"generate": self.tokens if self.content else [0], "free": 40}.get(request)
        return answer, self.first_ms if (request, self.slept) == ("sleep", 1) else 10.0


def beside(first_ms=100.0, loses=False, rounds=3):
    vllm = load("vllm_beside")
    vllm.LATE_S = 0
    engine = SleepingEngine(loses, first_ms)
    found = vllm.levels(engine, engine.tokens, rounds)
    found["lacks"] = vllm.lacks(engine, engine.stranger(), engine.tokens, engine.needs, 4)
    return found


def test_two_ways_of_sleeping_are_judged_side_by_side(capsys):
    rows = by_name(load("vllm_beside").rows_of(beside(1000.0, loses=True), beside()))
    assert rows["level 1: first sleep, own / ours"]["value"] == 10
    assert rows["level 2: wake kv_cache, ours / own"]["value"] == 1
    assert rows["ours: wakes that lacked memory, left all asleep and succeeded later"]["value"] == 4
    assert rows["own: tokens are the same after a wake that lacked memory"]["value"] == 0
    assert all(one["pass"] is not False for one in rows.values())


def test_an_engine_that_ends_is_the_last_of_its_rounds(capsys):
    vllm, engine = load("vllm_beside"), SleepingEngine()
    asked = engine.ask

    def ask(request, *values):
        if request == "free" and engine.taken:
            raise BrokenPipeError("gone")
        return asked(request, *values)

    engine.ask = ask
    found = vllm.lacks(engine, engine.stranger(), engine.tokens, engine.needs, 4)
    assert [(one["said"], one["tokens"]) for one in found] == [("gone", False)]


@pytest.mark.parametrize("spoil, name", [
    (lambda ours: ours["level 1"][0].update(sleep=300.0), "level 1: first sleep, own / ours"),
    (lambda ours: [one.update(wake=11.0) for one in ours["level 1"][:-2]],
     "level 1: wake, ours / own"),
    (lambda ours: [one.update(wake=11.0) for one in ours["level 1"][-2:]],
     "level 1: late wake, ours / own"),
    (lambda ours: ours["level 2"][2].update(tokens=False),
     "ours: rounds whose tokens are the same"),
    (lambda ours: ours["lacks"][1].update(said=None),
     "ours: wakes that lacked memory, left all asleep and succeeded later"),
    (lambda ours: ours["lacks"][1].update(woken_bytes=1),
     "ours: wakes that lacked memory, left all asleep and succeeded later"),
    (lambda ours: ours["lacks"][3].update(tokens=False),
     "ours: wakes that lacked memory, left all asleep and succeeded later")])
def test_what_falls_short_beside_vllm_fails_its_row(capsys, spoil, name):
    own, ours = beside(1000.0), beside()
    spoil(ours)
    rows = load("vllm_beside").rows_of(own, ours)
    assert [one["name"] for one in rows if one["pass"] is False] == [name]
