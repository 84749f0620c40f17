# SPDX-License-Identifier: Apache-2.0
"""How the command behaves: statuses, streams, options, folders with trouble in them."""

import json
import os
import re
import shutil
import stat

import jsonschema
import pytest

from conftest import DATA, MIB, ROOT, crashed, run
from gen import forms, kinds, plant, samples
from gen.allocator import Clock
from gen.program import Program, Shape
from gen.stacks import Stacks

LEAK = DATA / "qwen_vl_leak_logits.pickle.xz"
CLEAN = DATA / "verl_march"
SCHEMA = json.loads((ROOT / "doc/schema/leak-1.json").read_text(encoding="utf-8")) if (
    ROOT / "doc/schema/leak-1.json").exists() else None


def wrong_use(result, *words):
    """Status 2, nothing on stdout, the words on stderr."""
    assert result.status == 2 and result.out == "", (result.status, result.out[:200])
    for word in words:
        assert word in result.err, result.err
    return result


# ---- statuses

def test_status_read(tidegate):
    """0 also where a leak was found: it was read."""
    assert tidegate("leak", LEAK).status == 0
    assert tidegate("leak", CLEAN).status == 0


@pytest.mark.parametrize("limit, status", (("100MiB", 3), ("140MiB", 3), ("143MiB", 0),
                                           ("1GiB", 0), ("1", 3), ("148000000", 0)))
def test_fail_above(tidegate, limit, status):
    """3 when more leaks a step than allowed (141.1 MiB do); the answer is printed all the same."""
    result = tidegate("leak", "--json", "--fail-above", limit, LEAK)
    assert result.status == status and result.json()["verdict"] == "leak"


def test_fail_above_without_leak(tidegate):
    """No leak is above nothing."""
    assert tidegate("leak", "--fail-above", "1", CLEAN).status == 0


def test_no_arguments(tidegate):
    """Wrong usage, and how it is right."""
    for args in ((), ("leak",)):
        result = wrong_use(tidegate(*args))
        assert "usage" in result.err or "--help" in result.err


# ---- options

@pytest.mark.parametrize("given, meant", (("--jsno", "--json"), ("--step-form", "--step-from"),
                                          ("--rank-form", "--rank-from"), ("--jso", "--json"),
                                          ("--capasity", "--capacity"), ("--owm", "--own"),
                                          ("--fail-abov", "--fail-above"),
                                          ("--step-marks", "--step-mark")))
def test_unknown_option(tidegate, given, meant):
    """The contract's words: maybe: --x?"""
    wrong_use(tidegate("leak", given, "1", LEAK), given, f"maybe: {meant}?")


def test_unknown_option_like_none(tidegate):
    """No guess where none is near."""
    result = wrong_use(tidegate("leak", "--quux-frobnicate", LEAK), "--quux-frobnicate")
    assert "maybe" not in result.err


def test_unknown_verb(tidegate):
    """Verbs are guessed, too."""
    wrong_use(tidegate("laek", LEAK), "laek", "maybe: leak?")


@pytest.mark.parametrize("args", (("--capacity", "much"), ("--capacity", "-1"), ("--capacity", ""),
                                  ("--fail-above", "x"), ("--fail-above", "1e999"),
                                  ("--step-from", "(["), ("--step-from", "nogroup"),
                                  ("--rank-from", "(a)(b)"), ("--own", "(["),
                                  ("--json=yes",), ("--capacity", "99999999999999999999TiB")))
def test_bad_values(tidegate, args):
    """A sentence that names the option."""
    wrong_use(tidegate("leak", *args, LEAK), args[0].split("=")[0])


def test_option_without_value(tidegate):
    """At the end of the line."""
    wrong_use(tidegate("leak", LEAK, "--capacity"), "--capacity")


def test_help_and_version(tidegate):
    """On stdout, status 0, every option named."""
    assert re.fullmatch(r"tidegate \d+\.\d+\.\d+\n", tidegate("--version").out)
    text = tidegate("leak", "--help")
    assert text.status == 0
    for option in ("json", "capacity", "step-from", "rank-from", "step-mark", "own", "fail-above"):
        assert f"--{option}" in text.out
    assert tidegate("--help").status == 0 and "leak" in tidegate("--help").out


