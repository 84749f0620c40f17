# SPDX-License-Identifier: Apache-2.0
"""How the command behaves: statuses, streams, options, folders with trouble in them."""

import copy
import json
import lzma
import os
import pickle
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


def test_pattern_is_said_once(tidegate, run_folder):
    """One line however many files: the count, one example, and what is mostly the reason."""
    folder, case = run_folder
    for option in ("--step-from", "--rank-from"):
        said = wrong_use(tidegate("leak", option, r"epoch(\d+)", folder), option).err.splitlines()
        assert len(said) == 1 and f"likewise {len(case.files) - 1} more files" in said[0]
        assert next(iter(case.files)) in said[0]
        assert said[0].endswith(r"; \d is not POSIX; write [0-9]")
    assert "POSIX" not in tidegate("leak", "--step-from", "epoch([0-9]+)", folder).err


def test_pattern_that_fits_some(tidegate, run_folder):
    """The others are named and left out."""
    folder, case = run_folder
    (folder / "odd.pickle").write_bytes(b"x")
    result = tidegate("leak", "--step-from", "/step([0-9]+)/", folder)
    assert result.status == 0 and result.err.count("odd.pickle: --step-from") == 1
    assert result.out.startswith(f"{len(case.files)} of {len(case.files) + 1} files: ")


# ---- several runs

@pytest.fixture()
def mix(tmp_path):
    """mix/gpu0 leaks, mix/gpu1 does not; no rank in the paths."""
    for step in range(1, 6):
        for gpu, data in enumerate(("verl_now", "verl_march")):
            folder = tmp_path / f"mix/gpu{gpu}/iter_{step:04}"
            folder.mkdir(parents=True)
            source, = (DATA / data / f"step{step}").iterdir()
            shutil.copy(source, folder / "snap.pickle.xz")
    return tmp_path


def test_runs_are_kept_apart(tidegate, mix):
    """Each by itself, and named where it leaks."""
    lines = tidegate("leak", "mix", cwd=mix).out.splitlines()
    assert lines[0].startswith("10 files: 2 runs x steps 1-5 ")
    assert lines[1] == ("LEAK  141 MiB a step on 1 of 2 runs (mix/gpu0), 4 of 4 steps, "
                        "564 MiB so far")
    assert lines[-1].startswith("at 80 GiB (--capacity) the card is full at about step 564 "
                                "(mix/gpu0). ")
    assert "-1" not in " ".join(lines[1:])
    answer = tidegate("leak", "--json", "mix", cwd=mix).json()
    jsonschema.validate(answer, SCHEMA)
    assert [(r["run"], r["verdict"]) for r in answer["ranks"]] == [
        ("mix/gpu0", "leak"), ("mix/gpu1", "no leak")]


def test_ranks_from_a_pattern_are_one_run(tidegate, mix):
    """The same files with --rank-from; --step-from leaves them two runs."""
    result = tidegate("leak", "--rank-from", "gpu([0-9]+)", "mix", cwd=mix)
    assert result.out.splitlines()[0].startswith("10 files: 2 ranks x steps 1-5 ")
    assert "LEAK  141 MiB a step on rank 0 of 2, " in result.out
    answer = tidegate("leak", "--json", "--rank-from", "gpu([0-9]+)", "mix", cwd=mix).json()
    assert [r["rank"] for r in answer["ranks"]] == [0, 1]
    assert not any("run" in r for r in answer["ranks"])
    result = tidegate("leak", "--step-from", "iter_([0-9]+)", "mix", cwd=mix)
    assert " on 1 of 2 runs (mix/gpu0), " in result.out


def test_runs_with_ranks(tidegate):
    """Folders of verl, side by side: each answers as it does alone."""
    names = ("verl_logits", "verl_march", "verl_now", "verl_rank1")
    answer = tidegate("leak", "--json", *names, cwd=DATA).json()
    assert {(r["run"], r["rank"]): r["verdict"] for r in answer["ranks"]} == {
        ("verl_logits", 0): "leak", ("verl_logits", 1): "leak", ("verl_march", 0): "no leak",
        ("verl_now", 0): "leak", ("verl_rank1", 0): "no leak", ("verl_rank1", 1): "leak"}
    lines = tidegate("leak", *names, cwd=DATA).out.splitlines()
    assert lines[0].startswith("30 files: 4 runs, 6 ranks x steps 1-5 ")
    assert lines[1].startswith("LEAK  212 MiB a step on 4 of 6 ranks (verl_logits rank 0, ")
    assert "(verl_logits rank 0)" in lines[-1]


