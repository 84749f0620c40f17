# SPDX-License-Identifier: Apache-2.0
"""Who holds the memory when torch runs out of it: the words to the letter, told once, never in
torch's way. The toy of torch proves wiring; that torch itself calls, bench/card/oom_said.py shows
on a card."""

import json
import re
import sys

import jsonschema
import pytest

import fake_torch
import toy_torch
from conftest import ROOT
from tidegate import (accounts, card, errors, growing_sites, modes, oom_account, seams, tenancy,
                      torch_sources)
from tidegate.receipts import Item

SCHEMA = json.loads((ROOT / "doc/schema/observe-1.json").read_text())
GIB, MIB = 1 << 30, 1 << 20

BEGIN = f"""
import json, os, subprocess, sys
sys.path[:0] = [{str(ROOT / "test")!r}, {str(ROOT / "test/py")!r}]
import tidegate, toy_torch
from tidegate import card, devices, oom_account, tenancy
DEVICE = "host:capacity=256MiB,name=oom"
toy = toy_torch.Card(capacity=256 << 20)
sys.modules["torch"] = torch = toy_torch.make(toy)
device = devices.device(DEVICE)
card.Card.device = lambda self: device
card.Card.process_bytes = lambda self: toy.allocator.reserved() + own + (6 << 20)
toy.outside = 0
own = 0
MIB = 1 << 20
def run_out(size):
    try:
        toy.run_out(size)
    except MemoryError as problem:
        return str(problem)
"""

WHOLE = BEGIN + """
toy.record("state")
def forward():
    return toy.tensor(40 * MIB)
kept = [forward(), forward(), toy.tensor(24 * MIB), toy.tensor(2 * MIB)]
kept.pop(2)
PEER = '''
import os, sys, tidegate
from tidegate import devices, tenancy
tag = tidegate.tag("weights", device=sys.argv[1])
block = tag.alloc(int(sys.argv[2]) << 20)
cache = tidegate.tag("kv_cache")
more = cache.alloc(8 << 20)
tidegate.sleep("kv_cache")
print("there", flush=True)
sys.stdin.read() if sys.argv[3] == "lives" else os.kill(os.getpid(), 9)
'''
def peer(name, size, how):
    environment = dict(os.environ, TIDEGATE_NAME=name)
    environment.pop("RANK", None)
    process = subprocess.Popen([sys.executable, "-c", PEER, DEVICE, str(size), how], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
    assert process.stdout.readline() == "there\\n"
    return process
tag = tidegate.tag("state", device=DEVICE)
block, own = tag.alloc(12 * MIB), 12 * MIB
living = peer("sglang tp 0", 20, "lives")
dead = peer("rollout", 4, "dies")  # nobody has settled it yet
dead.wait()
# The driver of torch is the toy: it has what the host device has of others, and 3 MiB of nobody's.
toy.outside = 6 * MIB + own + 20 * MIB + 4 * MIB + 3 * MIB
print(run_out(200 * MIB), living.pid, toy.allocator.reserved() // MIB, flush=True)
"""


def line_of(text):
    return next(at for at, line in enumerate(WHOLE.splitlines(), 1) if text in line)


def test_the_account_to_the_letter(python, tmp_path):
    result = python(WHOLE, TIDEGATE="observe", RANK="3", TIDEGATE_OUT=str(tmp_path / "out"))
    assert result.status == 0, result.err
    text, pid, reserved = re.fullmatch(r"(.*bytes) (\d+) (\d+)\n", result.out).groups()
    assert text == f"CUDA out of memory. Tried to allocate {200 * MIB} bytes"
    assert reserved == "124"
    assert result.err.splitlines() == [
        "[trainer rank 3] out of memory on GPU 0: torch asked for 200 MiB, 87 MiB of 256 MiB are "
        "free",
        "  trainer rank 3, this process  live 82 MiB  pinned by a live neighbour 18 MiB  "
        "cached 24 MiB  context and libraries 6.0 MiB  state 12 MiB",
        f"  sglang tp 0  pid {pid}  observe  weights 20 MiB  kv_cache asleep (8.0 MiB)",
        "  rollout  dead; held 4.0 MiB when it died (orphaned)",
        "  unattributed 3.0 MiB",
        f"  <string>:{line_of('return toy.tensor(40')} forward (library) holds 80 MiB in 2 blocks",
        f"  <string>:{line_of('kept = [forward()')} <module> (library) holds 2.0 MiB in 1 block",
    ]


