# SPDX-License-Identifier: Apache-2.0
"""`tidegate demo`: two processes take turns on one device. Looked at from outside: through /proc,
with signals, and with a byte that somebody else has changed."""

import json
import os
import pathlib
import pty
import re
import select
import signal
import subprocess
import time

import jsonschema
import pytest

import demo_truth
from conftest import DATA, MIB, ROOT, clean_env

SCHEMA = json.loads((ROOT / "doc/schema/demo-1.json").read_text(encoding="utf-8"))
SMALL = ("--capacity", "64MiB")
OWN = "qwen_vl_leak_logits.pickle.xz"


@pytest.fixture()
def place(tmp_path):
    """A ledger directory of the test's own, not yet made."""
    return tmp_path / "node"


@pytest.fixture()
def demo(tidegate, place):
    """demo(*args) -> Result, and afterwards neither process nor device is left."""
    def call(*args, **kw):
        return tidegate("demo", *args, env={"TIDEGATE_DIR": str(place)}, **kw)

    yield call
    assert devices(place) == []


@pytest.fixture()
def running(tidegate, place):
    """running(*args) -> a demo that has begun, as Popen; ended after the test in any case."""
    begun = []

    def call(*args, env=None, **kw):
        child = subprocess.Popen([tidegate.program, "demo", *args], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True,
                                 env=clean_env(**{"TIDEGATE_DIR": str(place), **(env or {})}), **kw)
        begun.append(child)
        return child

    yield call
    for child in begun:
        if child.poll() is None:
            child.kill()
        child.communicate()


def devices(place):
    """The host devices whose files are there."""
    return sorted(p.name for p in place.glob("host-*")) if place.exists() else []


def is_side(pid):
    """Not the process that only looks at the device; one that is gone is nobody."""
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().startswith("demo-")
    except OSError:
        return False


def children(pid):
    """The pids of a process's children that live now."""
    try:
        words = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(word) for word in words]


def sides(supervisor):
    """The pids of a demo's two processes that live now."""
    return [pid for pid in children(supervisor) if is_side(pid)]


MAPPING = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) ([0-9a-f]+) (\S+) (\d+) +/memfd:",
                     re.MULTILINE)


def mappings(pid):
    """(device, inode) of each memfd that a process has mapped, its range there, address, rights."""
    try:
        text = pathlib.Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return
    for low, high, rights, offset, device, inode in MAPPING.findall(text):
        address, length, first = int(low, 16), int(high, 16) - int(low, 16), int(offset, 16)
        yield (device, inode), first + length, address, rights


def memfd_sizes(pid):
    """{(device, inode): bytes} of the memfds that a process holds."""
    sizes = {}
    for key, end, _, _ in mappings(pid):
        sizes[key] = max(end, sizes.get(key, 0))
    return sizes


