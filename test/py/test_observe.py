# SPDX-License-Identifier: Apache-2.0
"""What is written down of the program's own hand-overs, and that it never costs the program more
than its time."""

import gc
import json
import os
import random
import sys
import threading

import jsonschema
import pytest
import toy_torch
from conftest import MIB, ROOT

import tidegate
from tidegate import observing, seams
from tidegate.counters import Measure

pytestmark = pytest.mark.usefixtures("library")

SCHEMA = json.loads((ROOT / "doc/schema/observe-1.json").read_text())


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("TIDEGATE", "TIDEGATE_OUT", "TIDEGATE_HISTORY", "RANK", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(seams, "_said", set())
    monkeypatch.setattr(observing, "_said", {})
    monkeypatch.setattr(observing, "_lines", observing._Lines())


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "made" / "anew"
    monkeypatch.setenv("TIDEGATE_OUT", str(folder))
    return folder


def make_card(monkeypatch, **more):
    card = toy_torch.Card(**more)
    monkeypatch.setitem(sys.modules, "torch", toy_torch.make(card))
    return card


@pytest.fixture
def card(monkeypatch):
    return make_card(monkeypatch)


def lines(folder):
    (path,) = folder.iterdir()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for line in found:
        jsonschema.validate(line, SCHEMA)
    return found


def scatter(card, seed):
    """Tensors of many sizes, of which a random half is kept."""
    print(f"seed {seed}")
    dice = random.Random(seed)
    made = [card.tensor(dice.choice([4096, 3 * MIB, 11 * MIB, 64 * MIB, 150 * MIB]))
            for _ in range(60)]
    return [tensor for tensor in made if dice.random() < 0.4]


def aggressive_empty_cache(card):
    """As verl's helper: collects, empties, and does it again."""
    for _ in range(2):
        gc.collect()
        card.empty_cache()


# ---- what a hand-over gave


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_estimate_is_what_an_exact_handover_then_gives(monkeypatch, out, expandable, seed):
    card = make_card(monkeypatch, capacity=64 * toy_torch.GIB, expandable=expandable)
    kept = scatter(card, seed)
    card.allocator.free(card.alloc(77 * MIB), complete=False)
    estimate = observing.estimate()
    assert "empty_cache" not in card.calls
    receipt = tidegate.reclaim()
    assert receipt.gained_bytes > 500 * MIB and kept
    assert abs(estimate - receipt.gained_bytes) <= 0.05 * receipt.gained_bytes


def test_blocks_that_a_stream_still_uses_come_back_too(card):
    block = card.alloc(64 * MIB)
    card.allocator.free(block, complete=False)
    assert observing.estimate() == 64 * MIB


def test_pools_of_graphs_are_not_promised(card):
    card.allocator.free(card.allocator.alloc(64 * MIB, None, pool=(0, 1)))
    assert observing.estimate() == 0


def test_handover_is_measured_and_written(card, out, capfd):
    kept = scatter(card, 1)
    estimate, live = observing.estimate(), card.stats(0)["allocated_bytes"]["all"]["current"]
    result = observing.observe("aggressive_empty_cache", ["kv_cache"],
                               lambda: aggressive_empty_cache(card) or "its result")
    assert result == "its result"
    (line,) = lines(out)
    assert line["event"] == "handover" and line["handover"] == "aggressive_empty_cache"
    assert line["tags"] == ["kv_cache"] and line["freed_bytes"] == 0
    assert line["torch_bytes"] == line["driver_bytes"] == line["exact_bytes"] == estimate
    assert line["allocated_bytes"] == live and kept
    assert line["driver_used_bytes"] == line["reserved_bytes"] == card.allocator.reserved()
    said = capfd.readouterr().err
    assert said.startswith("[trainer] aggressive_empty_cache for kv_cache: torch gave back ")
    assert "; an exact hand-over gives " in said and said.count("\n") == 1


def test_what_others_freed_meanwhile_is_the_drivers(card, out):
    card.outside = 500 * MIB

    def handover():
        card.outside = 0

    observing.observe("empty_cache", [], handover)
    (line,) = lines(out)
    assert (line["torch_bytes"], line["driver_bytes"]) == (0, 500 * MIB)


def test_garbage_that_was_freed_is_told(card, out):
    kept = [card.tensor(64 * MIB)]
    observing.observe("empty_cache", [], kept.clear)
    assert lines(out)[0]["freed_bytes"] == 64 * MIB


def test_handovers_alike_are_said_once(capfd):
    def give(reserved):
        zero = Measure(0, 0, 0, 80 << 30)
        observing.record_handover("empty_cache", [], Measure(0, reserved, 0, 80 << 30), zero, 0.1,
                                  None)

    for gib in (40, 41, 39, 20, 20, 42):
        give(gib << 30)
    assert capfd.readouterr().err.count("\n") == 3


def test_while_history_is_on_no_snapshot_is_taken(card, out):
    card.record("all")
    observing.observe("empty_cache", [], lambda: None)
    assert "snapshot" not in card.calls
    assert lines(out)[0]["exact_bytes"] is None


# ---- never in the program's way


def test_before_cuda_starts_nothing_is_measured(card, out, capfd):
    sys.modules["torch"].cuda.is_initialized = lambda: False
    assert observing.observe("empty_cache", [], lambda: 5) == 5
    assert not out.exists() and capfd.readouterr().err == ""


def test_without_torch_the_call_is_made(monkeypatch, out):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert observing.observe("empty_cache", [], lambda: 5) == 5


def test_what_the_handover_raises_is_raised(card, out):
    with pytest.raises(ZeroDivisionError):
        observing.observe("empty_cache", [], lambda: 1 // 0)


def test_what_torch_raises_is_said_once(card, out, capfd):
    def fail(_device):
        raise RuntimeError("sticky")

    sys.modules["torch"]._C._cuda_memoryStats = fail
    for _ in range(3):
        assert observing.observe("empty_cache", [], lambda: 5) == 5
    assert capfd.readouterr().err.count("sticky") == 1


@pytest.mark.parametrize("bad", ["a file", "a folder below a file", "no leave"])
def test_a_folder_that_cannot_be_written_is_said_once(card, tmp_path, monkeypatch, capfd, bad):
    path = tmp_path / "out"
    if bad == "no leave":
        path = "/proc/nothing"
    else:
        path.write_text("")
        path = path / "below" if bad == "a folder below a file" else path
    monkeypatch.setenv("TIDEGATE_OUT", str(path))
    for _ in range(4):
        observing.observe("empty_cache", [], lambda: None)
    said = capfd.readouterr().err
    assert said.count(f"TIDEGATE_OUT={path} cannot be written") == 1


def test_a_full_disk_is_said_once(card, out, monkeypatch, capfd):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(observing.os, "write", full)
    for _ in range(3):
        observing.write_line("{}")
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "No space left on device" in said


# ---- the file


def test_each_line_is_one_write_at_the_end(card, out, monkeypatch):
    writes = []
    real = os.write
    monkeypatch.setattr(observing.os, "write",
                        lambda file, data: writes.append(data) or real(file, data))
    monkeypatch.setenv("RANK", "7")
    for _ in range(3):
        observing.observe("empty_cache", [], lambda: None)
    assert len(writes) == 3 and all(one.count(b"\n") == 1 for one in writes)
    path = out / f"rank7_pid{os.getpid()}.jsonl"
    with open(path, "a", encoding="utf-8") as other:
        other.write('{"event": "of another"}\n')
    observing.observe("empty_cache", [], lambda: None)
    assert [json.loads(line)["event"] for line in path.read_text().splitlines()] == [
        "handover", "handover", "handover", "of another", "handover"]


def test_a_forked_child_has_a_file_of_its_own(card, out, monkeypatch):
    observing.write_line('{"who": "parent"}')
    child = os.fork()
    if child == 0:
        observing.write_line('{"who": "child"}')
        os._exit(0)
    os.waitpid(child, 0)
    observing.write_line('{"who": "parent"}')
    found = {path.name: path.read_text() for path in out.iterdir()}
    assert found == {f"rank0_pid{os.getpid()}.jsonl": '{"who": "parent"}\n' * 2,
                     f"rank0_pid{child}.jsonl": '{"who": "child"}\n'}


def test_what_a_daemon_opens_in_its_place_is_left_alone(card, out, tmp_path):
    observing.write_line('{"before": 1}')
    theirs = tmp_path / "theirs"
    held = observing._lines.file
    os.close(held)
    fd = os.open(theirs, os.O_WRONLY | os.O_CREAT)
    assert fd == held
    observing.write_line('{"after": 1}')
    pid = os.fork()
    if pid == 0:
        observing._lines.file = held
        observing.write_line('{"child": 1}')
        os.write(fd, b"still open")
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(fd)
    assert theirs.read_bytes() == b"still open"
    (ours,) = out.glob(f"*pid{os.getpid()}.jsonl")
    assert ours.read_text() == '{"before": 1}\n{"after": 1}\n'


def test_a_line_in_the_middle_of_a_line_is_no_deadlock(card, out, monkeypatch):
    real, inner = os.write, ['{"inner": 1}']

    def write(file, data):
        while inner:
            observing.write_line(inner.pop())
        return real(file, data)

    monkeypatch.setattr(observing.os, "write", write)
    writer = threading.Thread(target=observing.write_line, args=['{"outer": 1}'], daemon=True)
    writer.start()
    writer.join(5)
    assert not writer.is_alive()
    (path,) = out.iterdir()
    assert path.read_text() == '{"inner": 1}\n{"outer": 1}\n'


def test_the_schema_refuses_what_it_does_not_say():
    line = {"schema": "tidegate.observe/1", "event": "step", "time": 1, "rank": None, "pid": 5,
            "driver_used_bytes": 1, "reserved_bytes": 1, "allocated_bytes": 1, "step": 1,
            "source": "program", "growth": None, "holder": None}
    jsonschema.validate(line, SCHEMA)
    for key in line:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({k: v for k, v in line.items() if k != key}, SCHEMA)
