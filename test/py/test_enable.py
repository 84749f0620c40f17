# SPDX-License-Identifier: Apache-2.0
"""`tidegate enable`: the words for the version that a Python has, and nothing is changed."""

import json
import os
import pathlib
import re
import shutil
import sys
import zipfile

import jsonschema
import pytest

from conftest import ROOT

SCHEMA = json.loads((ROOT / "doc/schema/enable-1.json").read_text(encoding="utf-8"))
ADD = "add to the command:  "
MODE = "+ray_kwargs.ray_init.runtime_env.env_vars.TIDEGATE="
MODULE = "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES=tidegate.verl"


def distribution(folder, name, version):
    """What an installer leaves of a package; its code is not needed."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                                   encoding="utf-8")


@pytest.fixture()
def site(tmp_path):
    """site(**versions) -> the environment in which a Python has these packages."""
    def make(**versions):
        folder = tmp_path / "site"
        for name, version in versions.items():
            distribution(folder, name, version)
        return {"PYTHONPATH": str(folder), "VIRTUAL_ENV": ""}

    return make


@pytest.fixture()
def enable(tidegate, tmp_path):
    """enable(*args, env=…) -> Result, in an empty folder, asking this Python"""
    folder = tmp_path / "here"
    folder.mkdir()

    def call(*args, env=None, cwd=folder):
        result = tidegate("enable", *args, cwd=cwd, env={"VIRTUAL_ENV": "", **(env or {})})
        assert not list(folder.iterdir())
        return result

    return call


def answer_of(result):
    """The JSON object, as its schema has it."""
    answer = result.json()
    jsonschema.validate(answer, SCHEMA)
    return answer


# ---- words for a version

@pytest.mark.parametrize("version, words", (
    ("0.9.1", 1), ("0.9.0", 1), ("0.9.0.dev3", 1), ("0.10.0.dev0", 1), ("1.0", 1),
    ("0.8.0", 2), ("0.7.1", 2), ("0.6.1", 2), ("0.6.0", 0), ("0.5.0.post1", 0),
))
def test_words_of_each_version(enable, site, version, words):
    """From 0.9 on one, before it a second one; none where there are no seams."""
    env = site(verl=version, tidegate="0.1.0")
    wanted = [MODE + "observe", MODULE][:words]
    result = enable("verl", "--observe", "--python", sys.executable, env=env)
    first, *lines = result.out.splitlines()
    assert result.status == 0 and result.err == ""
    assert first.startswith(f"verl {version} in {sys.executable}")
    assert lines == [(ADD if at == 0 else " " * len(ADD)) + word for at, word in enumerate(wanted)]
    assert ("nothing to add" in first) == (words == 0)
    answer = answer_of(enable("verl", "--observe", "--json", "--python", sys.executable, env=env))
    assert answer["add"] == wanted and answer["version"] == version
    assert answer["tidegate"] == "0.1.0" and answer["mode"] == "observe"


def test_form_of_the_line(enable, site):
    """What users copy, letter by letter."""
    result = enable("verl", "--observe", "--python", sys.executable,
                    env=site(verl="0.9.1", tidegate="0.1.0"))
    assert result.out.splitlines()[1:] == [
        "add to the command:  +ray_kwargs.ray_init.runtime_env.env_vars.TIDEGATE=observe"]
    result = enable("verl", "--python", sys.executable, env=site(tidegate="0.1.1"))
    assert result.out.splitlines()[1].endswith("TIDEGATE=on")


def test_newer_than_what_was_tried(enable, site):
    """Said, beside the words."""
    for version, is_said in (("0.9.1", False), ("0.9.2", True), ("0.12", True)):
        env = site(verl=version)
        first = enable("verl", "--python", sys.executable, env=env).out.splitlines()[0]
        assert ("newer than 0.9.1" in first) == is_said
        shutil.rmtree(env["PYTHONPATH"])


def test_no_verl(enable, site):
    """What it would be for each."""
    result = enable("verl", "--python", sys.executable, env=site(torch="2.11.0"))
    assert result.status == 0 and result.out.splitlines() == [
        f"no verl in {sys.executable}", "for verl 0.9 and newer", ADD + MODE + "on",
        "for verl 0.6.1 and newer, before 0.9", ADD + MODE + "on", " " * len(ADD) + MODULE]
    answer = answer_of(enable("verl", "--json", "--python", sys.executable))
    assert answer["add"] is None and answer["version"] is None
    assert [choice["add"] for choice in answer["choices"]] == [
        [MODE + "on"], [MODE + "on", MODULE]]
    assert [(choice["since"], choice["before"]) for choice in answer["choices"]] == [
        ("0.9", None), ("0.6.1", "0.9")]


@pytest.mark.parametrize("version, words", (("0.9.1", "nothing would happen"),
                                            ("0.7.1", "would end with an error")))
def test_tidegate_is_not_beside_it(enable, site, version, words):
    """The words alone would not do it, or do harm: said, with the command that helps."""
    result = enable("verl", "--python", sys.executable, env=site(verl=version))
    assert result.status == 0 and len(result.err.splitlines()) == 1
    assert words in result.err and f"{sys.executable} -m pip install tidegate" in result.err


# ---- engines

SET = "set in its environment:  "
OPTIONS = {"sglang": ["--enable-memory-saver", "--enable-weights-cpu-backup"],
           "vllm": ["--enable-sleep-mode"]}
NEWEST = {"sglang": "0.5.12", "vllm": "0.24"}
PLUGINS = {"sglang": "SGLANG_PLUGINS", "vllm": "VLLM_PLUGINS"}


@pytest.mark.parametrize("engine, version, is_known", (
    ("sglang", "0.5.12", True), ("sglang", "0.5.12.post1", True), ("sglang", "0.5.13", True),
    ("sglang", "0.5.8", False), ("vllm", "0.24.0", True), ("vllm", "0.25.1", True),
    ("vllm", "0.23.0", False)))
def test_an_engine_takes_a_variable_and_options(enable, site, engine, version, is_known):
    """No Ray is there to pass the variable on: it stands in the environment. Without its own
    options the engine never sleeps."""
    env = site(**{engine: version}, tidegate="0.1.0")
    result = enable(engine, "--python", sys.executable, env=env)
    first, *lines = result.out.splitlines()
    assert result.status == 0 and result.err == ""
    assert first.startswith(f"{engine} {version} in {sys.executable}")
    assert lines == ([f"{SET}TIDEGATE=on", ADD.ljust(len(SET)) + " ".join(OPTIONS[engine])]
                     if is_known else [])
    assert ("nothing to add" in first) == (not is_known)
    assert (f"newer than {NEWEST[engine]}," in first) == (version in ("0.5.13", "0.25.1"))
    answer = answer_of(enable(engine, "--json", "--python", sys.executable, env=env))
    assert answer["program"] == engine and answer["version"] == version
    assert answer["add"] == ["TIDEGATE=on"][:is_known]
    assert answer["options"] == OPTIONS[engine][:2 * is_known]


def test_no_engine(enable, site):
    """One way for all of its versions, and beside a verl too; to observe changes nothing of what it
    allocates, so no option is asked for."""
    env = site(verl="0.9.1")
    for engine, since in NEWEST.items():
        result = enable(engine, "--observe", "--python", sys.executable, env=env)
        assert result.status == 0 and result.out.splitlines() == [
            f"no {engine} in {sys.executable}", f"for {engine} {since} and newer",
            f"{SET}TIDEGATE=observe"]
        answer = answer_of(enable(engine, "--json", "--python", sys.executable))
        assert answer["options"] is None and answer["choices"] == [
            {"since": since, "before": None, "add": ["TIDEGATE=on"], "options": OPTIONS[engine]}]


@pytest.mark.parametrize("engine, plugins, is_said", (
    ("sglang", "other", True), ("sglang", "other,tidegate", False), ("sglang", " tidegate ", False),
    ("sglang", "", False), ("sglang", "tidegates,atidegate", True), ("vllm", "other", True),
    ("vllm", "tidegate,other", False), ("vllm", "other, tidegate", True), ("vllm", "", True)))
def test_a_list_of_plugins_that_leaves_ours_out(enable, site, engine, plugins, is_said):
    """As each engine reads its own; the other's means nothing, and neither does to verl."""
    env = {**site(**{engine: NEWEST[engine]}, tidegate="0.1.0"), PLUGINS[engine]: plugins}
    for program in ("verl", *OPTIONS):
        result = enable(program, "--python", sys.executable, env=env)
        wanted = is_said and program == engine
        assert result.status == 0 and len(result.err.splitlines()) == wanted
        assert (f"{PLUGINS[engine]} is set here" in result.err) == wanted