def test_the_line_that_is_written_is_as_the_schema_has_it(python, tmp_path):
    out = tmp_path / "out"
    assert python(WHOLE + "run_out(100 * MIB); run_out(50 * MIB)", TIDEGATE="on",
                  TIDEGATE_OUT=str(out)).status == 0
    (path,) = out.iterdir()
    first, second = map(json.loads, path.read_text().splitlines())
    for line in (first, second):
        jsonschema.validate(line, SCHEMA)
    assert first["event"] == "oom" and first["asked_bytes"] == 200 * MIB
    assert first["free_bytes"] == 87 * MIB and first["driver_used_bytes"] == 169 * MIB
    found = first["account"]
    total = sum(item["size_bytes"] for item in [*found["own"], *found["tags"], *found["others"]])
    assert total + found["unattributed_bytes"] == first["driver_used_bytes"]
    assert [(one["name"], one["dead"]) for one in found["others"]] == [
        ("sglang tp 0", False), ("rollout", True)]
    assert [site["size_bytes"] // MIB for site in first["sites"]] == [80, 2]
    assert (second["count"], second["account"], second["sites"]) == (2, None, [])


def test_lines_that_hold_most_are_named_where_history_is_on(monkeypatch, capfd, in_process):
    in_process.record("state")
    kept = [in_process.tensor(40 * MIB) for _ in range(2)]
    oom_account.attach()
    with pytest.raises(MemoryError):
        in_process.run_out(GIB)
    lines = capfd.readouterr().err.splitlines()
    assert kept and re.fullmatch(r"  test_oom_account\.py:\d+ \S+ holds 80 MiB in 2 blocks",
                                 lines[-1]), lines
    assert in_process.calls.count("snapshot") == 1


# ---- in this process ----------------------------------------------------------------------------

@pytest.fixture
def in_process(library, monkeypatch):
    """A toy card in this process, in mode observe, with nothing attached or said yet."""
    toy = toy_torch.Card()
    monkeypatch.setitem(sys.modules, "torch", toy_torch.make(toy))
    monkeypatch.setattr(modes, "_mode", "observe")
    monkeypatch.setattr(seams, "_said", set())
    monkeypatch.setattr(oom_account, "_observer", oom_account.Observer())
    monkeypatch.setattr(oom_account, "_attached_to", None)
    monkeypatch.setattr(card.Card, "device", lambda self: None)
    for name in ("RANK", "LOCAL_RANK", "TIDEGATE_OUT", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    accounts._blocks.clear()
    accounts._outside.clear()
    return toy


def test_a_retry_loop_is_one_account_and_lines_with_counts(in_process, capfd, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(oom_account.time, "monotonic", lambda: now[0])
    oom_account.attach()
    for at in range(5):
        now[0] = 100.0 + at
        with pytest.raises(MemoryError):
            in_process.run_out((64 >> at) * MIB)
    assert capfd.readouterr().err.splitlines() == [
        "[trainer] out of memory on GPU 0: torch asked for 64 MiB, 8.0 GiB of 8.0 GiB are free",
        "  trainer, this process",
        "  unattributed 0 B",
        "[trainer] out of memory on GPU 0: torch asked for 32 MiB, 8.0 GiB of 8.0 GiB are free; "
        "2 times in 1.0 s",
        "[trainer] out of memory on GPU 0: torch asked for 8.0 MiB, 8.0 GiB of 8.0 GiB are free; "
        "4 times in 3.0 s"]


def test_bursts_are_bounded_in_a_process_and_in_time():
    bursts = oom_account.Bursts()
    assert [bursts.meet(at) for at in range(9)] == [1, 2, 0, 4, 0, 0, 0, 8, 0]
    assert [bursts.meet(at) for at in (100.0, 160.0, 220.0, 280.1)] == [1, 2, 0, 1]
    told = [bursts.meet(1000.0 * at) for at in range(1, 30)]
    assert told.count(1) == oom_account.ACCOUNTS_MAX - 3
    assert len([one for one in told if one > 1]) <= 5


def test_with_the_mode_off_nothing_is_attached_and_what_was_is_silent(in_process, capfd,
                                                                      monkeypatch):
    monkeypatch.setattr(modes, "_mode", "off")
    oom_account.attach()
    assert in_process.observers == []
    modes.set_mode("on")
    assert len(in_process.observers) == 1
    modes.set_mode("off")
    with pytest.raises(MemoryError):
        in_process.run_out(MIB)
    assert capfd.readouterr().err == ""


def test_it_is_attached_once_and_not_before_cuda_starts(in_process):
    torch = sys.modules["torch"]
    torch.cuda.is_initialized = lambda: False
    oom_account.attach()
    assert in_process.observers == []
    torch.cuda.is_initialized = lambda: True
    oom_account.attach()
    oom_account.attach()
    assert len(in_process.observers) == 1


def test_a_torch_that_tells_nobody_is_said_once(in_process, capfd):
    def refuse(_observer):
        raise RuntimeError("CUDAPluggableAllocator does not yet support it")

    sys.modules["torch"]._C._cuda_attach_out_of_memory_observer = refuse
    for _ in range(3):
        oom_account.attach()
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "does not yet support it" in said


def test_what_goes_wrong_inside_is_not_torchs_error(in_process, capfd, monkeypatch):
    def fail(*_arguments, **_named):
        raise ValueError("no account")

    monkeypatch.setattr(accounts, "account", fail)
    oom_account.attach()
    for _ in range(2):
        with pytest.raises(MemoryError):
            in_process.run_out(MIB)
    assert capfd.readouterr().err.count("who holds the memory cannot be told: no account") == 1


def test_an_error_within_the_account_is_left_alone(in_process, capfd, monkeypatch):
    real = accounts.account

    def nested(*arguments, **named):
        with pytest.raises(MemoryError):
            in_process.run_out(MIB)
        return real(*arguments, **named)

    monkeypatch.setattr(accounts, "account", nested)
    oom_account.attach()
    with pytest.raises(MemoryError):
        in_process.run_out(2 * MIB)
    assert capfd.readouterr().err.count("out of memory") == 1


def test_sites_that_take_long_are_the_last(in_process, capfd, monkeypatch):
    now, asked = [0.0], []
    monkeypatch.setattr(oom_account.time, "monotonic", lambda: now[0])

    def slow(_segments):
        asked.append(1)
        now[0] += 100.0
        return []

    monkeypatch.setattr(growing_sites, "held", slow)
    in_process.record("all")
    oom_account.attach()
    for _ in range(3):
        now[0] += 100.0
        with pytest.raises(MemoryError):
            in_process.run_out(MIB)
    assert len(asked) == 1 and capfd.readouterr().err.count("this process") == 3


def test_an_older_torch_with_history_on_is_not_asked_for_all_of_it(in_process, capfd):
    torch = sys.modules["torch"]
    torch.cuda.memory_snapshot = lambda: pytest.fail("the events come with it")
    in_process.record("all")
    oom_account.attach()
    with pytest.raises(MemoryError):
        in_process.run_out(MIB)
    assert "holds" not in capfd.readouterr().err


def test_without_the_library_torchs_part_is_told(in_process, capfd, monkeypatch):
    def missing(*_arguments):
        raise errors.LibraryMissing(0, "libtidegate.so cannot be used")

    monkeypatch.setattr("tidegate.library.functions", missing)
    kept = in_process.tensor(40 * MIB)
    oom_account.attach()
    with pytest.raises(MemoryError):
        in_process.run_out(GIB)
    assert kept and "  trainer, this process  live 40 MiB\n" in capfd.readouterr().err


# ---- words --------------------------------------------------------------------------------------

def tenant(name, size_bytes):
    tag = tenancy.TagStatus("live", size_bytes, 0, 0, 0, 0)
    return tenancy.TenantStatus(name, "", None, 7, 1, b"", "on", "", False, False, 0, None, 0.0,
                                (tag,))


def test_many_tenants_are_summed_up_and_a_limit_is_named(in_process):
    where = card.Card(2, fake_torch.make())
    short = oom_account.Shortage(where, 3 * GIB, 40 * GIB, 20 * GIB, 80 * GIB)
    others = tuple((tenant(f"n{size}", size * MIB), size * MIB) for size in range(1, 12))
    found = accounts.Account((Item("live", GIB),), (), others, 0)
    lines = oom_account.told(found, [])
    assert short.text == ("on GPU 2: torch asked for 3.0 GiB, 20.0 GiB of 80.0 GiB are free, and "
                          "this process may have 40.0 GiB")
    assert [line.split()[0] for line in lines[1:9]] == [f"n{size}" for size in range(11, 3, -1)]
    assert lines[9:] == ["3 more hold 6.0 MiB", "unattributed 0 B"]


# ---- who attaches it ----------------------------------------------------------------------------

@pytest.mark.parametrize("call", [
    'tidegate.tag("weights", device=DEVICE)', "tidegate.reclaim()", "tidegate.step()",
    "tenancy.tenant(device)"])
@pytest.mark.parametrize("mode, count", [("off", 0), ("observe", 1), ("on", 1)])
def test_whatever_joins_attaches_it(python, call, mode, count):
    result = python(BEGIN + f"{call}\n{call}\nprint(len(toy.observers))", TIDEGATE=mode)
    assert (result.out, result.err) == (f"{count}\n", "")


def test_a_tag_before_cuda_starts_leaves_it_to_the_next_step(python):
    result = python(BEGIN + """
torch.cuda.is_initialized = lambda: False
tidegate.tag("weights", device=DEVICE)
seen = [len(toy.observers)]
torch.cuda.is_initialized = lambda: True
tidegate.step()
print(seen + [len(toy.observers)])
""", TIDEGATE="on")
    assert (result.out, result.err) == ("[0, 1]\n", "")


def test_history_is_asked_without_its_events(in_process):
    in_process.record("all")
    asked = []
    sys.modules["torch"].cuda.memory_snapshot = lambda **named: asked.append(named) or []
    assert torch_sources.segments_without_events(card.at(0, sys.modules["torch"])) == []
    assert asked == [{"include_traces": False}]
