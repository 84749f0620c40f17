# SPDX-License-Identifier: Apache-2.0
"""`tidegate doctor --preload`: its child makes every call over the toy runtimes and the driver that
stands in; and what it finds in files of all kinds."""

import ctypes
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import time

import jsonschema
import pytest

from conftest import ROOT, clean_env, run

BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
TOYS = BUILD / "test" / "toycudart"
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
LIBRARY = BUILD / "src" / "libtidegate.so"
HOOK = TOYS / "toyhook.so"
SCHEMA = json.loads((ROOT / "doc/schema/preload-1.json").read_text(encoding="utf-8"))
CARD = "capacity=64MiB,context=0,devices=2"
OWN = ("it has a CUDA runtime of its own linked in: what it allocates never comes by, and does not "
       "sleep")

CALLS = """\
      ours      cudaMalloc of 2 MiB
      ours      cudaFree of a block of a tag
      passed on cudaMalloc of 512 KiB
      passed on cudaFree of the runtime's own
      ours      cudaFreeAsync of a block of a tag
      ours      cudaFreeAsync_ptsz of a block of a tag
      ours      cudaIpcGetMemHandle of a block of a tag
      ours      cudaIpcOpenMemHandle of this process's own: 201
      passed on cudaIpcCloseMemHandle of what was not opened: 1
      ours      cudaMalloc while the tag sleeps: 2
      ours      cudaPeekAtLastError after that: 2
      ours      cudaGetLastError after that: 2
      ours      cudaStreamBeginCapture on a stream
      ours      cudaStreamEndCapture on a stream
      ours      cudaStreamBeginCapture_ptsz on the thread's stream
      ours      cudaStreamEndCapture_ptsz on the thread's stream
      ours      cudaStreamBeginCaptureToGraph on a stream
      ours      cudaStreamBeginCaptureToGraph_ptsz on the thread's stream
      passed on cudaStreamDestroy of a stream
      ours      cudaGetDriverEntryPoint of cuMemCreate
      ours      cudaGetDriverEntryPoint_ptsz of cuMemCreate
      ours      cudaGetDriverEntryPointByVersion of cuMemCreate
      ours      cudaGetDriverEntryPointByVersion_ptsz of cuMemCreate
      passed on cudaGetDriverEntryPointByVersion of cuMemGetInfo
      passed on cudaDeviceEnablePeerAccess of device 1
      passed on cudaDeviceDisablePeerAccess of device 1
"""
COUNT = CALLS.count("\n")


@pytest.fixture(scope="module", autouse=True)
def built(preloadable):
    for path in (LIBRARY, TOYS / "host12"):
        if not path.exists():
            pytest.fail(f"{path} is not there: build it (make all)")


@pytest.fixture
def doctor(tidegate, tmp_path):
    """doctor(*args, libraries=…, driver=…, …) -> Result; the ledger's place is this test's own."""
    place = tmp_path / "node"

    def call(*args, libraries=(TOYS,), driver=CARD, cwd=None, **env):
        paths = ":".join(map(str, (BUILD / "test" / "standin", *libraries)))
        result = tidegate("doctor", "--preload", *args, cwd=cwd, env={
            "TIDEGATE_DIR": str(place), "TIDEGATE_STANDIN": driver, "LD_LIBRARY_PATH": paths,
            "TIDEGATE_LIBRARY": str(LIBRARY), **env})
        assert not place.exists() and not list(tmp_path.glob("tidegate-doctor-*"))
        return result

    return call


def answer_of(result):
    """The JSON object, as its schema has it."""
    answer = json.loads(result.out)
    jsonschema.validate(answer, SCHEMA)
    assert result.status == (1 if answer["state"] == "bad" else 0), result.err
    return answer


def runtime_text(number, order, calls=CALLS):
    listed = ", ".join(map(str, order))
    return (f"ok    {TOYS}/libcudart.so.{number}: CUDA {number}.0, {COUNT} calls came out as they "
            f"should\n      cudaMalloc is asked in turn of {listed}\n{calls}")


# ---- the calls ----------------------------------------------------------------------------------