def wait_for(condition, seconds=20):
    """True once the condition holds, False when it did not in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.002)
    return False


# ---- what it answers

@pytest.mark.parametrize("name", (OWN, "real/steady.pickle.xz", "real/pools.pickle.xz",
                                  "qwen_vl_no_leak.pickle.xz"))
def test_steps_are_the_recording_s(demo, name):
    """Allocations, frees and peaks are those of a plain replay, round after round."""
    truth = demo_truth.steps(DATA / name)
    steps = len(truth) + 1
    replay = () if name == OWN else ("--replay", DATA / name)
    result = demo("--json", "--steps", steps, *replay, *SMALL)
    answer = result.json()
    jsonschema.validate(answer, SCHEMA)
    assert [(s["allocations"], s["frees"], s["peak_bytes"]) for s in answer["per_step"]] == (
        truth + truth[:1])
    assert [s["file_step"] for s in answer["per_step"]] == [*range(1, steps), 1]
    assert answer["replay"]["steps"] == len(truth)
    assert answer["replay"]["peak_bytes"] == max(peak for _, _, peak in truth)


def test_nothing_is_lost(demo):
    """The figures of a whole run fit together."""
    answer = demo("--json", "--steps", "4", *SMALL).json()
    assert answer["complete"] and answer["steps"] == 4 and answer["hand_overs"] == 8
    assert answer["bytes_lost"] == 0 and answer["out_of_memory"] == 0 and answer["kills"] == 0
    assert 0 < answer["waits"] <= 8
    assert answer["bytes_slept"] >= answer["bytes_woken"] > 2 * 64 * MIB
    assert answer["bytes_saved"] >= answer["bytes_restored"] > 0
    assert answer["bytes_verified"] > 64 * MIB * 4
    assert 0 < answer["hand_over_ms"]["median"] <= answer["hand_over_ms"]["worst"]
    assert all(rate > 0 for rate in answer["gib_per_s"].values())


def test_text(demo):
    """The first line, one for each step, the closing table."""
    lines = demo("--steps", "2", *SMALL).out.splitlines()
    assert lines[0] == ("trainer and rollout take turns on host:capacity=64MiB, 2 steps; trainer "
                        "replays qwen_vl_leak_logits (4,081 allocations a step)")
    number = r"\d+(\.\d)?"
    assert re.fullmatch(rf"step 1/2  rollout awake \d+ MiB  hand-over \d+ ms  {number} GiB/s",
                        lines[1])
    assert re.fullmatch(rf"step 2/2  rollout awake \d+ MiB  hand-over \d+ ms  {number} GiB/s "
                        rf"\(memcpy into fresh memory here: {number}\)", lines[2])
    assert re.fullmatch(r"hand-overs 4   median \d+ ms   worst \d+ ms   waits \d   "
                        r"out of memory 0   bytes verified \d+ MiB   lost 0", lines[3])
    assert lines[4].startswith("slept ") and lines[5].startswith("woken ")
    assert lines[7].split() == ["1", "3,081", "2,437", "2.1", "GiB"]
    assert len(lines) == 9


@pytest.mark.parametrize("uri, shown", (
    ("host:capacity=64MiB", "host:capacity=64MiB"),
    ("host:capacity=96MiB,lag=1", "host:capacity=96MiB,lag=1"),
))
def test_device_of_the_user_s(demo, uri, shown):
    """A host device without a name is the run's own, as large as it says."""
    answer = demo("--json", "--steps", "1", "--device", uri).json()
    assert answer["device"] == shown
    assert answer["capacity_bytes"] == int(re.search(r"(\d+)MiB", uri).group(1)) * MIB


def test_named_device_is_shared_and_stays(tidegate, place):
    """Its name is the user's, so its file is, too; of it the demo takes a part."""
    result = tidegate("demo", "--json", "--steps", "1",
                      "--device", "host:capacity=256MiB,name=mine",
                      env={"TIDEGATE_DIR": str(place)})
    assert result.json()["capacity_bytes"] <= 256 * MIB * 3 // 5
    assert devices(place) == ["host-mine"]


# ---- on a card, or what stands for its driver

def standin_env(tidegate, place, driver="capacity=256MiB"):
    """Variables with which the driver is the one that stands in."""
    build = pathlib.Path(tidegate.program).resolve().parents[1]
    return {"TIDEGATE_DIR": str(place), "LD_LIBRARY_PATH": str(build / "test" / "standin"),
            "TIDEGATE_STANDIN": driver}


def on_standin(tidegate, place, *args, **env):
    """A demo over that driver."""
    return tidegate("demo", "--json", "--steps", "2", *SMALL, *args,
                    env={**standin_env(tidegate, place), **env})


@pytest.mark.parametrize("args", [(), ("--device", "cuda:0")])
def test_card(tidegate, place, args):
    """Contents go through the driver's copies; `auto` takes a card that nobody uses."""
    answer = on_standin(tidegate, place, *args).json()
    jsonschema.validate(answer, SCHEMA)
    assert answer["device"] == "cuda:0" and answer["hand_overs"] == 4
    assert answer["bytes_lost"] == 0 and answer["bytes_verified"] > 100 * MIB


def test_card_out_of_reach(tidegate, place):
    """A card that is not there is said so; `auto` does without."""
    result = on_standin(tidegate, place, "--device", "cuda:1")
    assert result.status == 2 and "cuda:1" in result.err and result.out == ""
    answer = on_standin(tidegate, place, TIDEGATE_STANDIN="").json()
    assert answer["device"] == "host:capacity=64MiB"


