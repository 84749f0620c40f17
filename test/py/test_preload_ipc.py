# SPDX-License-Identifier: Apache-2.0
"""Handles of memory that one program gives and another takes, as torch.multiprocessing and verl's
weight buckets do: toy programs over the driver that stands in, with the preload on either side, on
both, or on none."""

import os
import signal
import subprocess
import time

import pytest

from conftest import clean_env
from test_preload import (ALL, BUILD, CARD, IDS, LIBRARY, ON, PRELOAD, TOYS, built,  # noqa: F401
                          host)  # noqa: F401

MAGIC = b"tidegate".hex()
PATIENCE_S = 100


class Program:
    """A program that does its words one after the other, and waits for a line at `line`."""

    def __init__(self, tmp_path, *words, preload=PRELOAD, program="host12", **env):
        env = {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": CARD,
               "TIDEGATE_DIR": str(tmp_path / "node"), "TOYHOST_LIBRARY": str(LIBRARY), **env}
        if preload is not None:
            env["LD_PRELOAD"] = str(preload)
        self.process = subprocess.Popen([TOYS / program, *words], env=clean_env(**env), text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE)

    def next(self):
        return self.process.stdout.readline().rstrip("\n")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """The rest of what it prints, and its stderr."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        assert self.process.returncode == 0, err
        return out.splitlines(), err


@pytest.fixture
def program(tmp_path):
    started = []

    def start(*words, **kw):
        started.append(Program(tmp_path, *words, **kw))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def given(giver):
    """The handle that a program gives next, in hex."""
    word, result, handle = giver.next().split()
    assert (word, result, len(handle)) == ("handle", "0", 128)
    return handle


def test_a_handle_is_taken_by_another_program(program):
    giver = program("give", "line", "look", "drop", "line", **ON)
    handle = given(giver)
    assert handle.startswith(MAGIC)
    taker = program("take", "fill", "line", "leaveit", TOYHOST_HANDLE=handle, **ON)
    assert [taker.next() for _ in range(4)] == [
        "open: 0, last error 0 0 0, errno 0", "again 0, the same, byte 1",
        "close: 0, last error 0 0 0, errno 0", "filled"]
    giver.go_on()
    assert giver.next() == "byte 2"
    assert giver.next() == "freed: 0, last error 0 0 0, errno 0"
    taker.go_on()
    out, err = taker.end()
    assert (out, err) == (["close: 0, last error 0 0 0, errno 0",
                           "close again: 1, last error 1 1 0, errno 0"], "")
    assert giver.end() == ([], "")


def test_runtimes_of_two_versions_share(program):
    giver = program("give", "line", **ON)
    taker = program("take", program="host13", TOYHOST_HANDLE=given(giver), **ON)
    out, err = taker.end()
    assert (out[1], err) == ("again 0, the same, byte 1", "")


def test_a_taker_needs_no_tag(program):
    """But the mode: what is ours is ours whoever opens it."""
    giver = program("give", "line", **ON)
    handle = given(giver)
    out, err = program("take", "maps", TOYHOST_HANDLE=handle, TIDEGATE="on").end()
    assert (out[1], out[-1], err) == ("again 0, the same, byte 1", "libtidegate.so is mapped", "")


@pytest.mark.parametrize("preload", [None, PRELOAD], ids=["without preload", "in mode off"])
def test_a_taker_without_it_gets_the_runtimes_own_error(program, preload):
    giver = program("give", "line", "look", **ON)
    out, err = program("take", TOYHOST_HANDLE=given(giver), preload=preload).end()
    assert (out, err) == (["open: 400, last error 400 400 0, errno 0"], "")
    giver.go_on()
    assert giver.end() == (["byte 1"], "")


@pytest.mark.parametrize("give, env", [("givesmall", ON), ("give", {})], ids=["small", "no tag"])
def test_the_runtimes_own_handles_are_its_own(program, give, env):
    giver = program(give, "line", **env)
    handle = given(giver)
    assert not handle.startswith(MAGIC)
    out, err = program("take", "leaveit", TOYHOST_HANDLE=handle, **ON).end()
    assert (out, err) == ([
        "open: 0, last error 0 0 0, errno 0", "again 0, the same, byte 90",
        "close: 0, last error 0 0 0, errno 0", "close: 0, last error 0 0 0, errno 0",
        "close again: 1, last error 1 1 0, errno 0"], "")


@pytest.mark.parametrize("kind, words", ALL, ids=IDS)
def test_what_is_refused_is_refused_as_by_the_runtime(host, kind, words):
    plain = host(kind, *words("ipcerrors"), preload=None)
    ours = host(kind, *words("ipcerrors"), **ON)
    assert (ours.out, ours.err) == (plain.out, "")
    assert "our own: 201, last error 201 201 0, errno 55" in plain.out


def test_a_handle_of_the_dead_is_refused(program):
    giver = program("give", "line", **ON)
    handle = given(giver)
    giver.process.kill()
    giver.process.wait()
    out, err = program("take", TOYHOST_HANDLE=handle, **ON).end()
    assert (out, err) == (["open: 400, last error 400 400 0, errno 0"], "")


def test_a_handle_of_what_was_freed_is_refused(program):
    giver = program("give", "drop", "line", **ON)
    handle = given(giver)
    giver.next()
    out, err = program("take", TOYHOST_HANDLE=handle, **ON).end()
    assert (out, err) == (["open: 400, last error 400 400 0, errno 0"], "")


def test_a_stopped_giver_is_not_waited_for_for_ever(program):
    giver = program("give", "line", **ON)
    handle = given(giver)
    giver.process.send_signal(signal.SIGSTOP)
    os.waitpid(giver.process.pid, os.WUNTRACED)
    begun = time.monotonic()
    out, err = program("take", TOYHOST_HANDLE=handle, **ON).end()
    assert out == ["open: 205, last error 205 205 0, errno 0"]
    assert err.count("\n") == 1 and "does not answer" in err
    assert time.monotonic() - begun >= 10
    giver.process.send_signal(signal.SIGCONT)


def test_a_packed_scope_gives_no_handle_and_says_why(program):
    giver = program("scopegive", TIDEGATE="on", TOYHOST_PACKED="1")
    out, err = giver.end()
    assert out[1:-1] == ["handle: 1, last error 1 1 0, errno 0"] * 2
    assert err.count("\n") == 1 and "'scoped' is packed" in err


def test_a_general_scope_gives_one(program):
    out, err = program("scopegive", TIDEGATE="on").end()
    assert (out[1:-1], err) == (["handle: 0, last error 0 0 0, errno 0"] * 2, "")


def test_a_forked_child_is_nobody(program):
    giver = program("give", "line", **ON)
    handle = given(giver)
    taker = program("give", "take", "ipcfork", "fill", TOYHOST_HANDLE=handle, **ON)
    out, err = taker.end()
    assert (out[2], out[-2:], err) == ("again 0, the same, byte 1", ["child 0", "filled"], "")
