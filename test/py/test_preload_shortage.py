# SPDX-License-Identifier: Apache-2.0
"""A card that is full, under the preload: what the process gives back of its own before it is told,
who is asked for the next attempt, and where the account goes. Toy programs over the driver that
stands in."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest

from conftest import ROOT, clean_env, run
from test_preload import (ALL, BUILD, CARD, IDS, LIBRARY, ON, built, host)  # noqa: F401
from test_preload_ipc import program  # noqa: F401

MIB = 1 << 20
SCHEMA = json.loads((ROOT / "doc/schema/observe-1.json").read_text())
SERVED = "40 MiB: 0 memory, last error 0 0 0, errno 0"
REFUSED = "30 MiB: 2 NULL, last error 2 2 0, errno 0"

PEER = """
import sys
from tidegate import devices, tenancy
import tidegate
tag = tidegate.tag("cache", device="cuda:0")
block = tag.alloc(40 << 20)
mine = tenancy.tenant(devices.device("cuda:0"))
mine.declare("cache", 0, 40 << 20)
print("there", flush=True)
sys.stdin.readline()
print(mine.asked() >> 20, flush=True)
block.free()
mine.declare("cache", 0, 0)
print("given", flush=True)
sys.stdin.readline()
"""


class Peer:
    """Another program on the card, with 40 MiB that it could give back; it looks when told to."""

    def __init__(self, folder):
        env = clean_env(LD_LIBRARY_PATH=str(BUILD / "test" / "standin"), TIDEGATE_STANDIN=CARD,
                        TIDEGATE_DIR=str(folder / "node"), TIDEGATE_LIBRARY=str(LIBRARY),
                        TIDEGATE_NAME='an "idle" engine', PYTHONPATH=str(ROOT / "python"))
        self.process = subprocess.Popen([sys.executable, "-c", PEER], env=env, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.next() == "there"

    def next(self):
        return self.process.stdout.readline().rstrip("\n")

    def look(self):
        """The MiB that it was asked for; it has given all by then."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        asked = int(self.next())
        assert self.next() == "given"
        return asked


@pytest.fixture
def peer(tmp_path):
    one = Peer(tmp_path)
    yield one
    one.process.kill()
    one.process.communicate()


def lines_in(folder):
    (path,) = folder.iterdir()
    lines = [json.loads(line) for line in path.read_text(encoding="ascii").splitlines()]
    for line in lines:
        jsonschema.validate(line, SCHEMA)
    return path.name, lines


# ---- what is our own ----------------------------------------------------------------------------

@pytest.mark.parametrize("thing, begins", [("pooled", "pooled: 0, kept: 0"),
                                           ("resting", "resting: 0, freed 0")])
@pytest.mark.parametrize("name, words", ALL, ids=IDS)
def test_what_the_process_can_give_back_is_given_first(host, name, words, thing, begins):
    ours = host(name, *words(thing, "calls"), **ON)
    *seen, calls = ours.out.splitlines()
    assert (seen, ours.err) == ([begins, SERVED], "")
    assert calls.startswith("the runtime saw 0 allocs, ")


@pytest.mark.parametrize("name, words", ALL, ids=IDS)
def test_in_a_capture_what_rests_goes_on_resting(host, name, words):
    ours = host(name, *words("captured"), **ON)
    assert ours.out.splitlines() == [
        "captured: 0", "10 MiB: 2 NULL, last error 2 2 0, errno 0", "ended: 0",
        "60 MiB: 0 memory, last error 0 0 0, errno 0"]
    assert ours.err == ""


# ---- others -------------------------------------------------------------------------------------

def test_a_peers_idle_cache_is_there_at_the_next_attempt(program, peer, tmp_path):
    out = tmp_path / "out"
    asker = program("want", "line", "want", TIDEGATE_OUT=str(out), RANK="3", **ON)
    assert asker.next() == REFUSED
    assert peer.look() == 6
    asker.go_on()
    assert asker.end() == ([REFUSED.replace("2 NULL, last error 2 2", "0 memory, last error 0 0")],
                           "")
    name, (line,) = lines_in(out)
    assert name == f"rank3_pid{asker.process.pid}.jsonl"
    assert (line["event"], line["rank"], line["pid"]) == ("refused", 3, asker.process.pid)
    assert (line["asked_bytes"], line["free_bytes"], line["total_bytes"], line["count"]) == (
        30 * MIB, 24 * MIB, 64 * MIB, 1)
    assert line["driver_used_bytes"] == 40 * MIB
    assert line["why"] == ('usual needs 30.0 MiB, 24.0 MiB can be had: an "idle" engine cache '
                           "40.0 MiB")
    assert line["account"] == {
        "own": [], "tags": [], "unattributed_bytes": 0, "others": [{
            "name": 'an "idle" engine', "rank": None, "pid": peer.process.pid, "dead": False,
            "size_bytes": 40 * MIB, "asked_bytes": 6 * MIB, "tags": [{
                "name": "cache", "occupied_bytes": 40 * MIB, "returnable_bytes": 40 * MIB,
                "asleep_bytes": 0}]}]}


