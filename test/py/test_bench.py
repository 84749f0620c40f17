# SPDX-License-Identifier: Apache-2.0
"""`tidegate bench`: what its rows hold, what it leaves behind, and what stops it. No figure is
judged here but by what the same run says."""

import json
import os
import pathlib
import re
import signal
import subprocess
import time

import jsonschema
import pytest

from conftest import MIB, ROOT, clean_env
from test_demo import devices, place, standin_env, wait_for  # noqa: F401 (fixture)

GIB = 1024 * MIB
SCHEMA = json.loads((ROOT / "doc/schema/bench-1.json").read_text(encoding="utf-8"))
NAMES = ["vmm", "sleep", "handover", "malloc", "prepared", "repack", "parts",
         "offload"]
SMALL = ("--device", "host:capacity=1GiB", "--rounds", "2", "--size", "24MiB")


@pytest.fixture()
def bench(tidegate, place):  # noqa: F811
    """bench(*args, env=…) -> Result; afterwards no device is left, and nobody in the ledger."""
    def call(*args, env=None, **kw):
        own = {"TIDEGATE_DIR": str(place), "CUDA_VISIBLE_DEVICES": ""}
        return tidegate("bench", *args, env={**own, **(env or {})}, **kw)

    yield call
    assert devices(place) == []
    told = tidegate("status", "--json", env={"TIDEGATE_DIR": str(place)}).json()
    assert told["tenants"] == [] and told["host_bytes"] == 0


@pytest.fixture()
def begun(tidegate, place):  # noqa: F811
    """begun(*args) -> a run that has a row of `sleep`, as Popen; ended after the test."""
    made = []

    def call(*args, **env):
        child = subprocess.Popen([tidegate.program, "bench", *args], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True,
                                 env=clean_env(TIDEGATE_DIR=str(place), **env))
        made.append(child)
        return child

    yield call
    for child in made:
        if child.poll() is None:
            child.kill()
        child.communicate()


def answer_of(result):
    """The JSON object, as its schema has it."""
    assert result.status == 0, result.err
    answer = json.loads(result.out)
    jsonschema.validate(answer, SCHEMA)
    return answer


def rows_of(answer, name):
    """{what: row} of one bench."""
    return {row["what"]: row for row in answer["rows"] if row["bench"] == name}


def refused(result, *words):
    """Status 2, one sentence with the words, and nothing on stdout."""
    assert result.status == 2 and result.out == "", (result.status, result.out)
    assert result.err.startswith("tidegate: ") and result.err.count("\n") == 1, result.err
    for word in words:
        assert word in result.err, result.err


# ---- rows

def test_all_rows(bench):
    """Every name has its rows; what does not fit or is not there is null, with the reason."""
    answer = answer_of(bench("--json", "-", *SMALL))
    assert list(dict.fromkeys(row["bench"] for row in answer["rows"])) == NAMES
    assert answer["device"]["host"] and answer["device"]["driver"] is None
    assert (answer["size_bytes"], answer["rounds"]) == (24 * MIB, 2)
    for row in answer["rows"]:
        if row["value"] is not None:
            assert row["value"]["lowest"] <= row["value"]["median"] <= row["value"]["highest"]
            assert row["size_bytes"] <= (24 if row["bench"] != "malloc" else 640) * MIB
    missing = [row for row in answer["rows"] if row["value"] is None]
    assert {row["bench"] for row in missing if row["what"] == ""} == {"offload"}
    for row in missing:
        assert row["what"] == "" or "--size" in row["reason"], row
    assert all("1 GiB" in row["what"] or "64 MiB" in row["what"]
               for row in missing if row["what"]), missing


def test_vmm_counts_chunks(bench):
    """So many chunks as fit; a rate and a time of each that say the same."""
    rows = rows_of(answer_of(bench("vmm", "--json", "-", *SMALL)), "vmm")
    for what, pieces, size in (("2 MiB", 12, 24), ("20 MiB", 1, 20)):
        for way in ("up", "down"):
            row = rows[f"{way}, chunks of {what}"]
            assert (row["pieces"], row["size_bytes"]) == (pieces, size * MIB)
            assert row["limit"] is None and row["ratio"] is None
    one = rows_of(answer_of(bench("vmm", "--json", "-", *SMALL, "--rounds", "1")), "vmm")
    for row in one.values():
        if row["value"] is not None:
            ours = row["size_bytes"] / GIB / (row["each_us"] * row["pieces"] * 1e-6)
            assert row["value"]["median"] == pytest.approx(ours, rel=1e-6)


