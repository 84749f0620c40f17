# SPDX-License-Identifier: Apache-2.0
"""verl's trainer and vLLM's worker over our allocator, on one card of a driver that stands in: both
are tenants, so the target of the hand-over is what the ledger has asleep under the tags that wake,
and a trainer that leaves too little is named before the engine is asked."""

import json
import os
import subprocess
import sys

import pytest

from test_verl_ledger import MIB, end, go, node  # noqa: F401  (a fixture)
from verl_wheels import ROOT, WORLD, needs_verl
from vllm_wheel import needs_vllm, unpack

pytestmark = [needs_verl, needs_vllm, pytest.mark.usefixtures("library")]

WORKER = """
import json, sys
import vllm_world
from vllm_world import MIB, TENSORS
compat = vllm_world.begin()
made = vllm_world.worker()
weights, cache = vllm_world.load(made, weights=14 * MIB, cache=64 * MIB)
made.sleep(2)
print("asleep", flush=True)
for line in sys.stdin:
    tags = line.split()
    try:
        made.wake_up(tags)
        print(json.dumps([compat.ours().tags[tag].info().state for tag in tags]), flush=True)
    except RuntimeError as problem:
        print(json.dumps(str(problem)), flush=True)
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("vllm"))


class Worker:
    """vLLM's worker in a process of its own: everything asleep, woken as it is told."""

    def __init__(self, node, files):  # noqa: F811
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER], text=True, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, env={
                **os.environ, **node.driver, "TIDEGATE": "on", "TIDEGATE_NAME": "vllm",
                "PYTHONPATH": os.pathsep.join([str(WORLD.parent), str(ROOT / "python")]),
                "TIDEGATE_DIR": str(node.folder / "ledger"), "TIDEGATE_WAIT_SECONDS": "0.05",
                "VLLM_FILES": str(files)})
        node.stack.enter_context(self.process)
        node.stack.callback(self.process.stdin.close)
        assert self.process.stdout.readline() == "asleep\n"

    def wake(self, *tags):
        self.process.stdin.write(" ".join(tags) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def test_the_target_is_what_sleeps_in_vllm_under_these_tags(node, files):  # noqa: F811
    worker = Worker(node, files)
    tenants = {tenant["name"]: tenant for tenant in node.status()["tenants"]}
    asleep = {tag["name"]: tag["asleep_bytes"] // MIB for tag in tenants["vllm"]["tags"]
              if tag["asleep_bytes"] > 0}
    assert asleep == {"weights": 16, "kv_cache": 64}
    trainer = node.rank(0, 8 * MIB, 80 * MIB)
    go(trainer)
    moments, answer, err = end(trainer)
    assert moments["gave"] < moments["asked"]
    assert "reclaim for vllm kv_cache: needed 32.0, got 80.0 MiB (driver)" in err
    assert [worker.wake("weights"), worker.wake("kv_cache")] == [["awake"], ["awake"]]


def test_a_trainer_that_leaves_too_little_is_named_before_the_wake(node, files):  # noqa: F811
    worker = Worker(node, files)
    trainer = node.rank(0, 60 * MIB, 30 * MIB, calls="resume and hold", TIDEGATE_WAIT_SECONDS="0.2")
    go(trainer)
    account = trainer.stderr.readline()
    while "wake kv_cache needs" not in account:
        assert trainer.poll() is None
        account = trainer.stderr.readline()
    assert "wake kv_cache needs 64.0 MiB, 60.0 can be had: live 60.0" in account
    assert "The engine is asked all the same" in account
    # The engine is asked, and says the same of it; both still sleep, and wake when it is gone.
    said = worker.wake("kv_cache")
    assert "trainer rank 0" in said and "All tags are asleep as before." in said
    go(trainer)
    end(trainer)
    assert worker.wake("weights", "kv_cache") == ["awake", "awake"]