@pytest.mark.parametrize("driver, words", (
    ("capacity=256MiB,driver=10010", "too old"),
    ("capacity=256MiB,init=999", "cuInit: CUDA_ERROR_UNKNOWN (999)"),
))
def test_driver_that_will_not_do(tidegate, place, driver, words):
    """One sentence of what is wrong with it."""
    result = on_standin(tidegate, place, "--device", "cuda:0", TIDEGATE_STANDIN=driver)
    assert result.status == 2 and result.out == ""
    assert words in result.err and len(result.err.splitlines()) == 1


def test_the_look_at_a_card_is_killed(running, tidegate, place):
    """Here in a driver that never answers: it is said how the look ended, and nothing is left."""
    child = running("--device", "cuda:0", *SMALL,
                    env=standin_env(tidegate, place, "capacity=256MiB,hang=1"))
    assert wait_for(lambda: children(child.pid) != [])
    os.kill(children(child.pid)[0], signal.SIGKILL)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 2 and out == ""
    assert err == ("tidegate: --device cuda:0: the process that looked at it ended by itself "
                   "(signal 9)\n")


# ---- seen from outside

def held_by(pids):
    """{pid: memfd_sizes} of what each held at both of two looks: with one, a hand-over between
    the look at one side and the look at the other would show the same bytes twice."""
    first = {pid: memfd_sizes(pid) for pid in pids}
    second = {pid: memfd_sizes(pid) for pid in pids}
    return {pid: {key: min(size, second[pid].get(key, 0)) for key, size in first[pid].items()}
            for pid in pids}


def sampled(child, capacity_bytes):
    """At 100 Hz: the most bytes of both sides together, and of each alone."""
    most, peaks = 0, {}
    while child.poll() is None:
        held = held_by(sides(child.pid))
        distinct = {key: size for sizes in held.values() for key, size in sizes.items()}
        most = max(most, sum(distinct.values()))
        assert most <= capacity_bytes, held
        for pid, sizes in held.items():
            peaks[pid] = max(peaks.get(pid, 0), sum(sizes.values()))
        time.sleep(0.01)
    return most, peaks


@pytest.mark.slow
def test_both_need_most_of_it_and_never_have_more(running):
    """Distinct memfd bytes never exceed the capacity; each peak is above 60 %, both above 110 %."""
    capacity_bytes = 128 * MIB
    child = running("--json", "--steps", "6", "--capacity", "128MiB")
    _, peaks = sampled(child, capacity_bytes)
    answer = json.loads(child.stdout.read())
    assert child.returncode == 0 and answer["bytes_lost"] == 0 and answer["out_of_memory"] == 0
    assert len(peaks) == 2
    assert min(peaks.values()) > 0.6 * capacity_bytes
    assert sum(peaks.values()) > 1.1 * capacity_bytes


def flip_bytes(pid, place):
    """Changes the byte at this place of each piece that a process has mapped writable; returns how
    many."""
    flipped = 0
    for _, _, address, rights in list(mappings(pid)):
        if "w" not in rights:
            continue
        try:
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                memory.seek(address + place)
                byte = memory.read(1)
                memory.seek(address + place)
                memory.write(bytes([byte[0] ^ 0x20]))
                flipped += 1
        except (OSError, IndexError):
            continue  # unmapped meanwhile
    return flipped


def test_flipped_byte_is_seen(running):
    """From outside, in the memory itself: bytes are lost, and the status says so. Again and again,
    since what is changed just before its owner writes it is not lost."""
    child = running("--json", "--steps", "12", *SMALL)
    flipped, place = 0, 12345
    while child.poll() is None:
        flipped += sum(flip_bytes(pid, place) for pid in sides(child.pid))
        place += 1
        time.sleep(0.01)
    out, err = child.communicate(timeout=60)
    assert flipped > 0
    assert json.loads(out)["bytes_lost"] > 0, err
    assert child.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", (1, 2))
def test_kills_lose_nothing_of_the_others(demo, seed):
    """One side is killed in every third hand-over; the other goes on."""
    answer = demo("--json", "--kill-every", "3", "--seed", seed, "--steps", "9", *SMALL).json()
    jsonschema.validate(answer, SCHEMA)
    assert answer["kills"] == 6 and answer["complete"] and answer["steps"] == 9
    assert answer["bytes_lost"] == 0 and answer["out_of_memory"] == 0


