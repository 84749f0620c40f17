# SPDX-License-Identifier: Apache-2.0
"""verl's trainers and an engine that is a tenant, on cards of a driver that stands in: what the
ledger has asleep is the target, and the leader of a replica asks the engine when every GPU of it
has room."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time
import types

import pytest

from verl_wheels import ROOT, needs_verl, start
from tidegate import abi
from tidegate.verl import books

pytestmark = [needs_verl, pytest.mark.usefixtures("library")]
DRIVER = pathlib.Path(os.environ.get("TIDEGATE_BIN", ROOT / "build/cli/tidegate")).resolve()
DRIVER = DRIVER.parents[1] / "test" / "standin"
MIB = 1 << 20

ENGINE = """
import sys, tidegate
tag = tidegate.tag("kv_cache", device="cuda:" + sys.argv[1])
blocks = [tag.alloc(int(sys.argv[2]))]
tidegate.sleep("kv_cache")
print("asleep", flush=True)
sys.stdin.read()
"""

STARTER = """
import sys, tidegate
with tidegate.starting("cuda:0"):
    print("starting", flush=True)
    sys.stdin.read()
"""


class Node:
    """Cards of 128 MiB, what runs on them, and a ledger of its own."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        self.driver = {"LD_LIBRARY_PATH": str(DRIVER),
                       "TIDEGATE_STANDIN": f"capacity=128MiB,context=4,devices=2,"
                                           f"name=verl{os.getpid()}"}

    def engine(self, card, asleep):
        """A process that has this much asleep on a card."""
        process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(card), str(asleep)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**os.environ, **self.driver, "PYTHONPATH": str(ROOT / "python"),
                 "TIDEGATE_DIR": str(self.folder / "ledger"), "TIDEGATE_NAME": "vllm"})
        self.stack.enter_context(process)
        assert process.stdout.readline() == "asleep\n"
        self.stack.callback(process.stdin.close)
        return process

    def starter(self):
        """A process that sizes itself by the first card's memory, until its stdin is closed."""
        process = subprocess.Popen(
            [sys.executable, "-c", STARTER], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self.driver, "PYTHONPATH": str(ROOT / "python"),
                 "TIDEGATE_DIR": str(self.folder / "ledger"), "TIDEGATE_NAME": "sglang"})
        self.stack.enter_context(process)
        assert process.stdout.readline() == "starting\n"
        self.stack.callback(process.stdin.close)
        return process

    def rank(self, number, live, cached, **more):
        """A trainer on the card of its number, which has joined and waits."""
        replica = {**more.pop("replica", {}), "calls": more.pop("calls", "resume")}
        (self.folder / f"rank{number}").mkdir()
        options = {"live": live, "cached": cached, **replica}
        process = start(self.folder, "0.9.1", "rank", options, mode="on", RANK=str(number),
                        **self.driver, **more)
        self.stack.enter_context(process)
        assert told(process) == "ready", process.stderr.read()
        return process

    def status(self):
        """What the node's ledger says."""
        done = subprocess.run(
            [os.environ.get("TIDEGATE_BIN", ROOT / "build/cli/tidegate"), "status", "--json"],
            env={**os.environ, "TIDEGATE_DIR": str(self.folder / "ledger")}, text=True,
            stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)


def told(process):
    """The next line that a rank tells."""
    line = process.stdout.readline()
    return json.loads(line)["told"] if line else None


def go(process):
    process.stdin.write("go\n")
    process.stdin.flush()


def end(process):
    """(what was told and when, the answer, what was said)"""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    *lines, answer = [json.loads(line) for line in out.splitlines()]
    return {line["told"]: line["at"] for line in lines}, answer, err


# ---- what a leader waits for ---------------------------------------------------------------------

def view_of(*ranks, asleep=0, free=0):
    """A view of the ledger: trainers (rank, note, is dead), each on a card of its own with an
    engine that has so much asleep."""
    view = abi.tg_node_view(device_count=len(ranks), tenant_count=2 * len(ranks))
    for index, (rank, note, is_dead) in enumerate(ranks):
        view.devices[index].uuid[0] = index + 1
        view.devices[index].free_bytes = free
        trainer, engine = view.tenants[2 * index], view.tenants[2 * index + 1]
        trainer.rank, trainer.device, trainer.is_dead = rank, index, is_dead
        trainer.seams, trainer.id = note.encode(), 2 * index + 1
        engine.rank, engine.device, engine.id, engine.tag_count = -1, index, 2 * index + 2, 1
        engine.tags[0].name, engine.tags[0].asleep_bytes = b"kv_cache", asleep
    return view


@pytest.mark.parametrize("rank, note, is_dead, free, late, full, unknown", [
    (1, "verl 0.9.1: 4 of 4, hand-over 7, run 00aa", 0, 64, [], [], []),
    (1, "verl 0.9.1: 4 of 4, hand-over 8, run 00aa", 0, 64, [], [], []),
    (1, "verl 0.9.1: 4 of 4, hand-over 6, run 00aa", 0, 64, [1], [], []),
    (1, "verl 0.9.1: 4 of 4, hand-over 7, run 00aa", 0, 63, [], [1], []),
    (1, "verl 0.9.1: 4 of 4, hand-over 7, run 00ab", 0, 64, [], [], [1]),
    (1, "verl 0.9.1: 4 of 4, hand-over 7, run 00aa", 1, 64, [], [], [1]),
    (2, "verl 0.9.1: 4 of 4, hand-over 7, run 00aa", 0, 64, [], [], [1]),
    (1, "", 0, 64, [], [], [1]),
])
def test_what_a_leader_lacks(rank, note, is_dead, free, late, full, unknown):
    awaited = books.Awaited([1], 7, ["kv_cache"])
    view = view_of((0, "verl 0.9.1: 4 of 4, hand-over 7, run 00aa", 0), (rank, note, is_dead),
                   asleep=64, free=free)
    assert books.lacking(view, awaited, "00aa") == books.Lacking(late, full, unknown)


