# SPDX-License-Identifier: Apache-2.0
"""Actors of a local Ray cluster beside those of the guide, for test_ray.py; run by a Python that
has Ray: ray_world.py SCENARIO TIDEGATE PRELOAD RUNTIME. The last line is what was seen, as JSON."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import ray
import tidegate

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "doc" / "guide"))
import ray_turns  # noqa: E402 # of the path above

SCENARIO, COMMAND, PRELOAD, RUNTIME = sys.argv[1:]
MIB = 1 << 20
PATIENCE_SECONDS = 120


class Held(ray_turns.Worker):
    """The guide's actor, in single steps."""

    def pid(self):
        return os.getpid()

    def wake(self):
        return tidegate.wake(timeout=60).gained_bytes // MIB

    def sleep(self):
        return tidegate.sleep().gained_bytes // MIB

    def is_all(self, done):
        return bytes(self.block.view()) == bytes([done]) * ray_turns.SIZE

    def seen(self):
        return sorted(one.name for one in tidegate.status().tenants)


class Stock:
    """A program that knows nothing of Tidegate: its memory is the CUDA runtime's."""

    def __init__(self, runtime):
        self.runtime = ctypes.CDLL(runtime, ctypes.RTLD_GLOBAL)
        block = ctypes.c_void_p()
        assert ctypes.CDLL(None).cudaMalloc(ctypes.byref(block), ctypes.c_size_t(4 * MIB)) == 0

    def seen_by_runtime(self):
        """How many of its allocations came to the runtime itself."""
        allocs, frees = ctypes.c_int(), ctypes.c_int()
        self.runtime.toyCalls(ctypes.byref(allocs), ctypes.byref(frees))
        return allocs.value


def start(kind, name, *arguments, **env):
    """An actor that Ray starts again once."""
    actor = ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)(kind)
    return actor.options(
        runtime_env={"env_vars": {"TIDEGATE_NAME": name, **env}}).remote(*arguments)


def look():
    """{tenant: [pid, {tag: MiB awake}]} of the living, and the free MiB, by the command."""
    done = subprocess.run([COMMAND, "status", "--json"], capture_output=True, text=True, check=True)
    status = json.loads(done.stdout)
    rows = {one["name"]: [one["pid"], {tag["name"]: tag["awake_bytes"] // MIB
                                       for tag in one["tags"] if tag["awake_bytes"] > 0}]
            for one in status["tenants"] if not one["dead"]}
    return rows, [one["free_bytes"] // MIB for one in status["devices"]]


def wait_until(holds):
    """What it gave when it gave anything."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        answer = holds()
        if answer:
            return answer
        assert time.monotonic() < deadline, look()
        time.sleep(0.05)


def restart():
    """The engine is killed while it has the memory, and started again while the trainer has it."""
    trainer, engine = start(Held, "trainer"), start(Held, "engine")
    ray.get(trainer.load.remote(7))
    ray.get(trainer.sleep.remote())
    ray.get(engine.load.remote(9))
    both, _free = look()
    told = {"both": sorted(both), "seen by the engine": ray.get(engine.seen.remote()),
            "held at first": [both["trainer"][1], both["engine"][1]]}
    old = ray.get(engine.pid.remote())
    told["pid"] = both["engine"][0] == old
    os.kill(old, signal.SIGKILL)
    told["woken"] = ray.get(trainer.wake.remote())  # waits for what the dead one had
    loaded = engine.load.remote(11)
    wait_until(lambda: look()[0].get("engine", [old])[0] != old)
    done, _ = ray.wait([loaded], timeout=1)
    told["before the trainer lets go"] = len(done)
    rows, told["free"] = look()
    told["held meanwhile"] = [rows["trainer"][1], rows["engine"][1]]
    told["slept"] = ray.get(trainer.sleep.remote())
    ray.get(loaded)
    told["engine's content"] = ray.get(engine.is_all.remote(11))
    ray.get(engine.sleep.remote())
    ray.get(trainer.wake.remote())
    told["trainer's content"] = ray.get(trainer.is_all.remote(7))
    return told


class Ranked(ray_turns.Worker):
    """The same on the card that Ray has chosen for it."""

    def turn(self, done):
        ray_turns.DEVICE = f"host:capacity=64MiB,name=gpu{ray.get_gpu_ids()[0]}"
        return super().turn(done)


def eight():
    """A trainer and an engine on each of eight cards, by halves of a GPU as Ray counts them."""
    actor = ray.remote(num_cpus=0, num_gpus=0.5)(Ranked)
    ranks = [actor.options(runtime_env={"env_vars": {
        "TIDEGATE_NAME": name, "RANK": str(rank)}}).remote()
             for rank in range(8) for name in ("trainer", "engine")]
    turns = [0] * len(ranks)
    for _round in range(2):
        turns = ray.get([one.turn.remote(done) for one, done in zip(ranks, turns)])
    status = tidegate.status()
    return {"turns": turns, "cards": {card.name: sorted(one.title for one in status.on(card.uuid))
                                      for card in status.devices}}


def stock():
    """Two programs of which one has Tidegate off; both came into being with the same cluster."""
    on, off = start(Stock, "on", RUNTIME), start(Stock, "off", RUNTIME, TIDEGATE="off")
    passed = ray.get([on.seen_by_runtime.remote(), off.seen_by_runtime.remote()])
    return {"passed on": passed, "tenants": {name: row[1] for name, row in look()[0].items()}}


def running():
    """A cluster that runs without the preload: one actor gets it by its runtime_env."""
    plain = start(Stock, "plain", RUNTIME)
    ours = start(Stock, "ours", RUNTIME, LD_PRELOAD=PRELOAD, TIDEGATE="on",
                 TIDEGATE_DEFAULT_TAG="usual")
    passed = ray.get([plain.seen_by_runtime.remote(), ours.seen_by_runtime.remote()])
    return {"passed on": passed, "tenants": {name: row[1] for name, row in look()[0].items()}}


if __name__ == "__main__":
    ray.init(num_cpus=4, num_gpus=8, include_dashboard=False, object_store_memory=100 * MIB)
    SEEN = {"restart": restart, "stock": stock, "running": running, "eight": eight}[SCENARIO]()
    ray.shutdown()
    print(json.dumps(SEEN))
