# SPDX-License-Identifier: Apache-2.0
"""`tidegate status`: what it tells of a demo that runs, of nobody, and of programs that stand
still."""

import ctypes
import json
import os
import re
import signal
import subprocess
import time

import jsonschema
import pytest

from conftest import DATA, MIB, ROOT, clean_env, run
from test_demo import SMALL, place, running, sides, wait_for  # noqa: F401 (fixtures)

GIB = 1024 * MIB
SCHEMA = json.loads((ROOT / "doc/schema/status-1.json").read_text(encoding="utf-8"))


@pytest.fixture()
def status(tidegate, place):  # noqa: F811
    """status(*args) -> Result"""
    return lambda *args, **kw: tidegate("status", *args, env={"TIDEGATE_DIR": str(place)}, **kw)


def answer_of(status):  # noqa: F811
    """The JSON object, as its schema has it."""
    answer = status("--json").json()
    jsonschema.validate(answer, SCHEMA)
    return answer


# ---- nobody there

def test_no_ledger(status, place):  # noqa: F811
    """Said, with the place; an answer, and nothing is made."""
    result = status()
    assert result.status == 0 and result.err == ""
    assert result.out == f"no program uses Tidegate on this machine (no ledger in {place})\n"
    answer = answer_of(status)
    assert not answer["ledger"] and answer["devices"] == answer["tenants"] == []
    assert not place.exists()


def test_nobody_any_more(tidegate, status, place):  # noqa: F811
    """After a run the ledger is there, and nobody in it."""
    env = {"TIDEGATE_DIR": str(place)}
    assert tidegate("demo", "--steps", "1", *SMALL, env=env).status == 0
    assert status().out == "no program uses Tidegate on this machine now\n"
    answer = answer_of(status)
    assert answer["ledger"] and answer["tenants"] == [] and answer["host_bytes"] == 0


@pytest.mark.slow
def test_many_runs_leave_room(tidegate, place):  # noqa: F811
    """Each run's device is a new one; the ledger's places for devices do not run out."""
    for _ in range(17):
        done = tidegate("demo", "--steps", "1", "--replay", DATA / "real/steady.pickle.xz", *SMALL,
                        env={"TIDEGATE_DIR": str(place)})
        assert done.status == 0, done.err


# ---- a demo that runs

def begun(running):  # noqa: F811
    """A demo of which both sides have joined and the first step is over."""
    child = running("--steps", "4000", *SMALL)
    child.stdout.readline()
    child.stdout.readline()
    return child


def still(child, is_still=True):
    """Stops or continues the supervisor and both sides, and waits until they are."""
    pids = [child.pid, *sides(child.pid)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP if is_still else signal.SIGCONT)
    if is_still:
        assert wait_for(lambda: all(" T " in open(f"/proc/{pid}/stat", encoding="utf-8").read()
                                    for pid in pids))
    return pids


def test_tenants_and_tags(running, status):  # noqa: F811
    """Names, roles, pids, and bytes that fit into the device."""
    child = begun(running)
    pids = still(child)
    answer = answer_of(status)
    device, = answer["devices"]
    assert device["total_bytes"] == 64 * MIB and device["name"]
    tenants = {tenant["name"]: tenant for tenant in answer["tenants"]}
    assert sorted(tenants) == ["rollout", "trainer"]
    assert sorted(tenant["pid"] for tenant in tenants.values()) == sorted(pids[1:])
    assert all(tenant["role"] == name and tenant["rank"] is None and not tenant["dead"]
               for name, tenant in tenants.items())
    assert {tag["name"] for tag in tenants["rollout"]["tags"]} == {"weights", "kv_cache"}
    awake = sum(tag["awake_bytes"] for tenant in tenants.values() for tag in tenant["tags"])
    assert 0 <= awake <= 64 * MIB
    still(child, False)


