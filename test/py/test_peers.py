# SPDX-License-Identifier: Apache-2.0
"""bench/peers without a card: over the driver that stands in, over a driver and a torch of a few
lines, and what becomes of the figures."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from card_scripts import CARD, by_name, card_on_path, load  # noqa: F401
from conftest import MIB

PEERS = CARD.parent / "peers"
GIB = 1024 * MIB

# A driver that has the checkpoint calls: memory of the process, and a lock that it minds.
DRIVER = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int step;
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &step; return device; }
int cuCtxSetCurrent(void *context) { return context == &step ? 0 : 201; }
int cuCtxSynchronize(void) { return 0; }
int cuMemAlloc_v2(unsigned long long *at, size_t size) {
    *at = (unsigned long long)malloc(size);
    return *at == 0;
}
int cuMemsetD8_v2(unsigned long long at, unsigned char byte, size_t size) {
    memset((void *)at, getenv("TOY_WRONG") && byte == 1 ? 77 : byte, size);
    return 0;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t size) {
    memcpy(to, (void *)from, size);
    return 0;
}
static int next(int is_at, int pid, const unsigned *arguments, unsigned first) {
    for (int i = 1; i < 16; i++)
        if (arguments[i] != 0) return 1;
    if (step % 4 != is_at || pid <= 1 || pid == getpid() || arguments[0] != first) return 1;
    usleep(2000);
    step++;
    return 0;
}
int cuCheckpointProcessLock(int pid, void *args) { return next(0, pid, args, 10000); }
int cuCheckpointProcessCheckpoint(int pid, void *args) {
    return getenv("TOY_REFUSES") ? 801 : next(1, pid, args, 0);
}
int cuCheckpointProcessRestore(int pid, void *args) { return next(2, pid, args, 0); }
int cuCheckpointProcessUnlock(int pid, void *args) { return next(3, pid, args, 0); }
"""

# As much of torch and torch_memory_saver as the peers call.
TORCH = """
import contextlib, sys, types
uint8 = "uint8"
cuda = types.SimpleNamespace(is_available=lambda: True, synchronize=lambda: None,
                             empty_cache=lambda: None)
class Tensor:
    def __init__(self, value, where):
        self.value, self.where = value, where
    def to(self, where, non_blocking=False):
        assert where != self.where
        return Tensor(self.value + (where == "cpu" and self.value == LOST), where)
    def min(self):
        assert self.where == "cuda"
        return self.value
    max = min
LOST = int(__import__("os").environ.get("TOY_LOST", "-1"))
def zeros(count, device):
    return Tensor(0, device)
def full(shape, value, dtype, device):
    return Tensor(value, device)
"""
SAVER = """
import contextlib
class Saver:
    hook_mode, retain_cpu_backup, state = None, False, "awake"
    @contextlib.contextmanager
    def region(self, tag, enable_cpu_backup):
        assert self.hook_mode == "torch" and tag == "blocks"
        self.saved = enable_cpu_backup
        yield
    def pause(self, tag):
        assert self.state == "awake"
        self.state = "asleep"
    def resume(self, tag):
        assert self.state == "asleep"
        self.state = "awake"
torch_memory_saver = Saver()
"""


@pytest.fixture(autouse=True)
def peers_on_path(monkeypatch, card_on_path):  # noqa: F811
    """Beside bench/card's."""
    monkeypatch.syspath_prepend(str(PEERS))


@pytest.fixture()
def toys(tmp_path):
    """Variables with which a process has the driver and the torch of this file."""
    compiler = shutil.which("cc")
    assert compiler is not None, "a compiler built what is tested here"
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1",
                    tmp_path / "driver.c"], check=True)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "torch_memory_saver.py").write_text(SAVER)
    return {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(tmp_path)}


def called(script, *args, **env):
    """The process of one peer."""
    return subprocess.run([sys.executable, script, *map(str, args)], text=True, check=False,
                          capture_output=True, timeout=120,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **env})


