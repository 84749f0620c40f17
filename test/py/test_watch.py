# SPDX-License-Identifier: Apache-2.0
"""The watch over steps: growth seen, explained once, and nothing touched that is not ours."""

import json
import sys
import types

import jsonschema
import pytest
import toy_torch
from conftest import MIB, ROOT

from tidegate import (counters, errors, growing_sites, holders, library, observing, seams,
                      watching)
from tidegate.growth import Series

pytestmark = pytest.mark.usefixtures("library")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No settings, nothing said yet, no watch from another test."""
    for name in ("TIDEGATE", "TIDEGATE_OUT", "TIDEGATE_HISTORY", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(seams, "_said", set())
    monkeypatch.setattr(observing, "_lines", observing._Lines())
    monkeypatch.setattr(watching, "_watch", watching.Watch())
    # Machines that run tests are busy: what is found must not hang on their speed.
    monkeypatch.setattr(holders, "BUDGET_SECONDS", 60.0)
    real = holders.find_holder
    monkeypatch.setattr(holders, "find_holder",
                        lambda *args, **named: real(*args, budget_seconds=60.0, **named))


@pytest.fixture
def card(monkeypatch):
    one = toy_torch.Card()
    monkeypatch.setitem(sys.modules, "torch", toy_torch.make(one))
    return one


class Actor:
    """A program whose steps keep what they should let go."""

    def __init__(self, card, size_bytes=64 * MIB):
        self.card = card
        self.size_bytes = size_bytes
        self.weights = card.tensor(100 * MIB)
        self.outputs = []
        self.state = None

    def forward(self):
        return self.card.tensor(self.size_bytes)

    def update(self, keeps=True):
        if self.state is None:
            self.state = self.card.tensor(200 * MIB)
        logits = self.forward()
        if keeps:
            self.outputs.append(logits)


def line_of(text):
    lines = open(__file__, encoding="utf-8").read().splitlines()
    return "test_watch.py:" + str(next(i for i, line in enumerate(lines, 1) if text in line))


def run(actor, steps, keeps=True):
    for _ in range(steps):
        actor.update(keeps)
        watching.step()


# ---- growth in torch's memory


def test_growth_is_named_by_line_and_holder_by_step_six(card, capfd):
    run(Actor(card), 6)
    said = capfd.readouterr().err
    allocates, fills = line_of("return self.card.tensor"), line_of("self.outputs.append")
    assert said == (f"[trainer] step 6: +64 MiB/step since step 2, {allocates}; kept by list "
                    f"'outputs' (6 items) in dict of Actor, {fills}\n")


def test_history_is_on_from_growth_to_answer_only(card):
    actor = Actor(card)
    run(actor, 2)
    assert card.calls == [] and card.history is None
    run(actor, 1)
    assert card.history == "state"
    run(actor, 3)
    assert card.history is None
    assert [call for call in card.calls if call != "snapshot"] == [("record", "state"),
                                                                   ("record", None)]


def test_it_is_said_once(card, capfd):
    run(Actor(card), 40)
    assert capfd.readouterr().err.count("\n") == 1
    assert card.calls.count("snapshot") == 4


def test_growth_that_becomes_larger_is_news(card, capfd):
    actor = Actor(card, 16 * MIB)
    run(actor, 10)
    actor.size_bytes = 64 * MIB
    run(actor, 20)
    said = capfd.readouterr().err.splitlines()
    assert "+16 MiB/step" in said[0] and "+64 MiB/step" in said[1] and len(said) == 2


def test_no_growth_asks_nothing_of_torch(card, capfd):
    run(Actor(card), 30, keeps=False)
    assert card.calls == [] and capfd.readouterr().err == ""


def test_portions_that_vary_are_seen_as_early(card, capfd):
    actor = Actor(card)
    for size in (60, 50, 75, 55, 64, 71):
        actor.size_bytes = size * MIB
        actor.update()
        watching.step()
    said = capfd.readouterr().err
    assert said.startswith("[trainer] step 6: +") and "kept by list 'outputs'" in said


def test_warm_up_is_no_growth(card, capfd):
    actor = Actor(card)
    run(actor, 4)
    assert card.history == "state"
    run(actor, 10, keeps=False)
    assert card.history is None
    assert capfd.readouterr().err == ""


def test_a_fall_at_first_does_not_hide_growth(card, capfd):
    actor = Actor(card)
    loaded = card.tensor(2000 * MIB)
    watching.step()
    del loaded
    run(actor, 6)
    assert "+64 MiB/step since step 3" in capfd.readouterr().err


def test_a_local_of_a_running_function(card, capfd):
    kept = []
    for _ in range(6):
        kept.append(card.tensor(64 * MIB))
        watching.step()
    assert "kept by list (6 items) in a local of a running function" in capfd.readouterr().err


def test_the_site_s_files_are_looked_at_first(card, monkeypatch):
    asked = []
    monkeypatch.setattr(holders, "find_holder", lambda *_, files: asked.append(files) or
                        holders.Holder("native"))
    run(Actor(card), 6)
    assert len(asked) == 1 and asked[0][0] == __file__


def test_blocks_without_python_objects(card, capfd):
    actor = Actor(card)
    native = []
    for _ in range(6):
        native.append(card.alloc(64 * MIB))
        watching.step()
    assert "; no Python object: autograd or C++" in capfd.readouterr().err
    assert actor and native


def test_blocks_without_a_stack_have_no_line(card, capfd):
    actor = Actor(card)
    native = []
    for _ in range(6):
        actor.last = actor.forward()
        native.append(card.allocator.alloc(64 * MIB, None))
        watching.step()
    assert "since step 2, line not known; kept by" in capfd.readouterr().err
    assert native


def test_blocks_of_a_site():
    def block(address, line, state="active_allocated"):
        return {"address": address, "size": 512, "state": state,
                "frames": [{"filename": "a.py", "name": "f", "line": line}]}

    segment = {"address": 0, "device": 0, "blocks": [
        block(0, 1), block(512, 2), block(1024, 2, "inactive"), block(1536, 2), block(2048, 1)]}
    site = growing_sites.Site(1, 1.0, 1, "", (("a.py", "f", 2),), ("a.py", "f", 2))
    assert growing_sites.blocks_of(site, [segment], set()) == [(512, 512), (1536, 512)]
    assert growing_sites.blocks_of(site, [segment], {(512, 512)}) == [(1536, 512)]
    assert growing_sites.blocks_of(None, [segment], {(512, 512), (0, 512)}) == [
        (1536, 512), (2048, 512)]
    longer = site._replace(stack=(("a.py", "f", 2), ("a.py", "g", 9)))
    assert growing_sites.blocks_of(longer, [segment], set()) == [(512, 512), (1536, 512)]


def test_history_shows_in_what_was_recorded():
    assert not counters.has_history({"segments": [], "device_traces": [[{}]]})
    assert counters.has_history({"segments": [], "device_traces": [[], [{}, {}]]})
    assert counters.has_history({"segments": [{"blocks": [{"frames": [{}]}]}]})


# ---- the history of others


def test_history_of_others_is_read_and_left_on(card, capfd):
    card.record("all")
    run(Actor(card), 6)
    assert card.history == "all" and ("record", None) not in card.calls
    assert line_of("return self.card.tensor") in capfd.readouterr().err


def test_history_that_others_begin_meanwhile_is_theirs(card):
    actor = Actor(card)
    run(actor, 4)
    assert card.history == "state"
    card.record("all")
    run(actor, 10)
    assert card.history == "all"


def test_slow_snapshots_are_not_repeated(card, capfd, monkeypatch):
    card.record("all")
    ticks = types.SimpleNamespace(now=0.0)

    def slow():
        ticks.now += 5.0
        return toy_torch.Card.snapshot(card)

    monkeypatch.setattr(sys.modules["torch"].cuda.memory, "_snapshot", slow)
    monkeypatch.setattr(watching.time, "perf_counter", lambda: ticks.now)
    run(Actor(card), 8)
    assert card.calls.count("snapshot") == 2
    said = capfd.readouterr().err
    assert "line not known" in said and "+64 MiB/step" in said and card.history == "all"


def test_never_means_never(card, capfd, monkeypatch):
    monkeypatch.setenv("TIDEGATE_HISTORY", "never")
    run(Actor(card), 8)
    assert not [call for call in card.calls if call != "snapshot"]
    said = capfd.readouterr().err
    assert "line not known: TIDEGATE_HISTORY=never" in said
    assert "kept by list 'outputs' (6 items) in dict of Actor" in said


def test_a_torch_without_history_still_names_the_holder(card, capfd, monkeypatch):
    def refuse(*_, **__):
        raise RuntimeError("does not yet support recordHistory")

    monkeypatch.setattr(sys.modules["torch"].cuda.memory, "_record_memory_history", refuse)
    run(Actor(card), 6)
    assert "line not known; kept by list 'outputs'" in capfd.readouterr().err


def test_an_old_torch_tells_its_history_by_what_it_recorded(card):
    del sys.modules["torch"]._C._cuda_isHistoryEnabled
    card.record("all")
    kept = card.tensor(MIB)
    run(Actor(card), 6)
    assert card.history == "all" and kept


# ---- outside torch


def test_growth_outside_torch(card, capfd):
    actor = Actor(card)
    for _ in range(8):
        actor.update(keeps=False)
        card.outside += 32 * MIB
        watching.step()
    said = capfd.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("[trainer] step 6: +32 MiB a step outside torch since step 2")
    assert card.calls == []


def test_cache_that_grows_is_not_outside(card, capfd):
    actor = Actor(card)
    for number in range(10):
        actor.size_bytes = (32 + 32 * number) * MIB
        actor.update(keeps=False)
        watching.step()
    assert capfd.readouterr().err == ""


def test_a_slow_driver_is_asked_less_often(card):
    watch = watching.Watch(clock=iter(x * 1e-4 for x in range(1000)).__next__)
    asked = []
    found = counters.find()
    found.driver = lambda: asked.append(watch.step_number) or card.memory()
    watch.counters = found
    for _ in range(24):
        watch.mark(None, "program")
    assert asked == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24]


# ---- marks


def test_without_torch_nothing_happens(monkeypatch, capfd):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for _ in range(5):
        assert watching.step() is None
    assert capfd.readouterr().err == "" and "torch" not in sys.modules


@pytest.mark.parametrize("spoil", [
    lambda torch: setattr(torch.version, "hip", "6.0"),
    lambda torch: setattr(torch.cuda, "is_initialized", lambda: False),
    lambda torch: delattr(torch, "cuda"),
    lambda torch: delattr(torch._C, "_cuda_memoryStats"),
])
def test_other_torches_are_left_alone(card, spoil, capfd):
    spoil(sys.modules["torch"])
    run(Actor(card), 8)
    assert card.calls == [] and capfd.readouterr().err == ""


def test_cuda_that_starts_later_is_seen(card, capfd):
    torch = sys.modules["torch"]
    torch.cuda.is_initialized = lambda: False
    watching.step()
    torch.cuda.is_initialized = lambda: True
    run(Actor(card), 6)
    assert "step 6" in capfd.readouterr().err


@pytest.mark.parametrize("reserved, with_context, device", [
    ([0, 0, 5, 1], [0, 2, 3], 2), ([0, 9, 5, 1], [0, 2, 3], 2), ([0, 0, 0, 0], [0, 1], 1),
    ([0, 0, 0, 0], [], 1)])
def test_the_device_that_is_used_is_found_from_any_thread(card, reserved, with_context, device):
    torch = sys.modules["torch"]
    torch.cuda.device_count = lambda: 4
    torch._C._cuda_getDevice = lambda: 1
    torch._C._cuda_hasPrimaryContext = lambda index: index in with_context
    torch._C._cuda_memoryStats = lambda index: {
        name: {"all": {"current": reserved[index]}}
        for name in ("allocated_bytes", "reserved_bytes", "active_bytes", "inactive_split_bytes")}
    assert counters.find().device == device


def test_what_torch_raises_ends_the_watch_with_one_line(card, capfd):
    def fail(_device):
        raise RuntimeError("CUDA error: an illegal memory access")

    sys.modules["torch"]._C._cuda_memoryStats = fail
    run(Actor(card), 5)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "illegal memory access" in said


def test_a_failure_in_the_middle_ends_our_history(card, capfd):
    actor = Actor(card)
    run(actor, 4)
    assert card.history == "state"

    def fail():
        raise RuntimeError("no snapshot now")

    sys.modules["torch"].cuda.memory._snapshot = fail
    run(actor, 3)
    assert card.history is None and capfd.readouterr().err.count("\n") == 1


def test_the_nearest_source_counts(card):
    watch = watching._watch
    for _ in range(3):
        watching.step(source="optimizer")
    assert watch.step_number == 3
    watching.step(source="verl")
    watching.step(source="optimizer")
    assert len(watch.live) == 1
    watching.step(7)
    watching.step(source="verl")
    assert (watch.step_number, len(watch.live)) == (7, 1)


def test_a_step_that_goes_back_begins_anew(card):
    watch = watching._watch
    for number in (5, 6, 7):
        watching.step(number)
    watching.step(1)
    assert (watch.step_number, len(watch.live)) == (1, 1)


def test_a_mark_inside_a_mark_is_ignored(card):
    read = sys.modules["torch"]._C._cuda_memoryStats

    def again(device):
        watching.step()
        return read(device)

    sys.modules["torch"]._C._cuda_memoryStats = again
    watching.step()
    assert watching._watch.step_number == 1


def test_forked_children_mark_nothing(card, monkeypatch):
    run(Actor(card), 2)
    monkeypatch.setattr(watching.os, "getpid", lambda: 1)
    watching.step()
    assert len(watching._watch.live) == 2


@pytest.mark.parametrize("number", [
    "3", 1.5, float("nan"), -5, 1 << 63, 10 ** 5000, [],
    type("Evil", (), {"__index__": lambda self: 1 // 0, "__repr__": lambda self: 1 // 0})()],
    ids=lambda number: type(number).__name__)
def test_a_number_that_is_none_is_said_once_and_the_step_counted(card, capfd, number):
    for _ in range(4):
        watching.step(number, source="nobody")
    assert watching._watch.step_number == 4
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "takes a whole number from 0 to 2**63 - 1" in said


def test_a_number_of_another_type_is_taken(card, capfd):
    class Number:
        def __init__(self, value):
            self.value = value

        def __index__(self):
            return self.value

    watching.step(Number(7))
    assert type(watching._watch.step_number) is int and watching._watch.step_number == 7
    assert capfd.readouterr().err == ""


def test_optimizers_mark_steps_where_asked(card):
    hooks = []
    optimizer = types.SimpleNamespace(register_step_post_hook=lambda hook: hooks.append(hook) or 5)
    assert watching.follow(optimizer) == 5
    hooks[0](optimizer, (), {})
    assert watching._watch.step_number == 1
    assert watching.SOURCES[watching._watch.source] == "optimizer"


# ---- lines


SCHEMA = json.loads((ROOT / "doc/schema/observe-1.json").read_text())


def lines_of(folder):
    (path,) = folder.iterdir()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        jsonschema.validate(line, SCHEMA)
    return found


def test_one_line_a_step(card, tmp_path, monkeypatch):
    monkeypatch.setenv("TIDEGATE_OUT", str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    card.outside = 50 * MIB
    run(Actor(card), 7)
    lines = lines_of(tmp_path)
    assert [line["step"] for line in lines] == list(range(1, 8))
    assert all(line["rank"] == 3 and line["event"] == "step" for line in lines)
    first, last = lines[0], lines[-1]
    assert first["allocated_bytes"] == (100 + 200 + 64) * MIB
    assert first["reserved_bytes"] + 50 * MIB == first["driver_used_bytes"]
    assert first["growth"] is None and lines[1]["growth"] is None
    assert lines[2]["growth"]["bytes_per_step"] == 64 * MIB and lines[2]["growth"]["sites"] == []
    assert last["growth"]["sites"][0]["stack"][0]["function"] == "forward"
    assert last["growth"]["since_step"] == 2 and last["growth"]["sites"][0]["first_step"] == 4
    assert last["holder"]["text"].startswith("list 'outputs' (6 items)")


def test_without_the_library_lines_go_on(card, tmp_path, monkeypatch, capfd):
    def missing(*_):
        raise errors.LibraryMissing(0, "libtidegate.so cannot be used")

    monkeypatch.setattr(library, "functions", missing)
    monkeypatch.setenv("TIDEGATE_OUT", str(tmp_path))
    run(Actor(card), 6)
    assert len(lines_of(tmp_path)) == 6 and card.history is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "libtidegate.so cannot be used" in said


# ---- the ledger


MARKED = f"""
import json, os, sys
sys.path[:0] = [{str(ROOT / "test")!r}, {str(ROOT / "test/py")!r}]
import tidegate, toy_torch
from tidegate import card, devices, tenancy, watching
toy = toy_torch.Card()
sys.modules["torch"] = toy_torch.make(toy)
device = devices.device("host:capacity=64MiB,name=watch")
card.Card.device = lambda self: device
MIB = 1 << 20
kept = [toy.tensor(40 * MIB), toy.tensor(24 * MIB), toy.tensor(2 * MIB)]
kept.pop(1)
ticks = iter(x * 0.3 for x in range(1000))
watching._watch = watching.Watch(clock=lambda: next(ticks))
def tags():
    return [[tag.name, tag.occupied_bytes // MIB, tag.returnable_bytes // MIB]
            for tenant in tidegate.status().tenants for tag in tenant.tags]
"""


@pytest.mark.parametrize("mode", ["observe", "on"])
def test_the_ledger_is_told_once_a_second(python, mode):
    result = python(MARKED + """
tidegate.step()
print(json.dumps([tags(), tidegate.status().devices[0].total_bytes // MIB]))
kept.append(toy.tensor(8 * MIB))
seen = []
for _ in range(4):
    tidegate.step()
    seen.append(tags()[0][1])
print(json.dumps(seen))
""", TIDEGATE=mode)
    assert result.err == ""
    (first, total), later = map(json.loads, result.out.splitlines())
    # The 18 MiB beside a live tensor are cached, and nobody can have them.
    assert total == 64
    assert first == [["live", 42, 0], ["cached", 42, 24]]
    # A mark reads the clock three times, 0.3 s each: the next second begins with the third.
    assert later == [42, 50, 50, 50]


def test_with_the_mode_off_no_ledger_is_touched(python, tmp_path):
    result = python(MARKED + "tidegate.step(); print(tags())")
    assert (result.out, result.err) == ("[]\n", "")


@pytest.mark.parametrize("mode, left", [("on", 60), ("observe", 84)])
def test_what_a_peer_asks_for_is_given_at_a_mark(python, mode, left):
    result = python(MARKED + """
tidegate.step()
child = os.fork()
if child == 0:
    os.environ["TIDEGATE_NAME"] = "rollout"
    tenancy.tenant(devices.device("host:capacity=64MiB,name=watch")).ask(20 * MIB)
    os._exit(0)
os.waitpid(child, 0)
for _ in range(4):
    tidegate.step()
print(toy.allocator.reserved() // MIB)
""", TIDEGATE=mode)
    assert int(result.out) == left
    assert ("reclaim for a peer that asked: needed 20.0" in result.err) == (mode == "on")


def test_while_a_peer_starts_up_its_request_stands(python):
    result = python(MARKED + """
tidegate.step()
reader, writer = os.pipe()
done, end = os.pipe()
child = os.fork()
if child == 0:
    os.environ["TIDEGATE_NAME"] = "rollout"
    peer = tenancy.tenant(devices.device("host:capacity=64MiB,name=watch"))
    peer.begin(peer, tenancy.abi.START_UP)
    peer.ask(20 * MIB)
    os.write(writer, b"x")
    os.read(done, 1)
    os._exit(0)
os.read(reader, 1)
seen = []
for _ in range(4):
    tidegate.step()
asked = next(one.asked_bytes for one in tidegate.status().tenants if one.name == "trainer")
seen.append([toy.allocator.reserved() // MIB, asked // MIB])
os.write(end, b"x")
os.waitpid(child, 0)
for _ in range(4):
    tidegate.step()
seen.append(toy.allocator.reserved() // MIB)
print(json.dumps(seen))
""", TIDEGATE="on")
    assert json.loads(result.out) == [[84, 20], 60], result.err


# ---- what holds most now


def test_lines_that_hold_most_are_told_with_what_is_live(card):
    card.record("state")
    kept = [card.tensor(40 * MIB), card.tensor(64 * MIB)]
    kept += [card.tensor(30 * MIB) for _ in range(3)]
    card.free(card.alloc(500 * MIB))
    found = growing_sites.held(card.snapshot()["segments"])
    assert [(site.size_bytes // MIB, site.block_count) for site in found] == [(104, 2), (90, 3)]
    lines = [line_of("kept = [card.tensor(40 * MIB)"), line_of("kept += [card.tensor(30")]
    assert [site.where.split()[0] for site in found] == lines
    assert found[0].stack[0][1] == "test_lines_that_hold_most_are_told_with_what_is_live"
    card.record(None)
    kept.append(card.tensor(700 * MIB))
    assert len(growing_sites.held(card.snapshot()["segments"])) == 2
    assert growing_sites.held([]) == []


# ---- series


def test_series_asks_only_where_growth_may_show():
    series = Series(10)
    assert [series.add(i, 100) for i in range(8)] == [False] * 8
    assert not series.add(8, 109)
    assert series.add(9, 130)
    assert series.add(10, 140)
    assert not series.add(11, 100)
    assert not series.add(12, 120)
    assert series.add(13, 130)


def test_series_keeps_its_last_points():
    series = Series(1)
    for i in range(200):
        series.add(i, i)
    assert len(series) == 64 and series.steps[0] == 136
    assert series.judge().bytes_per_step == 1


def test_series_judges_from_a_step_on():
    series = Series(1)
    for i, value in enumerate((9000, 100, 200, 300, 400)):
        series.add(i, value)
    assert not series.judge().is_leak
    growth = series.judge(2)
    assert growth.is_leak and growth.bytes_per_step == 100 and growth.since_step == 2


def test_growth_below_the_least_is_none():
    series = Series(100)
    for i in range(8):
        series.add(i, i * 99)
    assert series.judge().kind == "steady"


def test_a_folder_that_cannot_be_written_is_said_once(card, tmp_path, monkeypatch, capfd):
    path = tmp_path / "out"
    path.write_text("")
    monkeypatch.setenv("TIDEGATE_OUT", str(path))
    run(Actor(card), 5, keeps=False)
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and f"TIDEGATE_OUT={path} cannot be written" in said
