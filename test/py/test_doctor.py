# SPDX-License-Identifier: Apache-2.0
"""`tidegate doctor`: what it finds on this machine, in a container that lacks everything, and that
its advice, followed to the letter, helps."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jsonschema
import pytest

from conftest import ROOT, clean_env
from test_demo import place  # noqa: F401 (fixture)
from test_enable import distribution, fake_python

SCHEMA = json.loads((ROOT / "doc/schema/doctor-1.json").read_text(encoding="utf-8"))
HOST = ("--device", "host:capacity=64MiB")
CHECKS = ["driver", "device", "pin", "export", "shm", "ledger", "memory", "out", "python", "glibc"]


@pytest.fixture()
def doctor(tidegate, place, tmp_path):  # noqa: F811
    """doctor(*args, env=…) -> Result, with places that are this test's own"""
    def call(*args, env=None):
        # No card is seen, whatever the machine has.
        own = {"TIDEGATE_DIR": str(place), "HOME": str(tmp_path), "VIRTUAL_ENV": "",
               "CUDA_VISIBLE_DEVICES": ""}
        return tidegate("doctor", *args, env={**own, **(env or {})})

    return call


def answer_of(result):
    """The JSON object, as its schema has it."""
    assert result.status in (0, 1), result.err
    answer = json.loads(result.out)
    jsonschema.validate(answer, SCHEMA)
    assert [check["name"] for check in answer["checks"]] == CHECKS
    for check in answer["checks"]:
        assert (check["advice"] is None) == (check["state"] in ("ok", "skipped")), check
        assert check["command"] is None or check["advice"] is not None
    states = [check["state"] for check in answer["checks"]]
    assert result.status == (1 if "bad" in states else 0)
    return answer


def check_of(result, name):
    """One check of the answer."""
    return next(check for check in answer_of(result)["checks"] if check["name"] == name)


# ---- a machine as it should be

def test_host_device(doctor, place, tmp_path):  # noqa: F811
    """On memory that stands for a card all is tried, and nothing stays."""
    answer = answer_of(doctor("--json", "--python", sys.executable, *HOST))
    states = {check["name"]: check["state"] for check in answer["checks"]}
    assert all(states[name] == "ok" for name in CHECKS if name not in ("shm", "memory"))
    assert answer["python"] == sys.executable
    assert not place.exists() and not list(place.parent.glob("tidegate-doctor-*"))
    assert not list(tmp_path.glob(".tidegate-doctor-*"))


def test_cards(doctor, place):  # noqa: F811
    """Through the driver, which here stands in: every card is told, and the first one tried."""
    standin = pathlib.Path(os.environ.get("TIDEGATE_BIN") or ROOT / "build/cli/tidegate")
    standin = standin.resolve().parents[1] / "test/standin"
    assert (standin / "libcuda.so.1").exists(), "build it: make all"
    place.mkdir(mode=0o700)  # what the stand-in makes is its own
    env = {"LD_LIBRARY_PATH": str(standin), "TIDEGATE_STANDIN": "capacity=64MiB,devices=2"}
    checks = answer_of(doctor("--json", env=env))["checks"][:4]
    assert [check["state"] for check in checks] == ["ok"] * 4
    assert "cuda:0" in checks[1]["finding"] and "cuda:1" in checks[1]["finding"]
    assert "cuda:2" not in checks[1]["finding"] and checks[1]["finding"].count(" 64 MiB") == 2


def test_text_says_the_same(doctor):
    """A line for each check, its advice below it, then the table."""
    answer = answer_of(doctor("--json"))
    result = doctor()
    lines = result.out.splitlines()
    assert lines[0].startswith("bad   driver   ")
    for check in answer["checks"]:
        word = "-" if check["state"] == "skipped" else check["state"]
        at = next(at for at, line in enumerate(lines) if line.split()[:2] == [word, check["name"]])
        assert lines[at + 1].startswith("               -> ") == (check["advice"] is not None)
        if check["command"] is not None:
            assert lines[at + 1] == f"               -> {check['advice']}: {check['command']}"
    assert lines[lines.index("") + 1].startswith("what works")
    assert len(lines) - lines.index("") - 2 == len(answer["features"])


