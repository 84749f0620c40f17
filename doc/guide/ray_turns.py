# SPDX-License-Identifier: Apache-2.0
"""Two actors of one Ray node take turns on one device that is too small for both. One is killed
while it has the memory, Ray restarts it, and no turn is lost. The device is memory of this machine
that stands for a card."""

import os
import signal
import time
import ray
import tidegate

DEVICE = "host:capacity=64MiB,name=ray"
SIZE = 48 << 20


class Worker:
    """An actor; each byte of its block is the number of its turns so far."""

    block = None

    def load(self, done):
        """What a new process does. An alloc never waits: it asks until the other has let go."""
        state = tidegate.tag("state", backup="host", device=DEVICE)
        deadline = time.monotonic() + 60
        while self.block is None:
            try:
                self.block = state.alloc(SIZE)
            except tidegate.TidegateWouldNotFit as problem:
                if time.monotonic() > deadline:
                    raise
                print(f"waits: {problem}", flush=True)
                time.sleep(0.2)
        self.block.view()[:] = bytes([done]) * SIZE

    def turn(self, done, dies=False):
        """done: the turns that the driver knows of, from which a new process goes on."""
        is_new = self.block is None
        if is_new:
            self.load(done)
        tidegate.wake(timeout=60)
        view = self.block.view()
        assert bytes(view) == bytes([done]) * SIZE, "something was lost"
        if dies and not is_new:
            os.kill(os.getpid(), signal.SIGKILL)
        view[:] = bytes([done + 1]) * SIZE
        tidegate.sleep()
        return done + 1


if __name__ == "__main__":
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
    actor = ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1)(Worker)
    trainer, engine = (actor.options(runtime_env={"env_vars": {"TIDEGATE_NAME": name}}).remote()
                       for name in ("trainer", "engine"))
    turns = (0, 0)
    for number in range(4):
        turns = ray.get([trainer.turn.remote(turns[0]),
                         engine.turn.remote(turns[1], dies=number == 1)])
        print("turns so far: trainer %d, engine %d" % tuple(turns), flush=True)