def test_killed_by_somebody_else(running):
    """A side that a user kills is started anew, too."""
    child = running("--json", "--steps", "6", *SMALL)
    assert wait_for(lambda: len(sides(child.pid)) == 2)
    os.kill(sides(child.pid)[1], signal.SIGKILL)
    out, err = child.communicate(timeout=60)
    answer = json.loads(out)
    assert child.returncode == 0 and answer["kills"] == 1 and answer["bytes_lost"] == 0, err


def test_side_that_crashes_ends_the_demo(running, place):
    """Any other signal is a fault, and told. (SIGSEGV would be the sanitizers' own.)"""
    child = running("--steps", "6", *SMALL)
    assert wait_for(lambda: len(sides(child.pid)) == 2)
    os.kill(sides(child.pid)[0], signal.SIGABRT)
    _, err = child.communicate(timeout=60)
    assert child.returncode == 2 and "ended by itself (signal 6)" in err
    assert devices(place) == []


def test_interrupt(running, place):
    """Ctrl-C: the table so far, and nothing is left."""
    child = running("--steps", "400", *SMALL, start_new_session=True)
    assert child.stdout.readline().startswith("trainer and rollout")
    assert child.stdout.readline().startswith("step   1/400")
    both = sides(child.pid)
    os.killpg(child.pid, signal.SIGINT)
    out, err = child.communicate(timeout=20)
    assert child.returncode == 130 and err == ""
    assert re.search(r"^hand-overs \d+ .* lost 0$", out, re.MULTILINE)
    assert len(both) == 2 and not any(os.path.exists(f"/proc/{pid}") for pid in both)
    assert devices(place) == []


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
def test_interrupt_at_any_moment(running, place, number):
    """As soon as there is something to remove it is removed: here, when the device has just been
    made, and before the two sides are."""
    child = running("--steps", "400", "--capacity", "512MiB", start_new_session=True)
    assert wait_for(lambda: devices(place) != [])
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == 130
    assert devices(place) == []


def test_side_that_is_stopped_ends_the_demo(running, place):
    """It says which, instead of waiting for ever."""
    child = running("--steps", "400", *SMALL)
    child.stdout.readline()
    child.stdout.readline()
    both = sides(child.pid)
    for pid in both:
        os.kill(pid, signal.SIGSTOP)
    _, err = child.communicate(timeout=120)
    assert child.returncode == 2
    assert re.fullmatch(r"tidegate: the (trainer|rollout) \(pid \d+\) is stopped and does not go "
                        r"on\n", err)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in both)
    assert devices(place) == []


def test_long_place(tidegate, tmp_path):
    """The device's file is removed from a directory whose path is almost as long as one can be."""
    place = tmp_path
    while len(str(place)) < 4000:
        place = place / ("x" * min(200, 4090 - len(str(place)) - 1))
    place.parent.mkdir(parents=True)
    result = tidegate("demo", "--steps", "1", *SMALL, env={"TIDEGATE_DIR": str(place)})
    assert result.status == 0, result.err
    assert os.listdir(place) == ["ledger"]


def test_sides_die_with_the_supervisor(running):
    """Killed, it takes them along."""
    child = running("--steps", "400", *SMALL)
    child.stdout.readline()
    child.stdout.readline()
    both = sides(child.pid)
    child.kill()
    assert len(both) == 2
    assert wait_for(lambda: not any(os.path.exists(f"/proc/{pid}/fd/0") for pid in both))


def test_stdout_that_cannot_be_written(tidegate, place):
    """Said once, and early."""
    with open("/dev/full", "w", encoding="utf-8") as full:
        done = subprocess.run([tidegate.program, "demo", "--steps", "400", *SMALL], stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=60,
                              env=clean_env(TIDEGATE_DIR=str(place)))
    assert done.returncode == 2 and "could not be written" in done.stderr
    assert devices(place) == []


# ---- a terminal

