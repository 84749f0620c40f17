# SPDX-License-Identifier: Apache-2.0
"""One run of turns: a trainer in this process, a rollout in another, STEPS steps, one JSON file.

    turn_taking.py --way alone|plain|helper|tidegate --rollout own|vllm --out FILE.json

turns.py starts it once for each way, so that none inherits another's memory. The order of a
hand-over is verl's: ordinary segments, give back, wake the weights, send them through a bucket,
give back, wake the cache; afterwards expandable segments again.
"""
import argparse
import json
import os
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402  (cuBLAS reads the line above when it starts)
from torch.multiprocessing.reductions import reduce_tensor  # noqa: E402

import tidegate  # noqa: E402
from rollout_link import Rollout, RolloutFailed, sum_of  # noqa: E402
from vl_trainer import Trainer  # noqa: E402
from ways_to_give_back import WAYS  # noqa: E402

GIB = 1 << 30
REST_BYTES = 3 * GIB  # left free for what the trainer keeps while the rollout runs
BUCKET_BYTES = 2 * GIB


def timed(row, name, action, *values):
    """Runs an action and notes its milliseconds under name."""
    start = time.perf_counter()
    answer = action(*values)
    row[name] = (time.perf_counter() - start) * 1e3
    return answer


def expandable_segments(on):
    torch.cuda.memory._set_allocator_settings(f"expandable_segments:{on}")


def process_bytes():
    """What NVML charges to this process; None where it does not show our pid."""
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            return process.usedGpuMemory
    return None


class OwnRolloutSide:
    """The rollout of own_rollout.py, which is a tenant: the ledger says what it will take."""

    def __init__(self, trainer, options):
        self.trainer = trainer
        self.rollout = Rollout("own_rollout.py", log=options.log)
        self.facts, _ = self.rollout.ask("start", trainer.weight_bytes(), REST_BYTES)
        self.facts["needs_bytes"] = self.facts["weight_bytes"] + self.facts["cache_bytes"]

    def target(self, tag):
        """What sleeps of others under this tag, less what the driver has free."""
        asleep = sum(t.asleep_bytes for tenant in tidegate.status().tenants
                     for t in tenant.tags if t.name == tag)
        return max(0, asleep - torch.cuda.mem_get_info()[0])

    def wake(self, row, tag):
        receipt, row[f"wake_{tag}_ms"] = self.rollout.ask("wake", tag)
        if receipt.get("same") is False:
            row.setdefault("wrong", []).append("weights changed while they slept")

    def send_weights(self, row):
        """Through one bucket that both processes map, as verl's sender does."""
        bucket = torch.empty(BUCKET_BYTES // 2, dtype=torch.bfloat16, device="cuda")
        at, first, total = 0, 0, 0
        while first is not None:
            count, first = self.trainer.fill_bucket(bucket, first)
            total += sum_of(bucket[:count])
            torch.cuda.synchronize()
            self.rollout.ask("take", reduce_tensor(bucket), at, count)
            at += count
        row["sent_sum"] = total
        del bucket
        torch.cuda.ipc_collect()

    def generate(self, row):
        answer, row["generate_ms"] = self.rollout.ask("generate")
        if answer["sum"] != row["sent_sum"] or answer["dirty_blocks"]:
            row.setdefault("wrong", []).append(f"rollout saw {answer}")

    def sleep(self, row, _step):
        _, row["sleep_ms"] = self.rollout.ask("sleep")


class VllmSide:
    """vLLM's offline engine, which is no tenant: what it took when it last woke is the target."""

    def __init__(self, _trainer, options):
        self.rollout = Rollout("vllm_rollout.py", log=options.log)
        share = 0.6 if options.quick else 0.9
        self.facts, _ = self.rollout.ask("start", share, limit_s=240)
        self.steps, self.took, self.tokens = options.steps, {}, None

    def target(self, tag):
        """None, so everything, before the first wake."""
        took = self.took.get(tag)
        return None if took is None else max(0, took - torch.cuda.mem_get_info()[0])

    def wake(self, row, tag):
        before = torch.cuda.mem_get_info()[0]
        _, row[f"wake_{tag}_ms"] = self.rollout.ask("wake", tag)
        self.took[tag] = before - torch.cuda.mem_get_info()[0]

    def send_weights(self, row):
        """Nothing: level 1 keeps them, and after level 2 any weights do for memory's sake."""

    def generate(self, row):
        tokens, row["generate_ms"] = self.rollout.ask("generate")
        if row["level"] == 1 and self.tokens not in (None, tokens):
            row.setdefault("wrong", []).append("tokens differ from the first turn's")
        self.tokens = self.tokens or tokens

    def sleep(self, row, step):
        """The last quarter at level 2, which drops the weights as verl has it."""
        level = 1 if step < self.steps * 3 // 4 else 2
        row["slept_level"] = level
        _, row["sleep_ms"] = self.rollout.ask("sleep", level)


def hand_over(side, way, row):
    give = WAYS[way]
    expandable_segments(False)
    for tag in ("weights", "kv_cache"):
        row[f"gave_{tag}"] = timed(row, f"give_{tag}_ms", give, lambda: side.target(tag))
        side.wake(row, tag)
        if tag == "weights":
            timed(row, "send_ms", side.send_weights, row)
            torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    row["while_rollout_runs"] = {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "process_bytes": process_bytes(), "used_bytes": total - free}
    side.generate(row)


def take_turns(trainer, side, options):
    level = 1
    for step in range(options.steps):
        row = {"step": step, "at": time.monotonic(), "level": level}
        torch.cuda.reset_peak_memory_stats()
        row["losses"] = timed(row, "train_ms", trainer.step, step)
        row["peak_bytes"] = torch.cuda.max_memory_reserved()
        if side is not None:
            timed(row, "offload_ms", lambda: (trainer.offload(), torch.cuda.synchronize()))
            hand_over(side, options.way, row)
            side.sleep(row, step)
            level = row.get("slept_level", 1)
            expandable_segments(True)
            timed(row, "load_ms", lambda: (trainer.load(), torch.cuda.synchronize()))
        yield row


def run(options):
    torch.cuda.init()
    torch.empty(1, device="cuda")
    trainer = Trainer("quick" if options.quick else "full")
    side = None
    if options.way != "alone":
        side = {"own": OwnRolloutSide, "vllm": VllmSide}[options.rollout](trainer, options)
        side.sleep({}, 0)
    result = {"way": options.way, "rollout": options.rollout, "pid": os.getpid(), "error": None,
              "rollout_facts": side.facts if side else None, "rows": []}
    try:
        trainer.to("cuda")
        for row in take_turns(trainer, side, options):
            result["rows"].append(row)
    except (torch.OutOfMemoryError, RolloutFailed) as error:
        result["error"] = f"{type(error).__name__}: {error}"
    result["not_deterministic"] = sorted(trainer.noted)
    if side is not None:
        side.rollout.close()
    return result


def main():
    parser = argparse.ArgumentParser(description="one run of turns, for turns.py")
    parser.add_argument("--way", choices=["alone", *WAYS], required=True)
    parser.add_argument("--rollout", choices=["own", "vllm"], default="own")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--log")
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    result = run(options)
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump(result, out, default=str)


if __name__ == "__main__":
    main()