def test_text(running, status):  # noqa: F811
    """A line for the device, one for each tenant, and what nobody accounts for."""
    child = begun(running)
    seen = set()

    def both_states_are_seen():
        text = status().out
        for line in text.splitlines():
            seen.update(re.findall(r"^  (?:trainer|rollout)  .* pid \d+ .*(kv_cache asleep"
                                   r"|kv_cache \d|training asleep|training \d).*  as of ", line))
        assert re.search(r"^\S.* 64 MiB   used .*   free .* \(driver, .* ago\)$", text,
                         re.MULTILINE)
        assert re.search(r"^  unattributed ", text, re.MULTILINE)
        return len({word.split()[-1] == "asleep" for word in seen}) == 2

    assert wait_for(both_states_are_seen), seen
    assert child.poll() is None


@pytest.mark.slow
def test_quick_while_all_stand_still(tidegate, running, place):  # noqa: F811
    """It asks nobody and waits for nobody: 10 ms, the best of some tries on a busy machine, where
    starting a program at all may take longer."""
    child = begun(running)

    def timed(word):
        start = time.monotonic()
        done = subprocess.run([tidegate.program, word], capture_output=True,
                              env=clean_env(TIDEGATE_DIR=str(place)), check=False)
        assert done.returncode == 0
        return time.monotonic() - start, done.stdout

    best, start_alone = 1.0, 1.0
    for _ in range(5):
        still(child)
        for _ in range(5):
            start_alone = min(start_alone, timed("--version")[0])
            took, out = timed("status")
            best = min(best, took)
            assert b"rollout" in out
        still(child, False)
        time.sleep(0.02)
    assert best <= max(0.010, 3 * start_alone)


def test_waiter_is_told(running, status):  # noqa: F811
    """A sleeping side that stands still leaves the other one waiting: for what, since when."""
    child = begun(running)

    def one_waits():
        """Stops one side at a moment when the other needs its bytes."""
        pid = sides(child.pid)[0]
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.3)
        waiting = [t for t in answer_of(status)["tenants"] if t["waits_for"]]
        text = status().out
        os.kill(pid, signal.SIGCONT)
        if not waiting:
            time.sleep(0.01)
            return False
        tenant, = waiting
        wait = tenant["waits_for"]
        assert wait["bytes"] > 0 and 0 <= wait["since_s"] < 10
        assert f"next: {tenant['name']} waits for {wait['tag']} " in text
        assert f"next: wake {wait['tag']} " not in text
        return True

    assert wait_for(one_waits, 40)


# ---- programs with an allocator of their own

class Node:
    """Tenants of a device of 140 GiB that only a gauge here knows."""

    def __init__(self, library, place):
        from tidegate import abi
        self.abi, self.call, self.free_bytes = abi, library.call, 0
        self.ledger = ctypes.c_void_p()
        self.call("tg_ledger_open", str(place).encode(), ctypes.byref(self.ledger))
        self.gauge = abi.gauge_fn(self._ask)
        self.uuid = (ctypes.c_uint8 * 16)(*b"a card of tests")
        self.tenants = {}

    def _ask(self, _argument, free_bytes, total_bytes):
        free_bytes[0], total_bytes[0] = int(self.free_bytes), 140 * GIB
        return 0

    def join(self, name, rank=-1):
        params = self.abi.tg_tenant_params(
            name=name.encode(), rank=rank, uuid=self.uuid, device_name=b"H200",
            gauge=self.abi.tg_gauge(ask=self.gauge))
        tenant = ctypes.c_void_p()
        self.call("tg_ledger_join", self.ledger, ctypes.byref(params), ctypes.byref(tenant))
        self.tenants[name] = tenant
        return tenant

    def declare(self, name, tag, gib, returnable_gib=0.0):
        self.call("tg_tenant_declare", self.tenants[name], tag, int(gib * GIB),
                  int(returnable_gib * GIB))

    def put_to_sleep(self, name, tag, gib):
        size = int(gib * GIB)
        self.free_bytes += size
        self.call("tg_tenant_reserve", self.tenants[name], tag, size, 0)
        self.call("tg_tenant_commit", self.tenants[name], tag, size, 0)
        self.call("tg_tenant_give", self.tenants[name], tag, size, size)
        self.free_bytes -= size

    def note(self, name, mode, starting=0, seams=b""):
        note = self.abi.tg_tenant_note(mode=mode, is_starting=starting, seams=seams)
        self.call("tg_tenant_note", self.tenants[name], ctypes.byref(note))

    def measure(self, name, free_gib):
        self.free_bytes = int(free_gib * GIB)
        self.call("tg_tenant_measure", self.tenants[name])

    def close(self):
        for tenant in self.tenants.values():
            self.call("tg_tenant_leave", tenant)
        self.call("tg_ledger_close", self.ledger)