def test_files_by_themselves(tidegate, tmp_path):
    """Each is a run, and named by its file."""
    shutil.copy(LEAK, tmp_path / "a.pickle.xz")
    shutil.copy(DATA / "qwen_vl_no_leak.pickle.xz", tmp_path / "b.pickle.xz")
    text = tidegate("leak", ".", cwd=tmp_path).out
    assert "2 files: 2 runs x steps 1-6" in text and " on 1 of 2 runs (./a.pickle.xz), " in text
    answer = tidegate("leak", "--json", ".", cwd=tmp_path).json()
    assert {r["run"]: r["verdict"] for r in answer["ranks"]} == {
        "./a.pickle.xz": "leak", "./b.pickle.xz": "no leak"}


def test_processes_of_a_rank_in_several_runs(tidegate, tmp_path):
    """Actor and critic of one rank have rows of their own, in each run."""
    for run_name, names in (("a", ("verl_now", "verl_march")), ("b", ("verl_march",))):
        for step in range(1, 6):
            for pid, data in enumerate(names, 7):
                folder = tmp_path / run_name / f"step{step}"
                folder.mkdir(parents=True, exist_ok=True)
                source, = (DATA / data / f"step{step}").iterdir()
                shutil.copy(source, folder / f"torch_memory_rank0_pid{pid}.pickle.xz")
    answer = tidegate("leak", "--json", "a", "b", cwd=tmp_path).json()
    assert [(r["run"], r["pid"], r["verdict"]) for r in answer["ranks"]] == [
        ("a", 7, "leak"), ("a", 8, "no leak"), ("b", 7, "no leak")]
    lines = tidegate("leak", "a", "b", cwd=tmp_path).out.splitlines()
    assert lines[0].startswith("15 files: 2 runs, 3 ranks x steps 1-5 ")
    assert " on 1 of 3 ranks (a rank 0 pid 7), " in lines[1]


def test_several_devices_have_no_outlook(tidegate, tmp_path):
    """What grows is the sum over devices: which of them is full when is not told."""
    snapshot = pickle.loads(lzma.open(DATA / "real/plain.pickle.xz").read())
    other = copy.deepcopy(snapshot)
    snapshot["device_traces"] += other["device_traces"]
    snapshot["segments"] += [dict(s, device=1) for s in other["segments"]]
    (tmp_path / "two.pickle").write_bytes(pickle.dumps(snapshot))
    text = tidegate("leak", tmp_path / "two.pickle").out
    assert "LEAK  6.0 MiB a step, " in text and "is full" not in text
    answer = tidegate("leak", "--json", tmp_path / "two.pickle").json()
    assert answer["full_at_step"] is None and answer["full_in_steps"] is None
    jsonschema.validate(answer, SCHEMA)


# ---- words of the report

def test_limit_and_rate_that_look_alike(tidegate):
    """One more digit tells them apart; sizes may be written as Kubernetes does."""
    result = tidegate("leak", "--fail-above", "141Mi", LEAK)
    assert result.status == 3
    assert result.err == "tidegate: leaks 141.1 MiB a step, more than --fail-above 141.0 MiB\n"


def test_no_leak_above_a_limit(tidegate):
    """Growth below --min-growth is no leak, and the answer says so; without it nothing is added."""
    lines = tidegate("leak", "--min-growth", "200MiB", LEAK).out.splitlines()
    assert lines[1] == "no leak above --min-growth 200 MiB  over 6 steps"
    assert lines[-1].startswith("note: 1 line grows by less than ")
    assert "--min-growth" not in tidegate("leak", "--min-growth", "200MiB", CLEAN).out


def test_notes_on_files_come_first(tidegate, tmp_path):
    """What was left out belongs to what was read."""
    shutil.copytree(DATA / "verl_now", tmp_path / "run")
    source, = (tmp_path / "run/step5").iterdir()
    shutil.copy(source, tmp_path / "run/torch_memory_rank0_pid4000.pickle.xz")
    lines = tidegate("leak", "run", cwd=tmp_path).out.splitlines()
    assert lines[1] == "note: rank 0: 1 file is left out: no step in the name, unlike the others"
    assert lines[2].startswith("LEAK  141 MiB a step on rank 0, ")


def test_several_events_out_of_memory(tidegate, tmp_path):
    """The first one's figures; the others are counted."""
    for name, more in (("a", ""), ("b", "; 1 more file holds such an event"),
                       ("c", "; 2 more files hold such an event")):
        shutil.copy(DATA / "qwen_vl_oom.pickle.xz", tmp_path / f"{name}.pickle.xz")
        line, = (l for l in tidegate("leak", tmp_path).out.splitlines() if "out of memory" in l)
        assert line.endswith(", so a limit on the process, not the card, refused it" + more)


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