def on_terminal(program, place, *args, **env):
    """What a demo paints on a terminal of 100 columns."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(program, [program, "demo", *args],
                  clean_env(**{"TIDEGATE_DIR": str(place), "TERM": "xterm", **env}))
    painted = b""
    while select.select([fd], [], [], 60)[0]:
        try:
            some = os.read(fd, 65536)
        except OSError:
            break
        if not some:
            break
        painted += some
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return painted.decode()


def test_bar(tidegate, place):
    """Painted again and again, at every turn; the cursor comes back; colour unless NO_COLOR."""
    text = on_terminal(tidegate.program, place, "--steps", "20", *SMALL)
    assert text.count("\r\033[K") >= 4 and "step 20/20  [" in text and "\033[36m" in text
    assert text.index("\033[?25l") < text.rindex("\033[?25h")
    text = on_terminal(tidegate.program, place, "--steps", "1", *SMALL, NO_COLOR="1")
    assert "\r\033[K" in text and "\033[36m" not in text and "\033[33m" not in text


def test_dumb_terminal(tidegate, place):
    """Plain lines where nothing can be painted."""
    assert "\033" not in on_terminal(tidegate.program, place, "--steps", "1", *SMALL, TERM="dumb")


# ---- wrong use

@pytest.mark.parametrize("args, words", (
    (("--capacity", "much"), ("--capacity", "80GiB")),
    (("--capacity", "1MiB"), ("--capacity", "too small", "64 MiB")),
    (("--capacity", "1"), ("--capacity 1 B", "too small", "64 MiB")),
    (("--capacity", "0"), ("--capacity", "64MiB or more", "not '0'")),
    (("--capacity", "900TiB"), ("--capacity", "at most")),
    (("--device", "host:capacity=64MiB", "--capacity", "128MiB"), ("more than the device has",)),
    (("--device", "gpu"), ("--device gpu",)),
    (("--device", "host:"), ("--device host:",)),
    (("--device", "host:capacity=3MiB"), ("--device host:capacity=3MiB",)),
    (("--device", "host:capacity=64MiB,color=red"), ("--device", "color")),
    (("--device", "host:capacity=16MiB"), ("host:capacity=16MiB has 16 MiB", "too small")),
    (("--replay", "/dev/null"), ("--replay /dev/null",)),
    (("--replay", "no/such/file"), ("no/such/file", "No such file")),
    (("--replay", ROOT / "README.md"), ("README.md",)),
    (("--replay", DATA / "real/state_only.pickle.xz"), ("no whole step",)),
    (("--steps", "0"), ("--steps", "from 1 on")),
    (("--seed", "x"), ("--seed", "whole number")),
    (("--kill-every", "0"), ("--kill-every",)),
    (("recording.pickle",), ("recording.pickle", "--replay")),
    (("--step", "3"), ("maybe: --steps?",)),
))
def test_wrong_use(tidegate, place, args, words):
    """A sentence, status 2, and nothing is left behind."""
    result = tidegate("demo", *args, env={"TIDEGATE_DIR": str(place)})
    assert result.status == 2 and result.out == "", result.out
    assert len(result.err.splitlines()) == 1, result.err
    for word in words:
        assert word in result.err
    assert not place.exists() or os.listdir(place) == []


def test_ledger_of_another_build(tidegate, place):
    """Told before anything is started; the file stays as it is."""
    place.mkdir(mode=0o700)
    (place / "ledger").write_bytes(b"\0" * 4096)
    (place / "ledger").chmod(0o600)
    result = tidegate("demo", *SMALL, env={"TIDEGATE_DIR": str(place)})
    assert result.status == 2 and result.out == "" and str(place / "ledger") in result.err
    assert os.listdir(place) == ["ledger"]


def test_installed_alone(tidegate, place, tmp_path):
    """The recording is in the command: no file beside it, nor its path."""
    program = tmp_path / "tidegate"
    program.write_bytes(pathlib.Path(tidegate.program).read_bytes())
    program.chmod(0o755)
    done = subprocess.run([program, "demo", "--steps", "1", *SMALL], cwd="/", timeout=60,
                          capture_output=True, text=True,
                          env={"TIDEGATE_DIR": str(place)})
    assert done.returncode == 0 and "qwen_vl_leak_logits" in done.stdout
    assert b"/test/data/" not in program.read_bytes()