def test_every_hook_is_called():
    """What the preload stands before, the child calls."""
    hooks = (ROOT / "src/preload/hooks.def").read_text(encoding="utf-8")
    calls = (ROOT / "cli/preload_calls.def").read_text(encoding="utf-8")
    called = set(re.findall(r"^CALL\(\w+, (\w+)", calls, re.M))
    assert called == set(re.findall(r"^TG__HOOK\(\w+, (\w+)", hooks, re.M))


def test_both_runtimes(doctor):
    result = doctor()
    runtimes = [runtime_text(number, (PRELOAD, f"{TOYS}/libcudart.so.{number}"))
                for number in ("12", "13")]
    assert (result.status, result.err) == (0, "")
    assert result.out == f"ok    {PRELOAD}: tried over 2 CUDA runtimes\n" + "".join(runtimes)


@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
def test_another_hook(doctor, is_first):
    """Each call is ours all the same, and who gets it first is told."""
    order = [HOOK, PRELOAD] if is_first else [PRELOAD, HOOK]
    result = doctor("--", TOYS / "host12", "version", LD_PRELOAD=":".join(map(str, order)))
    calls = re.sub("( cudaMalloc .*)", rf"\1; first in {HOOK}", CALLS) if is_first else CALLS
    assert result.out == (f"ok    {PRELOAD}: tried over 1 CUDA runtime\n" + runtime_text(
        "12", (*order, f"{TOYS}/libcudart.so.12"), calls))
    assert (result.status, result.err) == (0, "version 0 12000\n")


def test_json_says_the_same(doctor):
    answer = answer_of(doctor("--json", LD_PRELOAD=str(HOOK)))
    assert answer["preload"] == str(PRELOAD) and answer["objects"] == []
    assert answer["finding"] == "tried over 2 CUDA runtimes"
    assert [runtime["version"] for runtime in answer["runtimes"]] == [12000, 13000]
    for runtime in answer["runtimes"]:
        lines = [f"{call['outcome']:9} {call['name']} {call['what']}" + (
            f": {call['code']}" if call["code"] else "") for call in runtime["calls"]]
        assert "".join(f"      {line}\n" for line in lines) == CALLS
        assert {call["first"] for call in runtime["calls"]} == {str(PRELOAD), str(HOOK)}


# ---- what is wrong ------------------------------------------------------------------------------

def test_a_preload_that_steps_aside(doctor, tmp_path):
    """Its own sentence is the finding, and nothing is ours."""
    shutil.copy(PRELOAD, tmp_path)
    (tmp_path / "libtidegate.so").write_bytes(LIBRARY.read_bytes()[:-1])
    answer = answer_of(doctor("--json", TIDEGATE_LIBRARY=str(tmp_path / "libtidegate.so")))
    assert answer["finding"] == "of 2 CUDA runtimes 2 cannot be used with it here"
    for runtime in answer["runtimes"]:
        assert "steps aside" in runtime["finding"] and "cut off" in runtime["finding"]
        bad = {f"{call['name']} {call['what']}" for call in runtime["calls"]
               if call["state"] == "bad"}
        assert {"cudaMalloc of 2 MiB", "cudaGetLastError after that"} <= bad
        assert "ours" not in {call["outcome"] for call in runtime["calls"]
                              if "Entry" not in call["name"]}


def test_a_call_that_does_not_come_by(doctor, tmp_path):
    """Another hook that keeps calls to itself."""
    thief = tmp_path / "thief.so"
    source = "int cudaPeekAtLastError(void) { return 0; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", thief, "-x", "c", "-"], input=source,
                   text=True, check=True)
    result = doctor("--", TOYS / "host13", "version", LD_PRELOAD=str(thief))
    assert result.status == 1
    assert (f"bad   {TOYS}/libcudart.so.13: CUDA 13.0, 1 of {COUNT} calls did not come out as they "
            "should\n") in result.out
    assert (f"bad   passed on cudaPeekAtLastError after that, and should be ours; first in {thief}"
            "\n") in result.out


def test_without_a_card(doctor):
    """One sentence a runtime, with its own number, and status 1."""
    result = doctor("--", TOYS / "host12", "version", driver="")
    assert result.status == 1
    assert result.out == (
        f"bad   {PRELOAD}: of 1 CUDA runtime 1 cannot be used with it here\n"
        f"bad   {TOYS}/libcudart.so.12: CUDA 12.0, it answers 100\n"
        "      -> see what this machine's driver and devices say: tidegate doctor\n")