def test_ledger_that_is_used(tidegate, doctor, place):  # noqa: F811
    """It is read, and stays as it is."""
    assert tidegate("demo", "--steps", "1", "--capacity", "64MiB",
                    env={"TIDEGATE_DIR": str(place)}).status == 0
    before = {path: path.read_bytes() for path in place.iterdir()}
    found = check_of(doctor("--json"), "ledger")
    assert (found["state"], found["finding"]) == ("ok", f"{place} can be read")
    assert {path: path.read_bytes() for path in place.iterdir()} == before


# ---- what is wrong

@pytest.mark.parametrize("call, name", (("pin", "pin"), ("export_fd", "export"),
                                        ("import_fd", "export"), ("memory", "device"),
                                        ("create", "export")))
def test_device_that_refuses(doctor, call, name):
    """The call that fails has its line; the others go on."""
    result = doctor("--json", "--device", f"fault:nth=1,op={call},mode=every/host:capacity=64MiB")
    states = {check["name"]: check["state"] for check in answer_of(result)["checks"]}
    assert states[name] == "bad"
    assert [states[other] for other in ("driver", "device", "pin", "export")].count("ok") == 3


def test_place_that_is_open_to_others(doctor, place):  # noqa: F811
    """The advice makes it right, as it is written."""
    place.mkdir(mode=0o755)
    found = check_of(doctor("--json"), "ledger")
    assert found["state"] == "bad" and found["command"] == f"chmod 700 '{place}'"
    subprocess.run(found["command"], shell=True, check=True)
    assert check_of(doctor("--json"), "ledger")["state"] == "ok"
    assert not list(place.iterdir())


def test_place_that_cannot_be_made(doctor):
    """Where TIDEGATE_DIR is at fault, it is to go."""
    found = check_of(doctor("--json", env={"TIDEGATE_DIR": "/proc/none/such"}), "ledger")
    assert (found["state"], found["command"]) == ("bad", "unset TIDEGATE_DIR")
    assert "/proc/none/such" in found["finding"]


def test_ledger_of_garbage(doctor, place):  # noqa: F811
    """Said, in the library's words."""
    place.mkdir(mode=0o700)
    (place / "ledger").write_bytes(os.urandom(4096))
    (place / "ledger").chmod(0o600)
    assert check_of(doctor("--json"), "ledger")["state"] == "bad"


def test_host_memory(doctor):
    """The library's own figure, with the option in it."""
    found = check_of(doctor("--json", env={"TIDEGATE_HOST_BYTES": "100MiB"}), "memory")
    assert (found["state"], found["command"]) == ("warn", "unset TIDEGATE_HOST_BYTES")
    assert found["finding"].startswith("100 MiB ")
    found = check_of(doctor("--json", env={"TIDEGATE_HOST_BYTES": "much"}), "memory")
    assert (found["state"], found["command"]) == ("bad", "unset TIDEGATE_HOST_BYTES")


@pytest.mark.parametrize("env", ({"HOME": "/proc/none"}, {"HOME": ""},
                                 {"TIDEGATE_OUT": "/proc/none/deep/er"}))
def test_no_place_for_records(doctor, env):
    """A folder is named that works."""
    found = check_of(doctor("--json", env=env), "out")
    assert found["state"] == "warn"
    variable, value = found["command"].removeprefix("export ").split("=")
    again = check_of(doctor("--json", env={**env, variable: value}), "out")
    assert again["state"] == "ok" and not pathlib.Path(value).exists()


# ---- versions

@pytest.fixture()
def site(tmp_path):
    """site(name=version, …) -> options and environment of a Python with these packages"""
    def make(**versions):
        folder = tmp_path / "site"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, version in versions.items():
            distribution(folder, name, version)
        return {"PYTHONPATH": str(folder)}

    return make