def test_sleep_stands_beside_its_limit(bench):
    """Each kind and size, out and back, with the limit of the same run and their ratio."""
    rows = rows_of(answer_of(bench("sleep", "--json", "-", *SMALL, "--rounds", "1")), "sleep")
    for kind in ("no backup", "host, first", "host, later"):
        for size in ("2 MiB", "20 MiB"):
            for way in ("sleep", "wake"):
                row = rows[f"{kind}, {size} blocks: {way}"]
                ours, limit = row["value"]["median"], row["limit"]["median"]
                assert row["ratio"] == pytest.approx(ours / limit, rel=1e-6)
                wanted = "the driver's own" if kind == "no backup" else "a plain copy"
                assert wanted in row["limit"]["what"]
        assert rows[f"{kind}, 1 GiB blocks"]["value"] is None
    for kind, is_given in (("no backup", False), ("host, first", True), ("host, later", False)):
        assert (f"{kind}, 20 MiB blocks: given back" in rows) == is_given
    at_once = rows["host, later, 20 MiB blocks: at once"]
    assert at_once["limit"] == rows["host, later, 20 MiB blocks: wake"]["limit"]
    assert at_once["value"]["median"] > 0


def test_repack_gives_back_all_but_what_stays(bench):
    """Its bytes are those that came back, its pieces the pages that stayed."""
    answer = answer_of(bench("repack", "--json", "-", "--device", "host:capacity=1GiB", "--size",
                             "400MiB", "--rounds", "2"))
    row, = rows_of(answer, "repack").values()
    assert (row["pieces"], row["size_bytes"]) == (4, (200 - 4) * 2 * MIB)
    small = answer_of(bench("repack", "--json", "-", "--device", "host:capacity=64MiB", "--size",
                            "2MiB"))
    row, = rows_of(small, "repack").values()
    assert row["value"] is None and "--size" in row["reason"]


def test_prepared_makes_its_host_memory_before(bench):
    """What that takes has a row of its own; sleep and wake stand beside the plain copy."""
    rows = rows_of(answer_of(bench("prepared", "--json", "-", *SMALL)), "prepared")
    assert list(rows) == [*(f"host, {size} blocks: {way}" for size in ("2 MiB", "20 MiB")
                            for way in ("prepare", "sleep", "wake", "given back")),
                          "host, 1 GiB blocks"]
    for what, row in rows.items():
        if row["value"] is not None:
            assert (row["limit"] is None) == what.endswith(("prepare", "given back"))
        if what.endswith("prepare"):  # new pages are work: no machine makes a TiB of them a second
            assert row["value"]["median"] < 1024


def test_parts_follow_each_other(bench):
    """All of the host memory in each part; half of it is copied, beside the same copy alone."""
    rows = rows_of(answer_of(bench("parts", "--json", "-", "--device", "host:capacity=1GiB",
                                   "--rounds", "2", "--size", "600MiB")), "parts")
    assert list(rows) == ["host memory touched", "pinned, in steps of 256 MiB",
                          "copied while other steps are unpinned",
                          "unpinned, in steps of 256 MiB", "unmapped"]
    for what, row in rows.items():
        is_copy = what.startswith("copied")
        assert row["size_bytes"] == (300 if is_copy else 600) * MIB
        assert row["pieces"] == (1 if is_copy else 4)
        assert (row["limit"] is None) != is_copy
    small = rows_of(answer_of(bench("parts", "--json", "-", "--device", "host:capacity=64MiB",
                                    "--size", "2MiB")), "parts")
    assert "--size" in small["host memory"]["reason"]


def test_names_are_measured_once_in_the_order_of_the_table(bench):
    """Whatever the order and number of the words."""
    answer = answer_of(bench("malloc", "vmm", "malloc", "--json", "-", *SMALL))
    names = [row["bench"] for row in answer["rows"]]
    assert names == sorted(names, key=NAMES.index) and set(names) == {"vmm", "malloc"}
    assert len(rows_of(answer, "malloc")) == names.count("malloc")


def test_malloc(bench):
    """Reused blocks and fresh ones, beside the driver's calls."""
    rows = rows_of(answer_of(bench("malloc", "--json", "-", *SMALL)), "malloc")
    assert len(rows) == 6
    for row in rows.values():
        assert row["unit"] == "us" and "release" in row["limit"]["what"]
    small = rows_of(answer_of(bench("malloc", "--json", "-", "--device", "host:capacity=64MiB",
                                    "--size", "24MiB")), "malloc")
    assert small["reused, zeroed, 20 MiB block"]["reason"].endswith("too small to keep")