def test_without_a_runtime(doctor):
    for name in ("libcudart.so.12", "libcudart.so.13"):
        try:
            ctypes.CDLL(name)
            pytest.skip(f"this machine's loader finds a {name}")
        except OSError:
            pass
    result = doctor(libraries=())
    assert (result.status, result.err) == (1, "")
    assert result.out == (
        f"bad   {PRELOAD}: the loader finds no CUDA runtime here: no libcudart.so.12, no "
        "libcudart.so.13\n      -> name a program that brings its own: "
        "tidegate doctor --preload -- python3 -c 'import torch'\n")


def test_a_runtime_that_is_none(doctor, tmp_path):
    for number in ("12", "13"):
        (tmp_path / f"libcudart.so.{number}").write_bytes(b"not at all an ELF file" * 100)
    answer = answer_of(doctor("--json", libraries=(tmp_path,)))
    assert ["invalid ELF header" in runtime["finding"] for runtime in answer["runtimes"]] == [
        True, True]
    assert all(runtime["calls"] == [] for runtime in answer["runtimes"])


# ---- what a program has loaded ------------------------------------------------------------------

SYMBOL = "int _ZN6cudart12own_functionEv(void) { return 1; }\n"
TEXTS = """
static const char *const texts[] = {"cudaErrorCudartUnloading", "libcuda.so.1"};
const char *text(int which) { return texts[which]; }
"""
ONE_TEXT = """
const char *text(void) { return "cudaErrorCudartUnloading"; }
"""


def module(path, source, *options):
    """A shared object made of this source."""
    subprocess.run(["cc", "-shared", "-fPIC", *options, "-o", path, "-x", "c", "-"], input=source,
                   text=True, check=True)
    return path


def loading(*paths):
    """A command that loads these."""
    return ["--", sys.executable, "-c",
            "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]", *paths]


def test_objects_with_a_runtime_of_their_own(doctor, tmp_path):
    """By their symbols; stripped, by their texts; also across the reader's windows; but neither
    what mentions the runtime nor the runtime itself. A child's count, too."""
    pad = f'__attribute__((used)) static const char pad[{(1 << 20) - 6}] = "x";'
    own = [module(tmp_path / "symbols.so", SYMBOL), module(tmp_path / "stripped.so", TEXTS, "-s"),
           module(tmp_path / "far.so", pad + TEXTS, "-s")]
    others = [module(tmp_path / "text.so", ONE_TEXT), TOYS / "libcudart.so.12"]
    result = doctor(*loading(*own[:2], *others), LD_PRELOAD=str(own[2]))
    assert result.status == 0 and not result.err
    assert [line for line in result.out.splitlines() if line.startswith("warn")] == [
        f"warn  {path}: {OWN}" for path in (own[2], *own[:2])]
    shell = ["--", "sh", "-c", "'%s' -c 'import ctypes; ctypes.CDLL(\"%s\")'; exit 3" % (
        sys.executable, own[0])]
    answer = answer_of(doctor("--json", *shell))
    assert [(found["path"], found["finding"]) for found in answer["objects"]] == [
        (str(own[0]), OWN)]
    assert answer["finding"] == "sh, which ended with status 3, loaded no CUDA runtime (libcudart*)"


def test_a_program_with_a_runtime_of_its_own(doctor, tmp_path):
    """As nvcc links it; found as it was called, by the path or by PATH."""
    program = tmp_path / "linked"
    subprocess.run(["cc", "-o", program, "-x", "c", "-"], text=True, check=True,
                   input=SYMBOL + "int main(void) { return 0; }")
    for name, path in ((program, os.environ["PATH"]), ("linked", f"/nowhere:{tmp_path}")):
        answer = answer_of(doctor("--json", "--", name, PATH=path))
        assert [found["path"] for found in answer["objects"]] == [str(program)]


