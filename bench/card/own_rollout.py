# SPDX-License-Identifier: Apache-2.0
"""A rollout of our own: `weights` sleep with a host copy, `kv_cache` without.

Run by turns.py. It takes the weights as verl's engines take them, from a bucket of the trainer
that is opened through CUDA's IPC, writes the whole cache at each turn, and compares what it finds
after each wake with what it left.
"""
import argparse
import os

os.environ.setdefault("TIDEGATE_NAME", "rollout")
os.environ.setdefault("TIDEGATE_ROLE", "rollout")

import torch  # noqa: E402  (the name must stand before any library reads it)

import tidegate  # noqa: E402
from rollout_link import serve, sum_of  # noqa: E402

BLOCK = 1 << 30


class OwnRollout:
    """Tensors over blocks of two tags."""

    def __init__(self, device):
        self.device = device
        self.blocks = []
        self.weights = self.cache = None
        self.sum = None

    def start(self, weight_bytes, keep_free_bytes):
        """Takes the weights, and for the cache all that the driver has free but keep_free_bytes."""
        torch.cuda.init()
        torch.empty(1, device=self.device)
        self.weights = self.block(tidegate.tag("weights", backup="host"), weight_bytes)
        self.weights = self.weights.view(torch.bfloat16)
        free, total = torch.cuda.mem_get_info()
        cache = tidegate.tag("kv_cache")
        count = max(0, free - keep_free_bytes) // BLOCK
        self.cache = [self.block(cache, BLOCK) for _ in range(count)]
        self.sum = sum_of(self.weights)
        return {"weight_bytes": weight_bytes, "cache_bytes": count * BLOCK, "total_bytes": total,
                "pid": os.getpid()}

    def block(self, tag, size_bytes):
        """A tensor of bytes over a new block of the tag."""
        self.blocks.append(tag.alloc(size_bytes))
        return torch.as_tensor(self.blocks[-1], device=self.device)

    def sleep(self):
        torch.cuda.synchronize()
        return tidegate.sleep("weights,kv_cache").to_dict()

    def wake(self, name):
        """Wakes one tag; says whether the weights are what they were."""
        receipt = tidegate.wake(name, timeout=20.0).to_dict()
        if name == "weights":
            receipt["same"] = sum_of(self.weights) == self.sum
        return receipt

    def take(self, opened, at, count):
        """Copies count elements of the trainer's bucket over the weights from `at` on."""
        rebuild, arguments = opened
        bucket = rebuild(*arguments)
        self.weights[at:at + count].copy_(bucket[:count])
        torch.cuda.synchronize()
        del bucket
        torch.cuda.ipc_collect()

    def generate(self):
        """Uses everything: reads the weights, checks that the cache woke zeroed, and fills it."""
        self.sum = sum_of(self.weights)
        dirty = sum(int(block[::4096].any()) for block in self.cache)
        for block in self.cache:
            block.fill_(1)
        torch.cuda.synchronize()
        return {"sum": self.sum, "dirty_blocks": dirty}


def main():
    parser = argparse.ArgumentParser(description="a rollout process; turns.py starts it")
    parser.add_argument("--link", type=int, required=True)
    options = parser.parse_args()
    rollout = OwnRollout("cuda")
    serve(options.link, {"start": rollout.start, "sleep": rollout.sleep, "wake": rollout.wake,
                         "take": rollout.take, "generate": rollout.generate})


if __name__ == "__main__":
    main()