def test_handover(bench):
    """Two tenants take turns, and the ledger's own part."""
    rows = rows_of(answer_of(bench("handover", "--json", "-", *SMALL)), "handover")
    assert rows["to the other side, 2 MiB blocks"]["unit"] == "ms"
    assert rows["to the other side, 20 MiB blocks"]["pieces"] == 1
    assert rows["ledger: reserve and cancel"]["pieces"] == 1000


def test_preset_size_fits(bench):
    """A sixteenth of what is free, on a device of whatever size."""
    for capacity, size in (("64MiB", 4), ("320MiB", 20), ("6MiB", None)):
        result = bench("vmm", "--json", "-", "--device", f"host:capacity={capacity}")
        if size is None:
            refused(result, "less than the device gives")
        else:
            assert answer_of(result)["size_bytes"] == size * MIB


# ---- text and files

def test_text_says_the_same(bench, tmp_path):
    """A line for the device, one for each row, and what the limits were; the object beside it."""
    path = tmp_path / "bench.json"
    result = bench("--json", path, *SMALL)
    assert result.status == 0 and result.err == ""
    answer = json.loads(path.read_text())
    jsonschema.validate(answer, SCHEMA)
    lines = result.out.splitlines()
    assert re.match(r"host:capacity=1GiB \(memory of this machine stands for a card\), 1.0 GiB "
                    r"free of 1.0 GiB; 24 MiB in each row, 2 rounds, tidegate \d", lines[0])
    table = lines[2:2 + len(answer["rows"])]
    for row, line in zip(answer["rows"], table):
        assert line.split()[0] == row["bench"] and row["what"] in line
        if row["value"] is None:
            assert line.endswith("not measured here: " + row["reason"])
        else:
            assert re.search(rf" [\d.]+ {row['unit']} +[\d.]+-[\d.]+( |$)", line), line
            assert (row["ratio"] is None) == (not re.search(r" \d+\.\d\d$", line)), line
    limits = {row["limit"]["what"] for row in answer["rows"] if row["limit"] is not None}
    assert len(limits) == 4 == len(lines) - 2 - len(table)
    for line in lines[-3:]:
        assert any(line.startswith("limit ") and line.endswith(limit) for limit in limits)


def test_no_table_beside_the_object(bench):
    """With --json - stdout is one line."""
    assert bench("vmm", "--json", "-", *SMALL).out.count("\n") == 1


@pytest.mark.parametrize("path", ("/proc/none/bench.json", "/"))
def test_file_that_cannot_be_written(bench, place, path):  # noqa: F811
    """Said before anything is measured or made."""
    refused(bench("--json", path, *SMALL), f"--json {path}")
    assert not place.exists()


# ---- wrong use

@pytest.mark.parametrize("args, words", (
    (("slep",), ("'slep'", "maybe: sleep?")),
    (("everything",), ("'everything'",)),
    (("--size", "0"), ("--size", "above 0")),
    (("--size", "much"), ("--size", "a size")),
    (("--rounds", "0"), ("--rounds", "from 1 to 100")),
    (("--rounds", "101"), ("--rounds", "from 1 to 100")),
    (("--device", "card"), ("--device", "cuda:N")),
    (("--device", "host:capacity=1"), ("--device",)),
    (("--device", "x" * 300), ("--device",)),
    (("--size", "1KiB"), ("less than the device gives",)),
    (("--size", "2GiB", "--device", "host:capacity=1GiB"), ("--size 2", "free: 1")),
    (("--size", "900GiB", "--device", "host:capacity=1TiB"), ("memory allows",)),
))
def test_wrong_use(bench, args, words):
    """One sentence, status 2, and nothing was changed."""
    refused(bench(*args), *words)


def test_ledger_that_is_not_ours(tidegate, place):  # noqa: F811
    """Others could not see what the run takes: it does not begin."""
    place.mkdir(mode=0o755)
    refused(tidegate("bench", *SMALL, env={"TIDEGATE_DIR": str(place)}), str(place))
    assert not list(place.iterdir())


# ---- trouble

CALLS = ("reserve", "create", "map", "unmap", "release", "copy", "fill", "fence", "wait",
         "queue_open", "memory", "info")


@pytest.mark.parametrize("call, mode, nth", [
    *((call, mode, 3) for call in CALLS for mode in ("once", "after")),
    ("pin", "after", 1), ("unmap", "every", 1), ("release", "every", 1)])