def applying(answer):
    """(engine, where, state) of the hand-over rows that are of what is installed."""
    return [(row["engine"], row["where"], row["state"]) for row in answer["features"]
            if row["applies"] and row["name"] == "exact hand-over"]


def test_features_of_what_is_installed(doctor, site):
    """Rows are marked by version and engine."""
    def answer(**versions):
        env = site(tidegate="0.1.0", **versions)
        return answer_of(doctor("--json", "--python", sys.executable, env=env))

    first = answer(torch="2.11.0", verl="0.9.1", vllm="0.24.0")
    assert first["versions"] == {"torch": "2.11.0", "verl": "0.9.1", "vllm": "0.24.0",
                                 "sglang": None, "tidegate": "0.1.0"}
    assert [row[0::2] for row in applying(first)] == [("vllm", "works"), ("vllm", "observe only")]
    assert applying(answer(verl="0.7.0", vllm="0.10.0")) == [("vllm", None, "observe only")]
    assert [row[0] for row in applying(answer(verl="0.6.1", sglang="0.5.5"))] == ["sglang"] * 2
    assert applying(answer(verl="0.6.0", sglang="0.5.5")) == [(None, None, "refused")]
    assert applying(answer(vllm="0.24.0")) == []


@pytest.mark.parametrize("engine, before, known", (("sglang", "0.5.11", "0.5.12"),
                                                   ("vllm", "0.23.0", "0.24.0")))
def test_rows_of_an_engine_are_marked_by_its_version(doctor, site, engine, before, known):
    """Whether verl is beside it or not."""
    def answer(**versions):
        found = answer_of(doctor("--json", "--python", sys.executable,
                                 env=site(tidegate="0.1.0", **versions)))
        return [row["state"] for row in found["features"]
                if row["applies"] and row["program"] == engine]

    assert answer(**{engine: before}) == ["refused"]
    assert answer(**{engine: known}, verl="0.9.1") == ["works"]
    assert answer(verl="0.9.1") == []


def test_marks_in_the_text(doctor, site):
    """The same rows, by a star."""
    env = site(verl="0.9.1", sglang="0.5.12", tidegate="0.1.0")
    result = doctor("--python", sys.executable, env=env)
    marked = [line for line in result.out.splitlines() if line.startswith("* ")]
    assert len(marked) == 5 and sum("sglang" in line for line in marked) == 3


def test_table_is_the_packages(doctor):
    """What the command shows is what the package's own code decides by."""
    sys.path.insert(0, str(ROOT / "python"))
    from tidegate import features  # pylint: disable=import-outside-toplevel

    rows = answer_of(doctor("--json"))["features"]
    assert [(row["name"], row["engine"] or "", row["where"] or "", row["state"],
             row["reason"] or "") for row in rows] == [
        (row.name, row.engine, row.where, row.state, row.reason) for row in features.FEATURES]
    assert features.hand_over((0, 7, 0), "vllm", 1).state == features.OBSERVES
    assert features.hand_over((0, 9, 1), "vllm", 1).state == features.WORKS
    assert features.hand_over((0, 9, 1), "sglang", 2).state == features.OBSERVES
    assert features.hand_over((0, 6, 0), "sglang", 1).state == features.REFUSED
    assert features.hand_over((0, 9, 1), "other", 1).state == features.REFUSED


def test_packages_without_ours(tidegate, doctor, site, place, tmp_path):  # noqa: F811
    """Said, unless the package comes along with the command."""
    env = site(verl="0.9.1")
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(tidegate.program, alone)
    done = subprocess.run([alone / "tidegate", "doctor", "--json", "--python", sys.executable],
                          env=clean_env(TIDEGATE_DIR=str(place), **env), capture_output=True,
                          check=False)
    found = next(check for check in json.loads(done.stdout)["checks"] if check["name"] == "python")
    assert found["state"] == "warn"
    assert found["command"] == f"'{sys.executable}' -m pip install tidegate"
    assert check_of(doctor("--json", "--python", sys.executable, env=env), "python")[
        "state"] == "ok"


