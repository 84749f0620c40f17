# SPDX-License-Identifier: Apache-2.0
"""The driver's own process checkpoint: device memory of another process, out to the host and back.

Started by bench/peers/run. The other process (--hold) has blocks with content and looks at them
when it is asked; it is locked and checkpointed, then restored and unlocked, from here.
"""
import ctypes
import subprocess
import sys

from peer_play import NotHere, block_count, orders, seen, tell, timed

ARGS_BYTES = 64     # of each of the checkpoint calls' structs; zero is the default everywhere
LOCK_MS = 10000
LOCK, OUT, BACK, UNLOCK = (f"cuCheckpointProcess{word}"
                           for word in ("Lock", "Checkpoint", "Restore", "Unlock"))


class Driver:
    """libcuda's functions; what they refuse is the reason."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as problem:
            raise NotHere(str(problem)) from problem

    def call(self, name, *arguments):
        try:
            function = getattr(self.library, name)
        except AttributeError as problem:
            raise NotHere(f"this driver has no {name}") from problem
        code = function(*arguments)
        if code != 0:
            raise NotHere(f"{name} answers {code}")

    def has(self, name):
        return hasattr(self.library, name)

    def start(self):
        """A context of the first card's, current in this thread."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def checkpoint(self, name, pid):
        """One of the four calls."""
        arguments = (ctypes.c_uint32 * (ARGS_BYTES // 4))()
        if name == LOCK:
            arguments[0] = LOCK_MS
        self.call(name, ctypes.c_int(pid), arguments)


# ---- the process that holds the memory -----------------------------------------------------------

def hold(options):
    driver = Driver()
    driver.start()
    blocks = [ctypes.c_uint64() for _ in range(block_count(options))]
    for number, block in enumerate(blocks):
        driver.call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(options.block))
        driver.call("cuMemsetD8_v2", block, ctypes.c_ubyte(number % 251),
                    ctypes.c_size_t(options.block))
    driver.call("cuCtxSynchronize")
    print("ready", flush=True)
    for _ in sys.stdin:
        print(sum(is_wrong(driver, block, number, options)
                  for number, block in enumerate(blocks)), flush=True)


def is_wrong(driver, block, number, options):
    """Looked at in its first, a middle and its last byte."""
    byte = ctypes.c_ubyte()
    for at in (0, options.block // 2 + 1, options.block - 1):
        driver.call("cuMemcpyDtoH_v2", ctypes.byref(byte), ctypes.c_uint64(block.value + at),
                    ctypes.c_size_t(1))
        if byte.value != number % 251:
            return True
    return False


# ---- from outside --------------------------------------------------------------------------------

def line_of(holder):
    line = holder.stdout.readline().strip()
    if not line:
        words = holder.stderr.read().strip().splitlines()[-1:] or ["it said nothing"]
        raise NotHere(f"the process that holds the memory ended: {words[0][:200]}")
    return line


def rounds_of(driver, holder, count):
    def calls(*names):
        for name in names:
            driver.checkpoint(name, holder.pid)

    return [[timed(lambda: calls(LOCK, OUT)), timed(lambda: calls(BACK, UNLOCK))]
            for _ in range(count)]


def play(options):
    block_count(options)
    driver = Driver()
    if not driver.has(LOCK):
        raise NotHere(f"this driver has no {LOCK}")
    driver.start()
    command = [sys.executable, __file__, "--hold", "--size", str(options.size), "--block",
               str(options.block)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as holder:
        try:
            line_of(holder)
            rounds = rounds_of(driver, holder, options.rounds)
            print("look", file=holder.stdin, flush=True)
            return seen(options, rounds, int(line_of(holder)))
        finally:
            holder.kill()  # also where it is still locked


def main():
    arguments = orders(__doc__)
    arguments.add_argument("--hold", action="store_true", help="be the process that holds it")
    options = arguments.parse_args()
    if options.hold:
        hold(options)
    else:
        tell(play, options)


if __name__ == "__main__":
    main()