@pytest.fixture()
def node(library, place):  # noqa: F811
    """The trainer and the engine of the first minutes, between two turns."""
    made = Node(library, place)
    made.join("trainer", 0)
    made.join("sglang")
    made.declare("trainer", b"live", 21.2)
    made.declare("trainer", b"cached", 46.9, 46.3)
    made.declare("sglang", b"weights", 14.2)
    made.declare("sglang", b"stays", 3.1)
    made.put_to_sleep("sglang", b"kv_cache", 61)
    made.note("trainer", made.abi.MODE_OBSERVE, seams=b"verl 0.9.1: 4 of 4")
    made.note("sglang", made.abi.MODE_ON)
    made.measure("trainer", 54)
    yield made
    made.close()


def next_lines(status):  # noqa: F811
    """What the text tells of what comes next."""
    return [line for line in status().out.splitlines() if line.startswith("next: ")]


def test_first_minutes(node, status):  # noqa: F811
    """Mode, seams, live, cached, asleep, what is nobody's, and what comes next."""
    lines = status().out.splitlines()
    age = r"0\.\d s"
    for line, form in zip(lines, (
            rf"H200 140 GiB   used 86 GiB   free 54 GiB \(driver, {age} ago\)",
            r"  trainer rank 0   pid \d+  observe \(verl 0\.9\.1: 4 of 4\)  live 21\.2 GiB"
            rf"  cached 46\.9 GiB \(returnable 46\.3 GiB\)  as of {age}",
            r"  sglang           pid \d+  on  weights 14\.2 GiB  stays 3\.1 GiB"
            rf"  kv_cache asleep \(61 GiB\)  as of {age}",
            r"  unattributed 614 MiB",
            r"next: wake kv_cache needs 61 GiB, short by 7\.0 GiB; the trainer's cache "
            r"covers it")):
        assert re.fullmatch(form, line), line
    assert len(lines) == 5


def test_first_minutes_as_json(node, status):  # noqa: F811
    """The same in numbers."""
    answer = answer_of(status)
    device, = answer["devices"]
    wake, = device["wakes"]
    assert wake == {"tag": "kv_cache", "asleep_bytes": 61 * GIB, "short_bytes": 7 * GIB,
                    "returnable_bytes": int(46.3 * GIB)}
    trainer, sglang = answer["tenants"]
    assert trainer["mode"] == "observe" and trainer["seams"] == "verl 0.9.1: 4 of 4"
    assert sglang["mode"] == "on" and sglang["seams"] is None
    cached = trainer["tags"][1]
    assert cached["awake_bytes"] == int(46.9 * GIB)
    assert cached["returnable_bytes"] == int(46.3 * GIB)
    assert trainer["asked_bytes"] == 0 and not trainer["starting"]
    assert device["unattributed_bytes"] == pytest.approx(0.6 * GIB, abs=8)


def test_what_comes_next(node, status):  # noqa: F811
    """Who covers what is short: nobody, one, some of it, all together."""
    node.measure("trainer", 61)
    assert next_lines(status) == ["next: wake kv_cache needs 61 GiB, free now"]
    node.measure("trainer", 1)
    short = "next: wake kv_cache needs 61 GiB, short by 60 GiB; "
    assert next_lines(status) == [short + "caches cover 46.3 GiB of it"]
    node.declare("sglang", b"cached", 14, 14)
    assert next_lines(status) == [short + "the caches together cover it"]
    node.declare("sglang", b"cached", 0)
    node.declare("trainer", b"cached", 46.9, 0)
    assert next_lines(status) == [short + "no cache covers it"]