def test_verl_that_is_too_old(doctor, site):
    """What can be updated is told so."""
    found = check_of(doctor("--json", "--python", sys.executable,
                            env=site(verl="0.5.0", tidegate="0.1.0")), "python")
    assert found["state"] == "warn" and found["command"].endswith("pip install --upgrade verl")


def test_no_python(doctor):
    """Said; the rest is looked at all the same."""
    found = check_of(doctor("--json", env={"PATH": "/nowhere"}), "python")
    assert found["state"] == "warn" and "--python" in found["advice"]


def test_odd_version(doctor, tmp_path):
    """What a Python answers is made harmless."""
    odd = fake_python(tmp_path / "odd", "0.9.1\033[2J")
    assert "\033" not in doctor("--python", odd).out
    answer_of(doctor("--json", "--python", odd))


# ---- a container that lacks everything

CONTAINER = """
set -eu
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
mount --bind "$HOME" "$HOME"
mount -o remount,ro,bind "$HOME"
"""


def in_container(tidegate, tmp_path, script):
    """Runs a script with 64 MiB of /dev/shm, no GPU and a read-only home; skips where the machine
    does not let us make one."""
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    unshare = ["unshare", "--user", "--map-root-user", "--mount"]
    env = clean_env(HOME=str(home), CUDA_VISIBLE_DEVICES="", VIRTUAL_ENV="", TIDEGATE_OUT="",
                    PATH=f"{pathlib.Path(tidegate.program).parent}:{os.environ['PATH']}")
    able = subprocess.run([*unshare, "sh", "-c", CONTAINER], env=env, capture_output=True,
                          text=True, check=False)
    if able.returncode != 0:
        pytest.skip(f"no user and mount namespace here: {able.stderr.strip()}")
    return subprocess.run([*unshare, "sh", "-c", CONTAINER + script], env=env,
                          capture_output=True, text=True, check=False)


def states_of(text):
    """{name: state} of the lines of the text form."""
    words = [line.split()[:2] for line in text.splitlines()]
    return {pair[1]: pair[0] for pair in words
            if len(pair) == 2 and pair[0] in ("ok", "warn", "bad", "-") and pair[1] in CHECKS}


def test_advice_followed_to_the_letter(tidegate, tmp_path):
    """Three lines at least are not ok; every line is after its advice was done as it stands."""
    done = in_container(tidegate, tmp_path, "tidegate doctor --json")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    wrong = [check for check in answer["checks"] if check["state"] in ("warn", "bad")]
    assert {"driver", "shm", "out"} <= {check["name"] for check in wrong}
    commands = [check["command"] for check in wrong if check["command"] is not None]
    # The doctor's own call comes last: what the others change is for it to see.
    commands.sort(key=lambda command: command.startswith("tidegate doctor"))
    assert commands[-1].startswith("tidegate doctor ")
    done = in_container(tidegate, tmp_path, "\n".join(commands))
    states = states_of(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {states[check["name"]] for check in wrong} == {"ok"}, done.stdout


def test_full_shared_memory(tidegate, tmp_path):
    """No place for the ledger: bad, for both."""
    done = in_container(tidegate, tmp_path, "head -c 70M /dev/zero > /dev/shm/full || true\n"
                                            "tidegate doctor")
    states = states_of(done.stdout)
    assert states["shm"] == states["ledger"] == "bad", done.stdout


# ---- wrong use

@pytest.mark.parametrize("args, words", (
    (("all",), ("all",)), (("--jsno",), ("maybe: --json?",)), (("--json=1",), ("--json",)),
    (("--device", "toaster:1"), ("--device", "toaster")),
    (("--device", "host:capacity=1"), ("--device", "capacity")),
    (("--python", "/no/such"), ("/no/such",)), (("--python",), ("--python",)),
))
def test_wrong_use(doctor, place, args, words):  # noqa: F811
    """A sentence, status 2, nothing on stdout and nothing made."""
    result = doctor(*args)
    assert result.status == 2 and result.out == "" and len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err
    assert not place.exists() and not list(place.parent.glob("tidegate-doctor-*"))