def test_double_dash_ends_options(tidegate, tmp_path):
    """A file may be named like an option."""
    shutil.copy(LEAK, tmp_path / "--json.pickle.xz")
    result = tidegate("leak", "--", "--json.pickle.xz", cwd=tmp_path)
    assert result.status == 0 and result.out.count("LEAK") == 1


def test_capacity_is_named(tidegate):
    """The card's size that was assumed is always told, and another moves the step."""
    preset = tidegate("leak", LEAK).out
    assert "80 GiB" in preset and "--capacity" in preset
    small, large = (tidegate("leak", "--json", "--capacity", c, LEAK).json()["full_at_step"]
                    for c in ("8GiB", "640GiB"))
    assert small < large


def test_own_moves_the_line(tidegate):
    """--own says whose code is charged."""
    answer = tidegate("leak", "--json", "--own", "modeling_qwen2_5_vl", LEAK).json()
    assert answer["leaks"][0]["where"] == "modeling_qwen2_5_vl.py:1398 forward"


def test_own_that_matches_nothing(tidegate):
    """Then all sites are the library's."""
    answer = tidegate("leak", "--json", "--own", "no/such/code", LEAK).json()
    assert answer["leaks"][0]["where"].endswith("(library)")


@pytest.mark.parametrize("root, own", (
    ("/usr/local/lib/python3.12/dist-packages/verl/workers/actor", True),
    ("/opt/venv/lib/python3.11/site-packages/verl/workers/actor", True),
    ("/home/u/verl/verl/workers/actor", True), ("/root/my project", True), (".", True),
    ("/usr/lib/python3.11", False), ("/opt/venv/lib/python3.11/site-packages/torch/nn", False),
    ("/opt/venv/lib/python3.11/site-packages/transformers", False),
    ("/opt/venv/lib/python3.11/site-packages/some_other_package", False)))
def test_whose_code_it_is(tidegate, tmp_path, root, own):
    """The user's own code is what is neither Python's nor a library's; verl's is their own."""
    process = Program(Shape(), Clock(), Stacks(root=root))
    process.site(kinds.Plan("linear", [kinds.Step(MIB, True)] * 6, "leak", MIB, 0), 14, "own")
    process.build()
    for t in range(6):
        process.step(t)
    path = tmp_path / "o.pickle"
    path.write_bytes(forms.WRITERS["py4"](process.snapshot()))
    answer = tidegate("leak", "--json", path).json()
    where = "rl_actor.py:14 _forward_micro_batch"
    assert [s["where"] for s in answer["leaks"]] == [where + ("" if own else " (library)")]


# ---- folders and files with trouble

@pytest.fixture()
def run_folder(tmp_path):
    """Six steps of a linear leak in verl's layout."""
    planter = plant.Planter("cli", kinds.linear, "cleared")
    planter.writer = "py4"
    planter.case.argv = []
    case = planter.make()
    case.write(str(tmp_path / "run"))
    return tmp_path / "run", case


def test_one_unreadable_among_many(tidegate, run_folder):
    """It is named with its byte, the rest is answered: status 0."""
    folder, case = run_folder
    (folder / "profile/step1").mkdir(exist_ok=True, parents=True)
    bad = folder / "profile/step0"
    bad.mkdir()
    (bad / "torch_memory_rank0_pid4000.pickle").write_bytes(b"\x80\x04}(\x8c\x08segm")
    result = tidegate("leak", "--json", folder)
    assert result.status == 0
    assert "step0/torch_memory_rank0_pid4000.pickle" in result.err and "at byte" in result.err
    answer = result.json()
    assert answer["verdict"] == "leak"
    assert abs(answer["bytes_per_step"] - case.rates[0]) <= 0.02 * case.rates[0]
    assert any("step0" in note for note in answer["notes"])
    assert len(answer["inputs"]) == len(case.files)