def test_the_newest_that_was_tried_is_the_one_whose_files_are_tested():
    """The pinned wheel of each engine is of the version that is told."""
    for engine, newest in NEWEST.items():
        pins = (ROOT / f"tools/engines/{engine}.txt").read_text(encoding="utf-8")
        assert re.search(rf"^{engine}=={re.escape(newest)}(\.0)* ", pins, re.MULTILINE)


ASKED_IN = {"sglang": ("sglang/srt/server_args.py", "sglang/srt/plugins/__init__.py"),
            "vllm": ("vllm/engine/arg_utils.py", "vllm/plugins/__init__.py")}


@pytest.mark.parametrize("engine", OPTIONS)
def test_the_engine_s_own_files_know_the_words(engine):
    """The options, the list of plugins, and the group in which ours is found."""
    wheels = sorted((ROOT / ".cache" / "engines" / engine).glob(f"{engine}-*.whl"))
    if not wheels:
        pytest.skip(f"the wheel of {engine} is for: make check-engines")
    with zipfile.ZipFile(wheels[0]) as wheel:
        options, plugins = (wheel.read(name).decode() for name in ASKED_IN[engine])
    for option in OPTIONS[engine]:
        assert f'"{option}",' in options
    assert PLUGINS[engine] in plugins
    group, = [group for group in re.findall(r'entry-points\."(.+)"\]', (ROOT / "pyproject.toml")
                                            .read_text(encoding="utf-8")) if engine in group]
    assert f'"{group}"' in plugins


