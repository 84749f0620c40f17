# SPDX-License-Identifier: Apache-2.0
"""Starts a rollout process and speaks with it: one request at a time, one answer each.

The child runs a script with `--link FD`, serves requests with serve(), and ends when the link does.
"""
import os
import socket
import subprocess
import sys
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

HERE = Path(__file__).resolve().parent


class RolloutFailed(Exception):
    """What the rollout process answered instead of a result, or that it is gone."""


class Rollout:
    """The trainer's end."""

    def __init__(self, script, arguments=(), environment=None, log=None):
        ours, theirs = socket.socketpair()
        os.set_inheritable(theirs.fileno(), True)
        self.log = open(log, "w") if log else None
        self.child = subprocess.Popen(
            [sys.executable, str(HERE / script), "--link", str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()], env={**os.environ, **(environment or {})},
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT if log else None)
        theirs.close()
        self.link = Connection(ours.detach())

    def ask(self, request, *values, limit_s=120):
        """Returns (the answer, milliseconds that the rollout says it took)."""
        self.link.send((request, values))
        end = time.monotonic() + limit_s
        while not self.link.poll(0.2):
            if time.monotonic() > end:
                raise RolloutFailed(f"{request}: no answer in {limit_s} s")
        try:
            good, answer, took_ms = self.link.recv()
        except EOFError:
            raise RolloutFailed(f"{request}: the rollout ended with {self.child.wait()}") from None
        if not good:
            raise RolloutFailed(f"{request}: {answer}")
        return answer, took_ms

    def close(self):
        self.link.close()
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.log:
            self.log.close()


def until_it_ends(once, count, failed):
    """What each of `count` calls of once() gives. Where the other end fails, or its end of the link
    is gone, `failed` and what it said come last."""
    found = []
    for _ in range(count):
        try:
            found.append(once())
        except (RolloutFailed, OSError) as problem:
            found.append({**failed, "said": str(problem)})
            break
    return found


def sum_of(tensor):
    """Of a tensor's 16-bit words: both ends compare what they hold. In pieces, since a sum of
    integers makes a copy of 8 bytes for each."""
    import torch
    return sum(int(piece.sum(dtype=torch.int64))
               for piece in tensor.view(torch.int16).split(1 << 24))


def serve(fd, handlers):
    """The rollout's end: answers until the trainer's end is closed."""
    link = Connection(fd)
    while True:
        try:
            request, values = link.recv()
        except EOFError:
            return
        start = time.perf_counter()
        try:
            answer, good = handlers[request](*values), True
        except Exception as error:  # the trainer decides what it means
            traceback.print_exc()
            answer, good = f"{type(error).__name__}: {error}", False
        link.send((good, answer, (time.perf_counter() - start) * 1e3))