def test_all_unreadable(tidegate, tmp_path):
    """Nothing could be answered: 2, each named."""
    for n in range(3):
        (tmp_path / f"step{n}_rank0.pickle").write_bytes(b"\x80\x04.")
    result = wrong_use(tidegate("leak", "--json", tmp_path))
    for n in range(3):
        assert f"step{n}_rank0.pickle" in result.err


def test_empty_folder(tidegate, tmp_path):
    """Said, with the folder's name."""
    wrong_use(tidegate("leak", tmp_path), str(tmp_path))


def test_folder_of_other_files(tidegate, tmp_path):
    """Nothing that counts as a snapshot."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.pickle").write_bytes(b"x")
    wrong_use(tidegate("leak", tmp_path), str(tmp_path))


def test_missing_file(tidegate, tmp_path):
    """As the system says it."""
    wrong_use(tidegate("leak", tmp_path / "no.pickle"), "no.pickle", "No such file")


def test_link_in_a_circle(tidegate, tmp_path):
    """What the system refuses to open is told as the system tells it. (A file without permission
    would do as well, but root may read all.)"""
    (tmp_path / "loop.pickle").symlink_to(tmp_path / "loop.pickle")
    for path in (tmp_path / "loop.pickle", tmp_path):
        wrong_use(tidegate("leak", path), "loop.pickle", "symbolic links")


def test_missing_among_given(tidegate, tmp_path):
    """The rest of the command line is answered."""
    result = tidegate("leak", "--json", LEAK, tmp_path / "no.pickle")
    assert result.status == 0 and "no.pickle" in result.err
    assert len(result.json()["inputs"]) == 1


def test_fifo_and_device(tidegate, tmp_path):
    """A pipe in a folder is no snapshot, and does not hang the command."""
    os.mkfifo(tmp_path / "p.pickle")
    result = tidegate("leak", tmp_path, timeout=20)
    assert result.status == 2
    assert tidegate("leak", "/dev/null").status == 2


def test_links_are_followed_once(tidegate, run_folder):
    """A link to the folder itself, and a file under two names."""
    folder, case = run_folder
    (folder / "again").symlink_to(folder)
    some = next(iter(case.files))
    (folder / "profile" / "copy.pickle").symlink_to(folder / some)
    answer = tidegate("leak", "--json", folder, timeout=20).json()
    assert len(answer["inputs"]) == len(case.files)


def test_pattern_that_matches_no_file(tidegate, run_folder):
    """--step-from must fit; what does not is named."""
    folder, _ = run_folder
    wrong_use(tidegate("leak", "--step-from", "epoch([0-9]+)", folder), "--step-from")


def test_stdin_empty(tidegate):
    """Nothing came."""
    wrong_use(tidegate("leak", "-", stdin=b""))


def test_list_form_has_no_steps(tidegate, tmp_path):
    """A bare list of segments is read; alone it cannot tell growth."""
    path = tmp_path / "l.pickle"
    path.write_bytes(forms.WRITERS["py4"](forms.bare_list(samples.rich())))
    answer = tidegate("leak", "--json", path).json()
    assert answer["verdict"] == "unknown" and answer["inputs"][0]["events"] == 0


def test_same_program_oldest_versions(tidegate, tmp_path):
    """Files of torch 2.0 and 2.1, a step each: blocks without addresses and requested sizes."""
    for version in ("2.0", "2.1"):
        planter = plant.Planter("old", kinds.linear, "cleared")
        planter.site, planter.writer = (14, "own"), "py4"
        planter.plan = kinds.Plan("linear", [kinds.Step(40 * MIB, True)] * 7, "leak", 40 * MIB, 0)
        program, folder = planter.program(), tmp_path / version
        for t in range(7):
            program.step(t)
            planter.add(f"step{t}/torch_memory_rank0_pid1.pickle", program, version)
            program.clear()
        planter.case.write(str(folder))
        answer = tidegate("leak", "--json", folder).json()
        assert answer["verdict"] == "leak" and answer["leaks"][0]["where"] == planter.case.where
        assert answer["bytes_per_step"] == pytest.approx(40 * MIB, rel=0.02)


@pytest.mark.parametrize("jobs", (1, 3, 64))
def test_jobs_change_nothing(tidegate, jobs):
    """Files are read at once; the answer is the same to the byte."""
    folder = DATA / "verl_rank1"
    assert tidegate("leak", "--json", "--jobs", jobs, folder).out == tidegate(
        "leak", "--json", folder).out


def test_top(tidegate):
    """Of many leaking lines only the largest are listed; the rest is summed up."""
    lines = tidegate("leak", "--top", 1, DATA / "verl_logits").out.splitlines()
    assert sum("MiB/step" in line for line in lines) == 1


# ---- streams

def test_full_disk(tidegate):
    """An answer that could not be written is status 2 and said."""
    result = run("/bin/sh", "-c", 'exec "$0" leak "$1" > /dev/full', tidegate.program, LEAK)
    assert result.status == 2 and "written" in result.err


def test_closed_pipe(tidegate):
    """A reader that went away ends it without a crash."""
    result = run("/bin/sh", "-c", '"$0" leak --json "$1" | true', tidegate.program, LEAK)
    assert result.status == 0


def test_nothing_is_written_beside(tidegate, tmp_path):
    """The command leaves no file behind and changes none."""
    shutil.copy(LEAK, tmp_path / "a.pickle.xz")
    (tmp_path / "a.pickle.xz").chmod(stat.S_IRUSR)
    before = sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.iterdir())
    tidegate("leak", tmp_path, cwd=tmp_path)
    assert sorted((p.name, p.stat().st_mtime_ns) for p in tmp_path.iterdir()) == before


# ---- JSON

JSON_RUNS = {
    "leak": [LEAK], "none": [DATA / "qwen_vl_no_leak.pickle.xz"],
    "oom": [DATA / "qwen_vl_oom.pickle.xz"], "short": [DATA / "qwen_vl_cpp_stacks.pickle.xz"],
    "ranks": [DATA / "verl_rank1"], "all ranks": [DATA / "verl_logits"],
    "notes": [DATA / "verl_now", "/no/such.pickle"], "stdin": ["-"],
}


@pytest.mark.parametrize("name", sorted(JSON_RUNS))
def test_schema(tidegate, name):
    """Every answer is of the schema, in one line."""
    assert SCHEMA is not None, "doc/schema/leak-1.json is missing"
    jsonschema.validators.validator_for(SCHEMA).check_schema(SCHEMA)
    stdin = LEAK.read_bytes() if name == "stdin" else None
    result = tidegate("leak", "--json", *JSON_RUNS[name], stdin=stdin)
    assert result.out.endswith("\n") and result.out.count("\n") == 1
    answer = result.json()
    jsonschema.validate(answer, SCHEMA)
    assert answer["schema"] == "tidegate.leak/1"
    for key in ("inputs", "ranks", "steps", "step_source", "verdict", "bytes_per_step", "leaks",
                "one_time", "comes_and_goes", "notes"):
        assert key in answer


def test_schema_can_fail(tidegate):
    """Each key that the contract names is required, and its type is checked."""
    assert SCHEMA is not None, "doc/schema/leak-1.json is missing"
    answer = tidegate("leak", "--json", LEAK).json()
    names = ("schema", "inputs", "ranks", "steps", "step_source", "verdict", "bytes_per_step",
             "leaks", "one_time", "comes_and_goes", "notes")
    spoilt = [{k: v for k, v in answer.items() if k != name} for name in names]
    spoilt += [dict(answer, **{name: {"no": "such"}}) for name in names]
    for key in ("bytes_per_step", "bytes_total", "blocks", "steps_grown", "first_step", "ranks",
                "where", "stack"):
        site = {k: v for k, v in answer["leaks"][0].items() if k != key}
        spoilt.append(dict(answer, leaks=[site]))
    for bad in spoilt:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, SCHEMA)


def test_json_and_text_say_the_same(tidegate):
    """The same verdict and the same line, both ways."""
    answer, text = tidegate("leak", "--json", LEAK).json(), tidegate("leak", LEAK).out
    assert answer["leaks"][0]["where"] in text
    assert "141 MiB" in text and not crashed(tidegate("leak", LEAK))