# ---- where the account goes ---------------------------------------------------------------------

def test_without_a_folder_nothing_is_said(host, tmp_path):
    plain = host("host12", "errors", preload=None)
    ours = host("host12", "errors", cwd=tmp_path, **ON)
    assert (ours.out, ours.err) == (plain.out, "")
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def test_with_a_folder_a_program_sees_no_difference(host, tmp_path):
    out = tmp_path / "far" / "out"
    plain = host("host12", "errors", "order", "expand", preload=None)
    ours = host("host12", "errors", "order", "expand", TIDEGATE_OUT=str(out), **ON)
    assert (ours.out, ours.err) == (plain.out, "")
    _, lines = lines_in(out)
    assert [line["asked_bytes"] // MIB for line in lines[:1]] == [40]
    assert lines[0]["account"]["tags"] == [{"item": "usual", "size_bytes": 40 * MIB}]
    assert lines[0]["rank"] is None


def test_a_program_that_tries_again_is_told_of_now_and_then(host, tmp_path):
    out = tmp_path / "out"
    ours = host("host12", "full", "last", "wantoften", TIDEGATE_OUT=str(out), **ON)
    assert ours.out.splitlines() == ["full: 0, then 2", "last error 2",
                                     "refused: 20, last error 2, errno 0"]
    assert [line["count"] for line in lines_in(out)[1]] == [1, 2, 4, 8, 16]


def test_a_refused_page_of_its_own_is_told_too(host, tmp_path):
    out = tmp_path / "out"
    ours = host("host12", "expand", TIDEGATE_OUT=str(out), **ON)
    assert "too much 2" in ours.out and ours.err == ""
    assert all("usual needs" in line["why"] for line in lines_in(out)[1])


def test_without_the_ledger_the_figures_are_the_drivers(host, tmp_path):
    (tmp_path / "node" / "ledger").mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    out = tmp_path / "out"
    ours = host("host12", "full", TIDEGATE_OUT=str(out), **ON)
    assert ours.out == "full: 0, then 2\n" and "without the ledger" in ours.err
    (line,) = lines_in(out)[1]
    assert (line["free_bytes"], line["account"]) == (24 * MIB, None)


def test_a_folder_that_cannot_be_written_is_said_once(host, tmp_path):
    place = tmp_path / "file"
    place.write_text("")
    ours = host("host12", "full", "full", TIDEGATE_OUT=str(place), **ON)
    assert ours.out.splitlines()[0] == "full: 0, then 2"
    assert ours.err == (f"tidegate: TIDEGATE_OUT={place} cannot be written: Not a directory; who "
                        "holds memory that is refused is not told there\n")


def test_a_pipe_that_nobody_reads_keeps_nobody(program, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    asker = program("line", "full", TIDEGATE_OUT=str(out), **ON)
    os.mkfifo(out / f"rank0_pid{asker.process.pid}.jsonl")
    asker.go_on()
    said, err = asker.end()
    assert said == ["full: 0, then 2"] and err.count("\n") == 1 and "cannot be written" in err


def test_the_package_writes_to_the_same_file(tmp_path):
    out = tmp_path / "out"
    code = """
import ctypes
from tidegate import observing
program = ctypes.CDLL(%r, ctypes.RTLD_GLOBAL) and ctypes.CDLL(None)
assert observing.is_recording()
observing.write_line(observing.head("other") + ', "x": 1}')
block = ctypes.c_void_p()
program.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(40 << 20))
print(program.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(40 << 20)))
observing.write_line(observing.head("other") + ', "x": 2}')
""" % str(BUILD / "test/toycudart/libcudart.so.12")
    env = {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": CARD,
           "TIDEGATE_DIR": str(tmp_path / "node"), "TIDEGATE_LIBRARY": str(LIBRARY),
           "PYTHONPATH": str(ROOT / "python"), "TIDEGATE_OUT": str(out), "LOCAL_RANK": "2",
           "LD_PRELOAD": str(BUILD / "src" / "libtidegate-preload.so"), **ON}
    result = run(sys.executable, "-c", code, env=env)
    assert (result.out, result.err) == ("2\n", "")
    (path,) = out.iterdir()
    events = [json.loads(line)["event"] for line in path.read_text().splitlines()]
    assert events == ["other", "refused", "other"]