def test_device_that_fails(bench, call, mode, nth):
    """In the middle: one sentence that tells the first refusal, and nothing stays."""
    result = bench("--device", f"fault:nth={nth},op={call},mode={mode}/host:capacity=256MiB",
                   "--rounds", "2", "--size", "8MiB")
    assert result.status == 1 and result.err.count("\n") == 1, result.err
    assert re.fullmatch(rf"tidegate: \w+: call {nth} of the device, {call}, fails by plan\n",
                        result.err), result.err


def test_failure_leaves_no_object(bench, tmp_path):
    """A file is written when all of it is known."""
    path = tmp_path / "bench.json"
    assert bench("vmm", "--json", path, "--device",
                 "fault:nth=9,op=create/host:capacity=64MiB").status == 1
    assert not path.exists()


def test_host_memory_that_lacks(bench):
    """The library's sentence."""
    result = bench("sleep", *SMALL, env={"TIDEGATE_HOST_BYTES": "16MiB"})
    assert result.status == 1 and "host" in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM))
def test_interrupted(begun, bench, place, number):  # noqa: F811
    """130, not a word, and nothing stays: neither device nor tenant, nor shared memory."""
    child = begun("sleep", "--rounds", "100", "--device", "host:capacity=256MiB", "--size", "64MiB")
    child.stdout.readline()
    child.stdout.readline()
    child.stdout.readline()
    child.send_signal(number)
    _, err = child.communicate(timeout=60)
    assert (child.returncode, err) == (130, "")
    assert devices(place) == []


def status_of(child, key):
    """A word of the kernel's about a process."""
    text = pathlib.Path(f"/proc/{child.pid}/status").read_text()
    return re.search(rf"^{key}:\s*(\w+)", text, re.MULTILINE).group(1)


def test_second_signal_ends_at_once(begun, place):  # noqa: F811
    """Where the device hangs, an end in order takes long."""
    child = begun("sleep", "--device", "host:capacity=64MiB,name=hangs,hang=1")
    child.stdout.readline()
    child.stdout.readline()
    waits = []
    assert wait_for(lambda: waits.append(status_of(child, "State")) or waits[-20:] == ["S"] * 20)
    child.send_signal(signal.SIGINT)
    assert wait_for(lambda: not int(status_of(child, "SigCgt"), 16) & 1 << signal.SIGINT - 1)
    child.send_signal(signal.SIGINT)
    assert child.wait(timeout=10) == -signal.SIGINT
    assert [name for name in os.listdir(place) if name != "ledger"] == ["host-hangs"]


def test_others_see_who_holds_it(begun, tidegate, place):  # noqa: F811
    """As the tenant "bench", with its bytes."""
    child = begun("vmm", "--rounds", "100", "--device", "host:capacity=512MiB,name=shared",
                  "--size", "256MiB")

    def seen():
        told = json.loads(tidegate("status", "--json", env={"TIDEGATE_DIR": str(place)}).out)
        return [tag["awake_bytes"] for tenant in told["tenants"] if tenant["name"] == "bench"
                for tag in tenant["tags"] if tag["name"] == "chunks" and tag["awake_bytes"]]

    held = []
    deadline = time.monotonic() + 20
    while not held and child.poll() is None and time.monotonic() < deadline:
        held = seen()
    assert held in ([256 * MIB], [240 * MIB]), held


# ---- a card

@pytest.mark.parametrize("args", ((), ("--device", "cuda:0")))
def test_card(tidegate, place, args):  # noqa: F811
    """Over the driver that stands in; auto takes a card that nobody uses."""
    env = standin_env(tidegate, place, "capacity=256MiB")
    answer = answer_of(tidegate("bench", "--json", "-", *args, "--rounds", "2", env=env))
    assert answer["device"]["uri"] == "cuda:0" and not answer["device"]["host"]
    assert answer["size_bytes"] == 16 * MIB
    assert len([row for row in answer["rows"] if row["value"] is not None]) >= 12


def test_named_device_stays(tidegate, place):  # noqa: F811
    """It is its user's."""
    done = tidegate("bench", "vmm", "--device", "host:capacity=64MiB,name=mine", "--rounds", "1",
                    env={"TIDEGATE_DIR": str(place)})
    assert done.status == 0 and devices(place) == ["host-mine"]


def test_schema_can_fail(bench):
    """A row without its figures or its reason is none."""
    answer = answer_of(bench("vmm", "offload", "--json", "-", *SMALL))
    for name, change in (("vmm", {"value": None}), ("offload", {"reason": None}),
                         ("vmm", {"reason": "none"}), ("offload", {"ratio": 1.0})):
        rows = [{**row, **(change if row["bench"] == name else {})} for row in answer["rows"]]
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**answer, "rows": rows}, SCHEMA)