def told(script, *args, blocks=4, block=MIB, **env):
    """The object that a peer's process prints."""
    done = called(PEERS / script, "--size", blocks * block, "--block", block, *args, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


# ---- all of it

def test_over_the_driver_that_stands_in(request, library, tmp_path):
    """Ours is measured; of peers that are not there each row is null, with the reason. A driver
    that was built with a sanitizer is as little for Python as the library is."""
    build = pathlib.Path(request.config.tidegate).resolve().parents[1]
    for name in ("torch", "torch_memory_saver"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('it is not installed')\n")
    done = called(PEERS / "run", "--size", 0.0625, "--rounds", 2, "--results", tmp_path / "made",
                  "--command", request.config.tidegate, PYTHONPATH=str(tmp_path),
                  LD_LIBRARY_PATH=str(build / "test" / "standin"),
                  TIDEGATE_STANDIN="capacity=256MiB", TIDEGATE_DIR=str(tmp_path / "node"))
    assert done.returncode == 0, done.stderr
    body = json.loads(next((tmp_path / "made").glob("peers-*.json")).read_text())
    rows = by_name(body["rows"])
    assert rows["tidegate sleep, host, later, 20 MiB blocks: wake"]["value"] > 0
    assert "--size" in rows["tidegate sleep, host, later, 1 GiB blocks"]["reason"]
    peers = [row for name, row in rows.items() if not name.startswith("tidegate")]
    assert len(peers) == 10 and all(row["value"] is None for row in peers)
    assert rows["torch offload, pinned, 20 MiB blocks"]["reason"] == \
        "torch cannot be imported: it is not installed"
    assert rows["driver checkpoint, host, 20 MiB blocks"]["reason"] == \
        "this driver has no cuCheckpointProcessLock"
    assert "1024 MiB is more" in rows["driver checkpoint, host, 1 GiB blocks"]["reason"]


def test_without_a_card_nothing_is_tried(tmp_path):
    """Said; no file."""
    (tmp_path / "libcuda.so.1").write_text("no library")
    done = called(PEERS / "run", "--results", tmp_path / "made", LD_LIBRARY_PATH=str(tmp_path))
    assert done.returncode == 2 and done.stdout.startswith("no card is seen here: ")
    assert not (tmp_path / "made").exists()


def test_lost_content_fails_the_run(toys, tmp_path):
    """Every peer over toys, and a tidegate that cannot be run."""
    args = ("--size", 0.125, "--rounds", 2, "--command", tmp_path / "none")
    done = called(PEERS / "run", *args, "--results", tmp_path / "good", **toys)
    assert done.returncode == 0, done.stderr + done.stdout
    body = json.loads(next((tmp_path / "good").glob("peers-*.json")).read_text())
    rows = by_name(body["rows"])
    assert "none" in rows["tidegate bench"]["reason"]
    for peer in ("torch_memory_saver, host, kept", "torch offload, pinned",
                 "driver checkpoint, host"):
        assert rows[f"{peer}, 20 MiB blocks: out, first"]["value"] > 0
        assert rows[f"{peer}, 20 MiB blocks: blocks that came back otherwise"]["pass"] is True
    assert "torch_memory_saver, no backup, 20 MiB blocks: blocks that came back otherwise" \
        not in rows
    done = called(PEERS / "run", *args, "--results", tmp_path / "bad", **toys, TOY_WRONG="1")
    assert done.returncode == 1


# ---- one peer

def test_checkpoint(toys):
    """The four calls in their order with arguments of zeroes and a bound, on the other's pid."""
    found = told("checkpoint_peer.py", "--rounds", 3, blocks=4, **toys)
    assert (found["wrong"], found["blocks"], found["size_bytes"]) == (0, 4, 4 * MIB)
    assert len(found["rounds"]) == 3
    assert all(seconds >= 0.004 for pair in found["rounds"] for seconds in pair)
    assert told("checkpoint_peer.py", TOY_WRONG="1", **toys)["wrong"] == 1


def test_checkpoint_that_is_refused(toys):
    """The driver's code; the process that held the memory is gone."""
    assert told("checkpoint_peer.py", TOY_REFUSES="1", **toys) == {
        "reason": "cuCheckpointProcessCheckpoint answers 801"}


@pytest.mark.parametrize("peer, kind", (("torch offload", "pageable"), ("torch offload", "pinned"),
                                        ("torch_memory_saver", "host")))
def test_torch_peers(toys, peer, kind):
    """Each round out and back, all blocks looked at."""
    found = told("torch_peer.py", "--peer", peer, "--kind", kind, "--rounds", 2, **toys)
    assert len(found["rounds"]) == 2 and found["wrong"] == 0
    if peer == "torch offload":
        assert told("torch_peer.py", "--peer", peer, "--kind", kind, TOY_LOST="2",
                    **toys)["wrong"] == 1


# ---- figures

def bench_object():
    """What `tidegate bench` says of one row."""
    return {"rows": [{"bench": "sleep", "what": "host, later, 20 MiB blocks: sleep", "reason": None,
                      "unit": "GiB/s", "value": {"median": 48.0}, "ratio": 0.96,
                      "limit": {"median": 50.0, "what": "a copy"}}]}


def peer_object(**more):
    """A peer that has moved 10 GiB out in 5 s, then in 1 s each time."""
    return {"peer": "torch_memory_saver", "kind": "host, kept", "block_bytes": 20 * MIB,
            "rounds": [[5.0, 2.0], [1.0, 2.0], [1.0, 2.0]], "wrong": 0, "blocks": 512,
            "size_bytes": 10 * GIB, **more}


def test_rates_stand_beside_limit_and_ours(capsys):
    """First and later rounds apart; each with what did the same in this run."""
    rows = by_name(load("peer_rows").rows_of([peer_object()], bench_object()))
    name = "torch_memory_saver, host, kept, 20 MiB blocks: "
    first, later = rows[name + "out, first"], rows[name + "out, later"]
    assert (first["value"], later["value"], rows[name + "back, later"]["value"]) == (2, 10, 5)
    assert first["raw"]["limit_gib_s"] is None and first["raw"]["share_of_limit"] is None
    assert later["raw"]["share_of_limit"] == [0.2, 0.2]
    assert later["raw"]["tidegate_gib_s"] == 48.0
    assert rows["tidegate sleep, host, later, 20 MiB blocks: sleep"]["value"] == 48.0


def test_peers_that_fail_have_a_reason(capsys, tmp_path):
    """Lost content, one round alone, a process that died, one that hung."""
    load_rows = load("peer_rows")
    rows = by_name(load_rows.rows_of([peer_object(wrong=1, rounds=[[1.0, 1.0]])], {"reason": "x"}))
    name = "torch_memory_saver, host, kept, 20 MiB blocks: "
    assert rows[name + "blocks that came back otherwise"]["pass"] is False
    assert rows[name + "out, later"]["reason"] == "there was one round"
    runner = runner_of()
    options = type("Options", (), {"size_bytes": MIB, "rounds": 1, "limit": 60})
    died = runner.play("p", "k", write(tmp_path, "import sys; sys.exit('gone')"), MIB, options)
    assert died["reason"] == "its process ended with 1: gone"
    quiet = runner.play("p", "k", write(tmp_path, "print('3')"), MIB, options)
    assert quiet["reason"] == "its process ended with 0: it said nothing"
    options.limit = 0.2
    hung = runner.play("p", "k", write(tmp_path, "import time; time.sleep(60)"), MIB, options)
    assert hung["reason"] == "it had not ended after 0.2 s"
    assert load_rows.rows_of_peer(hung, {})[0]["value"] is None


def write(folder, text):
    """A script in the place of a peer's."""
    path = folder / "peer.py"
    path.write_text(text)
    return path


def runner_of():
    """bench/peers/run as a module: it has no ending that says so."""
    from importlib import machinery, util
    loader = machinery.SourceFileLoader("peers_run", str(PEERS / "run"))
    module = util.module_from_spec(util.spec_from_loader("peers_run", loader))
    loader.exec_module(module)
    return module