@pytest.mark.parametrize("path", ["", ":/nowhere", "/nowhere:", "/nowhere::/nowhere"])
def test_a_program_of_the_current_folder(doctor, tmp_path, path):
    """An empty part of PATH names it; a folder of the program's name is none."""
    program, other = tmp_path / "linked", tmp_path / "other"
    (other / "linked").mkdir(parents=True)
    subprocess.run(["cc", "-o", program, "-x", "c", "-"], text=True, check=True,
                   input=SYMBOL + "int main(void) { return 0; }")
    for first in ("", f"{other}:"):
        answer = answer_of(doctor("--json", "--", "linked", PATH=first + path, cwd=tmp_path))
        assert [found["path"] for found in answer["objects"]] == [str(program)]


@pytest.fixture
def sleeper():
    """sleeper(*paths, …) -> a process that has loaded these, until the test ends."""
    started = []

    def start(*paths, **env):
        code = ("import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]; "
                "print(flush=True); sys.stdin.read()")
        process = subprocess.Popen([sys.executable, "-c", code, *map(str, paths)],
                                   env={**os.environ, **env},
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_process(doctor, sleeper, tmp_path):
    own = module(tmp_path / "own.so", SYMBOL)
    process = sleeper(TOYS / "libcudart.so.13", own,
                      LD_LIBRARY_PATH=str(BUILD / "test" / "standin"))
    answer = answer_of(doctor("--json", "--pid", process.pid))
    assert [runtime["path"] for runtime in answer["runtimes"]] == [f"{TOYS}/libcudart.so.13"]
    assert [found["path"] for found in answer["objects"]] == [str(own)]
    other = sleeper().pid
    answer = answer_of(doctor("--json", "--pid", other))
    assert answer["finding"] == f"process {other} has no CUDA runtime (libcudart*) loaded"


def test_all_runtimes_of_a_process(doctor, sleeper, tmp_path):
    """However many there are: one that is left out would be one that nobody tried."""
    runtimes = [tmp_path / str(number) / "libcudart.so.13" for number in range(10, 20)]
    for path in runtimes:
        path.parent.mkdir()
        shutil.copy(TOYS / "libcudart.so.13", path)
    process = sleeper(*runtimes, LD_LIBRARY_PATH=str(BUILD / "test" / "standin"))
    answer = answer_of(doctor("--json", "--pid", process.pid))
    assert sorted(runtime["path"] for runtime in answer["runtimes"]) == list(map(str, runtimes))
    assert answer["finding"] == "tried over 10 CUDA runtimes"


def _word(at, value, size):
    return lambda data: data[:at] + value.to_bytes(size, "little") + data[at + size:]


DAMAGES = {
    "empty": (lambda data: b"", "this is no program and no library"),
    "a byte": (lambda data: b"\x7f", "this is no program and no library"),
    "text": (lambda data: b"text " * 1000, "this is no program and no library"),
    "32 bit": (_word(4, 1, 1), "this is an ELF file of another kind of machine"),
    "half": (lambda data: data[:len(data) // 2], "it is cut off"),
    "sections far away": (_word(40, (1 << 64) - 64, 8), "it is cut off"),
    "odd sections": (_word(58, 63, 2), "tables have entries of an unknown size"),
    "no sections, odd segments": (lambda data: _word(60, 0, 2)(_word(32, (1 << 64) - 8, 8)(data)),
                                  "it is cut off"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_objects_that_are_damaged(doctor, sleeper, tmp_path, damage):
    """A sentence, and the rest is told."""
    spoil, why = DAMAGES[damage]
    path, other = module(tmp_path / "own.so", SYMBOL), module(tmp_path / "too.so", SYMBOL)
    process = sleeper(path, other)
    path.write_bytes(spoil(path.read_bytes()))
    answer = answer_of(doctor("--json", "--pid", process.pid))
    found = {entry["path"]: entry["finding"] for entry in answer["objects"]}
    assert found[str(other)] == OWN and len(found) == 2
    assert found[str(path)].startswith("it cannot be looked at: ") and why in found[str(path)]


def test_an_object_that_was_replaced(doctor, sleeper, tmp_path):
    path = module(tmp_path / "own.so", SYMBOL)
    process = sleeper(path)
    path.unlink()
    answer = answer_of(doctor("--json", "--pid", process.pid))
    assert [entry["finding"] for entry in answer["objects"]] == [
        "it cannot be looked at: No such file or directory"]


def test_an_object_without_sections(doctor, sleeper, tmp_path):
    """What the loader maps is searched then."""
    path = module(tmp_path / "own.so", TEXTS)
    process = sleeper(path)
    path.write_bytes(_word(60, 0, 2)(path.read_bytes()))
    answer = answer_of(doctor("--json", "--pid", process.pid))
    assert [entry["finding"] for entry in answer["objects"]] == [OWN]


def test_any_bytes_end_in_an_answer(doctor, sleeper, tmp_path):
    """Of the tables, which is where numbers are."""
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    path = module(tmp_path / "own.so", SYMBOL)
    process = sleeper(path)
    whole = path.read_bytes()
    table = struct.unpack_from("<Q", whole, 40)[0]
    for _ in range(40):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 5)):
            at = chance.choice((chance.randrange(16, 64), chance.randrange(table, len(whole))))
            data[at] = chance.choice((0, 1, 0x7f, 0xff, chance.randrange(256)))
        path.write_bytes(data)
        answer_of(doctor("--json", "--pid", process.pid))


# ---- wrong use ----------------------------------------------------------------------------------

@pytest.mark.parametrize("args, status, words", (
    (("--pid", "0"), 2, "'0' is no number"), (("--pid", "x"), 2, "'x' is no number"),
    (("--pid", "4194305"), 2, "no process 4194305"),
    (("--pid", "1", "--", "true"), 2, "not both"),
    (("--device", "host:capacity=64MiB"), 2, "not --device"),
    (("--", "/no/such/program"), 127, "No such file"), (("--", "/etc/passwd"), 126, "denied"),
))
def test_wrong_use(doctor, args, status, words):
    result = doctor(*args)
    assert (result.status, result.out) == (status, "")
    assert len(result.err.splitlines()) == 1 and words in result.err


def test_without_the_preload(doctor, tmp_path):
    (tmp_path / "libtidegate.so").symlink_to(LIBRARY)
    shutil.copy(LIBRARY, tmp_path / "libtidegate.so.9")
    result = doctor(TIDEGATE_LIBRARY=str(tmp_path / "libtidegate.so.9"))
    assert (result.status, result.out) == (2, "")
    assert "libtidegate-preload.so, does not lie beside the library" in result.err


def test_a_command_without_the_option_is_none(tidegate):
    result = tidegate("doctor", "--", "true")
    assert (result.status, result.out) == (2, "") and "--preload" in result.err


# ---- how it is called, and stopped ---------------------------------------------------------------

@pytest.mark.parametrize("number, group", [(signal.SIGINT, True), (signal.SIGTERM, False)])
def test_stopped_while_the_command_runs_it_leaves_nothing(tidegate, tmp_path, number, group):
    """Ctrl-C reaches both, kill only the one that it is for."""
    node, pid = tmp_path / "node", tmp_path / "pid"
    node.mkdir(mode=0o700)
    script = 'echo $$ >"$1.new" && mv "$1.new" "$1"; exec sleep 600'
    env = clean_env(TIDEGATE_DIR=str(node))
    with subprocess.Popen([tidegate.program, "doctor", "--preload", "--", "sh", "-c", script, "sh",
                           str(pid)], env=env, start_new_session=True, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as doctor:
        deadline = time.monotonic() + 60
        while not pid.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(node.glob("tidegate-doctor-*")) != []
        (os.killpg if group else os.kill)(doctor.pid, number)
        out, err = doctor.communicate(timeout=60)
    assert (doctor.returncode, out, err) == (130, b"", b"")
    assert list(node.glob("tidegate-doctor-*")) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_caller_that_ignores_the_end_of_children_changes_nothing(tidegate, tmp_path):
    code = ("import os, signal, sys\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
            "os.execv(sys.argv[1], sys.argv[1:])")
    result = run(sys.executable, "-c", code, tidegate.program, "doctor", "--preload", "--", "sh",
                 "-c", "exit 7", env={"TIDEGATE_DIR": str(tmp_path)})
    assert result.status == 1 and "sh, which ended with status 7, loaded no CUDA" in result.out