def test_one_line_for_a_name(node, status):  # noqa: F811
    """Who sleeps under one name is woken as one; what is awake is no line."""
    node.join("engine two")
    node.put_to_sleep("engine two", b"kv_cache", 9)
    node.put_to_sleep("engine two", b"drafts", 1)
    node.measure("trainer", 54)
    assert next_lines(status) == [
        "next: wake kv_cache needs 70 GiB, short by 16 GiB; the trainer's cache covers it",
        "next: wake drafts needs 1.0 GiB, free now"]


def test_not_measured_not_foretold(library, status, place):  # noqa: F811
    """Nobody has asked the driver: nothing is said of what is free."""
    made = Node(library, place)
    made.call("tg_tenant_give", made.join("sglang"), b"kv_cache", 0, GIB)
    assert "H200   not measured yet" in status().out and not next_lines(status)
    assert answer_of(status)["devices"][0]["wakes"] == []
    made.close()


def test_start_and_request(node, status):  # noqa: F811
    """Who starts up, and who was asked and has not served it yet."""
    node.note("sglang", node.abi.MODE_ON, starting=1)
    node.call("tg_tenant_ask", node.tenants["sglang"], 7 * GIB, ctypes.byref(ctypes.c_uint32()))
    _, trainer, sglang, *_ = status().out.splitlines()
    assert "  asked for 7.0 GiB, not served yet  as of" in trainer
    assert "  on  starting up  weights" in sglang
    answers = {tenant["name"]: tenant for tenant in answer_of(status)["tenants"]}
    assert answers["trainer"]["asked_bytes"] == 7 * GIB and answers["sglang"]["starting"]
    node.call("tg_tenant_asked", node.tenants["trainer"])
    node.note("sglang", node.abi.MODE_OFF)
    _, trainer, sglang, *_ = status().out.splitlines()
    assert "asked for" not in trainer and "  off  weights" in sglang


def test_hostile_texts_are_harmless(node, status):  # noqa: F811
    """Seams are another program's words."""
    node.note("sglang", node.abi.MODE_NONE, seams=b"\x1b[31mred\n")
    assert "pid" in status().out and "\x1b" not in status().out
    assert "(?[31mred?)" in status().out
    assert answer_of(status)["tenants"][1]["mode"] is None


# ---- live

def test_live_lines(tidegate, running, place):  # noqa: F811
    """Without a terminal: one JSON object a second, until it is interrupted."""
    begun(running)
    live = subprocess.Popen([tidegate.program, "status", "--json", "--live"], text=True,
                            stdout=subprocess.PIPE, env=clean_env(TIDEGATE_DIR=str(place)))
    for _ in range(2):
        jsonschema.validate(json.loads(live.stdout.readline()), SCHEMA)
    live.send_signal(signal.SIGINT)
    live.communicate(timeout=10)
    assert live.returncode == 0


# ---- trouble

@pytest.mark.parametrize("args, words", (
    (("--jsno",), ("maybe: --json?",)), (("all",), ("all",)), (("--live=yes",), ("--live",)),
))
def test_wrong_use(status, args, words):
    """A sentence and status 2."""
    result = status(*args)
    assert result.status == 2 and result.out == ""
    for word in words:
        assert word in result.err


def test_place_that_is_not_ours(tidegate, tmp_path):
    """Open to others: not believed."""
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "ledger").write_bytes(b"x" * 4096)
    result = tidegate("status", env={"TIDEGATE_DIR": str(folder)})
    assert result.status == 2 and str(folder) in result.err


def test_garbage_is_refused(tidegate, running, place):  # noqa: F811
    """A ledger of random bytes is no ledger; nothing crashes."""
    begun(running)
    name, = (p.name for p in place.iterdir() if not p.name.startswith("host-"))
    folder = place.parent / "garbage"
    folder.mkdir(mode=0o700)
    (folder / name).write_bytes(os.urandom(1 << 20))
    (folder / name).chmod(0o600)
    result = run(tidegate.program, "status", env={"TIDEGATE_DIR": str(folder)})
    assert result.status == 2 and len(result.err.splitlines()) == 1
