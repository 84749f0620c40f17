# SPDX-License-Identifier: Apache-2.0
"""Two processes take turns on one device that is too small for both. The device is memory of this
machine that stands for a card; with the argument cuda:0 it is a card."""

import multiprocessing
import sys
import tidegate

DEVICE = sys.argv[1] if sys.argv[1:] else "host:capacity=64MiB,name=turns"
MIB = 1 << 20


def engine(pipe):
    """Has weights, which sleep saves, and a cache, which it drops."""
    weights = tidegate.tag("weights", backup="host", device=DEVICE)
    cache = tidegate.tag("kv_cache")
    blocks = [weights.alloc(16 * MIB), cache.alloc(24 * MIB)]
    tidegate.sleep()
    pipe.send("asleep")
    for _ in range(3):
        pipe.recv()
        print("engine: ", tidegate.wake(timeout=20).line())
        tidegate.sleep()
        pipe.send(f"{len(blocks)} blocks, where they were")


if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")  # a forked child could use no device
    here, there = spawn.Pipe()
    child = spawn.Process(target=engine, args=(there,))
    child.start()
    here.recv()  # its blocks sleep: there is room
    state = tidegate.tag("optimizer", backup="host", device=DEVICE)
    block = state.alloc(48 * MIB)
    for _ in range(3):
        print("trainer:", tidegate.sleep().line())
        here.send("your turn")
        here.recv()
        tidegate.wake(timeout=20)
    child.join()