# ---- several processes ---------------------------------------------------------------------------

@pytest.fixture
def node(tmp_path):
    with contextlib.ExitStack() as stack:
        yield Node(tmp_path, stack)


def test_what_sleeps_is_the_target(node):
    node.engine(0, 64 * MIB)
    trainer = node.rank(0, 8 * MIB, 80 * MIB)
    go(trainer)
    moments, answer, err = end(trainer)
    assert moments["gave"] < moments["asked"]
    assert answer["free"] >= 64 * MIB
    assert "reclaim for vllm kv_cache: needed 32.0, got 80.0 MiB (driver)" in err
    assert "1 pass, target met" in err


def test_the_leader_asks_when_the_slow_rank_has_made_room(node):
    for card in (0, 1):
        node.engine(card, 64 * MIB)
    replica = {"data_parallel_size": 2}
    ranks = [node.rank(number, 8 * MIB, 80 * MIB, replica=replica) for number in (0, 1)]
    go(ranks[0])
    while not any("hand-over 1," in (tenant["seams"] or "")
                  for tenant in node.status()["tenants"]):
        assert ranks[0].poll() is None
    # The leader has made room, and waits for the other, which nobody has woken yet.
    for _ in range(20):
        node.status()
    go(ranks[1])
    slow, _, _ = end(ranks[1])
    leader, answer, err = end(ranks[0])
    assert slow.keys() == {"gave"}  # it gives, and asks nobody
    assert leader["gave"] < slow["gave"] < leader["asked"]
    assert answer["raised"] is None
    assert "without waiting" not in err


def test_a_rank_that_never_comes_ends_at_the_deadline(node):
    replica = {"data_parallel_size": 2}
    ranks = [node.rank(number, 8 * MIB, 80 * MIB, replica=replica, TIDEGATE_WAIT_SECONDS="0.5")
             for number in (0, 1)]
    go(ranks[0])
    leader, answer, err = end(ranks[0])
    assert "asked" in leader and answer["raised"] is None
    assert err.count("rank 1 has not made room in 500 ms; the engine is asked") == 1
    ranks[1].kill()


@pytest.mark.parametrize("is_strict", [False, True])
def test_what_does_not_fit_is_accounted_for(node, is_strict):
    node.engine(0, 64 * MIB)
    trainer = node.rank(0, 60 * MIB, 30 * MIB, TIDEGATE_WAIT_SECONDS="0.2",
                        TIDEGATE_STRICT="1" if is_strict else "0")
    go(trainer)
    moments, answer, err = end(trainer)
    account = "wake kv_cache needs 64.0 MiB, 60.0 can be had: live 60.0"
    if is_strict:
        assert "asked" not in moments
        assert answer["raised"][0] == "TidegateWouldNotFit"
        assert account in answer["raised"][1]
    else:
        assert "asked" in moments
        assert answer["raised"] is None
        assert err.count(account) == 1
        assert "Try param_offload=True, or gpu_memory_utilization <= 0.66" in err


# ---- while a peer starts up ----------------------------------------------------------------------

STARTING = "[trainer rank 0] sglang is starting up, and nobody wakes or sleeps on its device " \
           "meanwhile: nothing is given back until it has started"


@pytest.mark.parametrize("calls", ["resume", "helper"])
def test_while_a_peer_starts_up_memory_stays_as_it_is(node, calls):
    """Nothing is given, not by verl's helper either; verl's own call goes out at the deadline."""
    node.engine(0, 64 * MIB)
    trainer = node.rank(0, 8 * MIB, 80 * MIB, calls=calls, TIDEGATE_WAIT_SECONDS="0.2")
    node.starter()
    go(trainer)
    moments, answer, err = end(trainer)
    assert moments.keys() == {"asked" if calls == "resume" else "called"}
    assert answer["free"] == 32 * MIB
    assert err.splitlines().count(STARTING) == 1


@pytest.mark.parametrize("calls", ["resume", "helper"])
def test_a_start_up_that_ends_is_waited_for(node, calls):
    node.engine(0, 64 * MIB)
    trainer = node.rank(0, 8 * MIB, 80 * MIB, calls=calls, TIDEGATE_WAIT_SECONDS="50")
    starter = node.starter()
    go(trainer)
    while trainer.stderr.readline().rstrip("\n") != STARTING:
        assert trainer.poll() is None
    for _ in range(20):  # time in which a seam that does not wait would have gone on
        node.status()
    begun = time.monotonic()
    starter.communicate()
    moments, answer, _ = end(trainer)
    assert begun < moments["gave"] < moments["asked" if calls == "resume" else "called"]
    assert answer["free"] >= 64 * MIB


@pytest.mark.parametrize("starts", ["", "sglang is starting up"])
def test_what_peers_ask_for_is_given_when_none_starts(monkeypatch, starts):
    given = []
    peer = types.SimpleNamespace(starting_peer=lambda: starts, asked=lambda: 7 * MIB)
    monkeypatch.setattr(books.process, "acts", lambda: True)
    monkeypatch.setattr(books, "tenant", lambda where: peer)
    monkeypatch.setattr(books, "publish", lambda where: None)
    monkeypatch.setattr(books.reclaiming, "run", lambda where, size: given.append(size))
    books.serve(None)
    assert given == ([] if starts else [7 * MIB])
