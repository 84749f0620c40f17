# SPDX-License-Identifier: Apache-2.0
"""Samples what NVML says is used on the card, from a process of its own.

    memory_samples.py OUT.csv [EVERY_SECONDS]

One line a sample: seconds on the system's monotonic clock, bytes used, and PID=BYTES of each
process that NVML shows, blanks between. Ends when its standard input does.
"""
import select
import subprocess
import sys
import time
from pathlib import Path


class Samples:
    """Sampling beside a `with` block; .rows are (seconds, used bytes, {pid: bytes}) afterwards."""

    def __init__(self, path, every_s=0.05):
        self.path, self.every_s, self.rows = Path(path), every_s, []

    def __enter__(self):
        self.child = subprocess.Popen([sys.executable, __file__, str(self.path),
                                       str(self.every_s)], stdin=subprocess.PIPE)
        return self

    def __exit__(self, *_error):
        self.child.stdin.close()
        self.child.wait()
        if self.path.exists():
            self.rows = [parsed(line) for line in self.path.read_text().splitlines()]


def parsed(line):
    seconds, used, *each = line.split()
    pairs = (pair.split("=") for pair in each)
    return float(seconds), int(used), {int(pid): int(size) for pid, size in pairs}


def sample(out, every_s):
    import pynvml
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    while not select.select([sys.stdin], [], [], every_s)[0]:
        used = pynvml.nvmlDeviceGetMemoryInfo(handle).used
        each = [f"{p.pid}={p.usedGpuMemory or 0}"
                for p in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
        out.write(" ".join([f"{time.monotonic():.3f}", str(used), *each]) + "\n")


def main():
    every_s = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
    with open(sys.argv[1], "w", buffering=1, encoding="utf-8") as out:
        sample(out, every_s)


if __name__ == "__main__":
    main()