# ---- which Python

def fake_python(path, version):
    """A program that answers as a Python with this verl does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'tidegate> path {path}'\necho 'tidegate> python 3.11.7'\n"
                    f"echo 'tidegate> verl {version}'\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def test_which_python_is_asked(enable, tmp_path):
    """--python, as a file, a folder or a name; else the active environment's; else the PATH's."""
    fake_python(tmp_path / "venv/bin/python", "0.8.1")
    fake_python(tmp_path / "bin/python3", "0.8.2")
    given = fake_python(tmp_path / "other/bin/python", "0.8.3")
    path = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    venv = {**path, "VIRTUAL_ENV": str(tmp_path / "venv")}
    for env, options, version in (
            (path, (), "0.8.2"), (venv, (), "0.8.1"), (venv, ("--python", "python3"), "0.8.2"),
            (venv, ("--python", given), "0.8.3"), (venv, ("--python", tmp_path / "other"), "0.8.3"),
    ):
        assert enable("verl", *options, env=env).out.startswith(f"verl {version} in {tmp_path}/")


def test_no_python(enable):
    """Said; the words are told for each version all the same."""
    result = enable("verl", env={"PATH": "/nowhere"})
    assert result.status == 0 and "python3 cannot be run" in result.err and ADD in result.out
    answer = answer_of(enable("verl", "--json", env={"PATH": "/nowhere"}))
    assert answer["python"] is None and answer["add"] is None


def test_checkout_that_is_not_installed(enable, tmp_path):
    """verl run from its own source folder, as its examples are."""
    checkout = tmp_path / "checkout"
    (checkout / "verl/version").mkdir(parents=True)
    (checkout / "verl/__init__.py").write_text("open('imported', 'w')\n", encoding="utf-8")
    (checkout / "verl/version/version").write_text("0.9.0\n", encoding="utf-8")
    before = sorted(checkout.rglob("*"))
    result = enable("verl", "--python", sys.executable, cwd=checkout)
    assert result.out.startswith("verl 0.9.0 in ")
    assert sorted(checkout.rglob("*")) == before  # neither imported nor compiled


def test_noise_and_odd_versions(enable, tmp_path):
    """What a Python prints at its start is no answer; what is shown is harmless."""
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise/sitecustomize.py").write_text("print('x' * 100000)\n"
                                                     "print('somebody> verl 0.1')\n",
                                                     encoding="utf-8")
    result = enable("verl", "--python", sys.executable,
                    env={"PYTHONPATH": str(tmp_path / "noise")})
    assert result.out.startswith("no verl in ")
    odd = fake_python(tmp_path / "odd/python", "0.9.1\033[2J")
    result = enable("verl", "--python", odd)
    assert result.status == 0 and "\033" not in result.out and "0.9.1" in result.out
    answer_of(enable("verl", "--json", "--python", odd))


@pytest.mark.slow
def test_python_that_hangs(enable, tmp_path):
    """Given up after a while."""
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n", encoding="utf-8")
    hangs.chmod(0o755)
    result = enable("verl", "--python", hangs)
    assert result.status == 2 and "did not answer within" in result.err


# ---- wrong use

@pytest.mark.parametrize("args, words", (
    ((), ("tidegate enable verl",)), (("verl", "sglang"), ("one program",)),
    (("vrl",), ("'vrl'", "maybe: verl?")), (("transformers",), ("maybe: verl?",)),
    (("verl", "--obsreve"), ("maybe: --observe?",)), (("verl", "--python"), ("--python",)),
    (("verl", "--python", "/no/such"), ("/no/such", "No such file")),
    (("verl", "--python", "/etc/passwd"), ("/etc/passwd",)),
    (("verl", "--python", "/bin/true"), ("/bin/true",)),
    (("verl", "--python", "/bin/false"), ("/bin/false",)),
    (("verl", "--json=1"), ("--json",)),
))
def test_wrong_use(enable, args, words):
    """A sentence, status 2, and nothing on stdout."""
    result = enable(*args)
    assert result.status == 2 and result.out == "" and len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err


def test_table_is_the_packages(enable):
    """What the command has compiled in is what the package's own code decides by."""
    sys.path.insert(0, str(ROOT / "python"))
    from tidegate.verl import versions  # pylint: disable=import-outside-toplevel

    answer = answer_of(enable("verl", "--json", "--python", sys.executable))
    numbers = [versions.parse(choice["since"]) for choice in answer["choices"]]
    assert numbers == [versions.ENTRY_POINTS_SINCE, versions.OLDEST]
    assert pathlib.Path(versions.__file__).is_relative_to(ROOT)
