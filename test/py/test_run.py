# SPDX-License-Identifier: Apache-2.0
"""`tidegate run`: what the command gets, how its end is told, and what is said of Ray and seams."""

import json
import os
import pathlib
import pty
import shutil
import signal
import subprocess
import sys

import pytest

from conftest import ROOT, clean_env, run

SHOW = ("import json, os, sys; "
        "json.dump(dict(os.environ), open(sys.argv[1], 'w'))")
TELL = ("import os; open(os.environ['TIDEGATE_RUN'] + '/seams', 'a')"
        ".write(f'{os.getpid()} verl 0.9.1 4 of 4\\n')")
PRELOAD = "libtidegate-preload.so"
BUILT = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parent / PRELOAD
NO_PACKAGE = "the Python package does not stand beside this command"


def install(tidegate, prefix, packages="lib/python3.11/site-packages"):
    """The command and a package in one prefix, as pip puts them; answers the command."""
    package = prefix / packages / "tidegate"
    (package / "verl").mkdir(parents=True)
    (package / "__init__.py").write_text("MINE = True\n", encoding="utf-8")
    (package / "verl" / "__init__.py").write_text(TELL + "\n", encoding="utf-8")
    (package.parent / "torch").mkdir()
    (prefix / "bin").mkdir()
    return shutil.copy(tidegate.program, prefix / "bin/tidegate")


class Installed:
    """An installed command with a folder for temporary files that nobody else uses."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.temporary = folder / "temporary"
        self.temporary.mkdir()

    def env(self, **more):
        """No Ray is seen in it, but by its processes."""
        env = {"TMPDIR": str(self.temporary), "RAY_ADDRESS": "", "RAY_TMPDIR": "/nowhere",
               "PYTHONPATH": "", "VERL_USE_EXTERNAL_MODULES": "", "PYTHONDONTWRITEBYTECODE": "1"}
        return {**env, **more}

    def __call__(self, *args, env=None, **kw):
        return run(self.program, "run", *args, env=self.env(**(env or {})), **kw)

    def shown(self, *options, **env):
        """The environment that a command gets."""
        path = self.folder / "shown.json"
        result = self(*options, "--", sys.executable, "-c", SHOW, path, env=env)
        assert result.status == 0, result.err
        return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture()
def installed(tidegate, tmp_path):
    """installed(*args, env=…) -> Result of `tidegate run ARGS`"""
    return Installed(install(tidegate, tmp_path / "prefix"), tmp_path)


# ---- the environment

@pytest.mark.parametrize("options, mode", (((), "on"), (("--observe",), "observe")))
def test_mode(installed, options, mode):
    """What was set before does not count: the user has just said what is wanted."""
    assert installed.shown(*options, TIDEGATE="off")["TIDEGATE"] == mode


@pytest.mark.parametrize("before, after", (
    ("", "tidegate.verl"), ("mine", "mine,tidegate.verl"), ("tidegate.verl", "tidegate.verl"),
    ("a, tidegate.verl ,b", "a, tidegate.verl ,b"), ("tidegate.verlx", "tidegate.verlx,"
                                                     "tidegate.verl"),
))
def test_module_for_verl_once(installed, before, after):
    """Others' modules stay, and ours is in the list once."""
    shown = installed.shown(VERL_USE_EXTERNAL_MODULES=before)
    assert shown["VERL_USE_EXTERNAL_MODULES"] == after


def test_package_of_pips_target(tidegate, tmp_path):
    built = Installed(install(tidegate, tmp_path / "target", ""), tmp_path)
    assert built.shown()["TIDEGATE"] == "on"


def test_package_is_reached_and_nothing_else(installed):
    """Any Python finds the package, behind the user's own paths, and none of its neighbours."""
    show = ("import sys, os, tidegate; assert tidegate.MINE; "
            "names = os.listdir(os.environ['PYTHONPATH'].split(':')[-1]); "
            "assert names == ['tidegate'], names")
    result = installed("--", sys.executable, "-c", show, env={"PYTHONPATH": "/mine"})
    assert result.status == 0, result.err
    assert installed.shown(PYTHONPATH="/mine")["PYTHONPATH"].startswith("/mine:")


def test_nothing_stays(installed):
    """The run's folder was there, for this user alone, and goes with the run."""
    look = ("import os; f = os.environ['TIDEGATE_RUN']; print(f, oct(os.stat(f).st_mode & 0o777), "
            "os.path.getsize(f + '/seams'))")
    result = installed("--", sys.executable, "-c", look)
    folder, mode, size = result.out.split()
    assert pathlib.Path(folder).parent == installed.temporary
    assert (mode, size) == ("0o700", "0")
    assert not list(installed.temporary.iterdir())


def test_library_of_a_source_tree(tidegate, tmp_path):
    """There the library lies where it was built, and the package beside the build folder."""
    tree = tmp_path / "tree"
    (tree / "python/tidegate").mkdir(parents=True)
    (tree / "python/tidegate/__init__.py").touch()
    (tree / "build/cli").mkdir(parents=True)
    (tree / "build/src").mkdir()
    (tree / "build/src/libtidegate.so").touch()
    built = Installed(shutil.copy(tidegate.program, tree / "build/cli/tidegate"), tmp_path)
    assert built.shown()["TIDEGATE_LIBRARY"] == str(tree / "build/src/libtidegate.so")
    assert built.shown(TIDEGATE_LIBRARY="/mine.so")["TIDEGATE_LIBRARY"] == "/mine.so"


def test_without_a_package(tidegate, tmp_path):
    """Said; and verl before 0.9, which ends with an error where a module is missing, gets none."""
    alone = Installed(shutil.copy(tidegate.program, tmp_path / "tidegate"), tmp_path)
    result = alone("--", "true")
    assert result.status == 0 and NO_PACKAGE in result.err
    shown = alone.shown()
    assert shown["TIDEGATE"] == "on" and shown["VERL_USE_EXTERNAL_MODULES"] == ""


@pytest.mark.parametrize("name, word", (("with space", "space"), ("a:b", "colon")))
def test_path_that_no_list_holds(tidegate, tmp_path, name, word):
    """Refused in one sentence, and nothing was run."""
    (tmp_path / name).mkdir()
    odd = Installed(install(tidegate, tmp_path / name), tmp_path)
    result = odd("--", "touch", tmp_path / "ran")
    assert result.status == 2 and len(result.err.splitlines()) == 1
    assert word in result.err and name in result.err
    assert not (tmp_path / "ran").exists() and not list(odd.temporary.iterdir())


def test_library_path_that_no_list_holds(installed):
    """The same for a library that the user names."""
    result = installed("--", "true", env={"TIDEGATE_LIBRARY": "/a b/libtidegate.so"})
    assert result.status == 2 and "/a b/libtidegate.so" in result.err


# ---- how it ends

@pytest.mark.parametrize("command, status", (
    (("sh", "-c", "exit 0"), 0), (("sh", "-c", "exit 7"), 7),
    (("sh", "-c", "kill -TERM $$"), 128 + signal.SIGTERM),
    (("sh", "-c", "kill -KILL $$"), 128 + signal.SIGKILL),
    (("no-such-command",), 127), (("/no/such",), 127), (("/etc",), 126),
))
def test_status_is_the_commands(installed, command, status):
    """As a shell has it."""
    result = installed("--", *command)
    assert result.status == status
    if status in (126, 127):
        assert command[0] in result.err and "seam" not in result.err


def test_the_commands_own_words(installed):
    """Its options are its own, with and without the two dashes."""
    for dashes in (("--",), ()):
        result = installed(*dashes, "echo", "--observe", "--", "-n")
        assert (result.status, result.out) == (0, "--observe -- -n\n")


def test_signals_are_as_they_were(installed):
    """A command that writes into a closed pipe ends, as it does without us; none is blocked."""
    result = installed("--", "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    masks = {line.split()[0]: int(line.split()[1], 16) for line in result.out.splitlines()}
    assert masks["SigBlk:"] == 0
    assert masks["SigIgn:"] & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize("number", (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1))
def test_signal_to_us_is_passed_on(installed, number):
    """Who ends the run by its pid ends the command, which may answer as it likes."""
    answer = (f"import signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(9)); "
              "print('ready', flush=True); time.sleep(60)")
    child = subprocess.Popen([installed.program, "run", "--", sys.executable, "-c", answer],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env=clean_env(**installed.env()))
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    child.communicate(timeout=60)
    assert child.returncode == 9


def test_interrupt_of_a_terminal_comes_once(installed):
    """Ctrl-C reaches the command by the terminal, and is not passed on a second time."""
    count = ("import signal, sys; seen = []; "
             "note = lambda *_: (seen.append(1), print('seen', flush=True)); "
             "signal.signal(signal.SIGINT, note); "
             "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(10 + len(seen))); "
             "print('ready', flush=True); sys.stdin.readline()")
    pid, fd = pty.fork()
    if pid == 0:
        os.execve(installed.program,
                  [installed.program, "run", "--", sys.executable, "-c", count],
                  clean_env(**installed.env()))
    seen = b""
    while b"seen" not in seen:
        seen += os.read(fd, 4096)
        if b"ready" in seen and b"^C" not in seen:
            os.write(fd, b"\x03")
    os.kill(pid, signal.SIGUSR1)  # passed on behind an interrupt, if one is
    _, status = os.waitpid(pid, 0)
    os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 11


def test_caller_that_ignores_its_children(installed):
    """The command's end is seen also where SIGCHLD came in ignored."""
    code = ("import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
            "os.execv(sys.argv[1], sys.argv[1:])")
    result = run(sys.executable, "-c", code, installed.program, "run", "--", "sh", "-c", "exit 5",
                 env=installed.env())
    assert result.status == 5


# ---- seams

def test_seam_of_a_grandchild(installed):
    """Any process may tell; it need not live until the end."""
    import_it = "import importlib; importlib.import_module('tidegate.verl')"
    result = installed("--need", "verl", "--", "sh", "-c",
                       f'{sys.executable} -c "{import_it}" & wait; exit 3')
    assert result.status == 3 and result.err == ""


def test_seam_that_the_package_tells_of(tidegate, tmp_path):
    """The package's own line is understood; where the run is over, it makes no file and no fuss."""
    tell = "from tidegate import seams; seams.tell_run('verl'); seams.tell_run('verl')"
    result = Installed(tidegate.program, tmp_path)("--need", "verl", "--",
                                                   sys.executable, "-c", tell)
    assert (result.status, result.err) == (0, "")
    late = run(sys.executable, "-c", tell, env={"TIDEGATE_RUN": str(tmp_path / "over"),
                                                "PYTHONPATH": str(ROOT / "python")})
    assert (late.status, late.err) == (0, "") and not (tmp_path / "over").exists()


@pytest.mark.parametrize("line", ("", "verl", "x verl", "12 verlx", "12 ver", "12", "12 x verl"))
def test_needed_seam_that_was_not_active(installed, line):
    """Status 4, and the command's own in the sentence; what is no line of a seam is none."""
    result = installed("--need=verl", "--", "sh", "-c",
                       f'echo "{line}" > "$TIDEGATE_RUN/seams"; exit 6')
    assert result.status == 4 and len(result.err.splitlines()) == 1
    assert "verl" in result.err and "status 6" in result.err


def test_no_seam_at_all(installed):
    """A warning where none was asked for: the status stays the command's."""
    result = installed("--", "sh", "-c", "exit 6")
    assert result.status == 6
    assert result.err.startswith("tidegate: no seam became active")


# ---- Ray

def ray_is_said(result):
    """The warning, and what to do."""
    lines = [line for line in result.err.splitlines() if "Ray cluster" in line]
    assert result.status == 0 and len(lines) <= 1
    assert not lines or "tidegate enable verl" in lines[0]
    return lines[0] if lines else ""


def test_ray_address(installed):
    """A cluster by address; "local" asks for one of the program's own."""
    assert "RAY_ADDRESS is 10.0.0.1:6379" in ray_is_said(
        installed("--", "true", env={"RAY_ADDRESS": "10.0.0.1:6379"}))
    assert "RAY_ADDRESS" not in ray_is_said(
        installed("--", "true", env={"RAY_ADDRESS": "local"}))


def test_ray_file(installed, tmp_path):
    """The file that `ray start` writes."""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray/ray_current_cluster").write_text("10.0.0.1:6379", encoding="utf-8")
    said = ray_is_said(installed("--", "true", env={"RAY_TMPDIR": str(tmp_path)}))
    assert str(tmp_path / "ray/ray_current_cluster") in said


@pytest.mark.parametrize("name", ("raylet", "gcs_server"))
def test_ray_process(installed, tmp_path, name):
    """A process of this user with the name of one of Ray's."""
    shutil.copy(shutil.which("sleep"), tmp_path / name)
    with subprocess.Popen([tmp_path / name, "60"]) as child:
        said = ray_is_said(installed("--", "true"))
        child.kill()
    assert f"is a {name}" in said


# ---- wrong use

@pytest.mark.parametrize("args, words", (
    ((), ("needs a command",)), (("--",), ("needs a command",)),
    (("--", ""), ("the name of the command is empty",)),
    (("--", "", "touch", "ran"), ("the name of the command is empty",)),
    (("--obsrve", "--", "touch", "ran"), ("maybe: --observe?",)),
    (("--need", "vrl", "--", "touch", "ran"), ("'vrl'", "maybe: verl?")),
    (("--need", "verl,", "--", "touch", "ran"), ("maybe: verl?",)),
    (("--need=", "--", "touch", "ran"), ("--need",)),
    (("--observe=yes", "--", "touch", "ran"), ("--observe",)),
    (("--preload", "--observe", "--", "touch", "ran"), ("--observe", "--preload")),
    (("--default-tag", "a", "--observe", "--", "touch", "ran"), ("--default-tag",)),
    (("--default-tag", "no tag", "--", "touch", "ran"), ("'no tag'", "no name of a tag")),
    (("--keep-host", "--", "touch", "ran"), ("--keep-host", "--default-tag")),
    (("--keep-host", "--preload", "--", "touch", "ran"), ("--keep-host", "--default-tag")),
    (("--default-tag", "", "--", "touch", "ran"), ("not empty",)),
    (("--default-tag", 32 * "x", "--", "touch", "ran"), ("no name of a tag",)),
))
def test_wrong_use(installed, tmp_path, args, words):
    """A sentence, status 2, and nothing was run or made."""
    result = installed(*args, cwd=tmp_path)
    assert result.status == 2 and result.out == "" and len(result.err.splitlines()) == 1
    for word in words:
        assert word in result.err
    assert not (tmp_path / "ran").exists() and not list(installed.temporary.iterdir())


def test_no_place_for_the_folder(installed):
    """A place that cannot be written is passed over for the next one."""
    shown = installed.shown(TMPDIR="/proc")
    assert shown["TIDEGATE_RUN"].startswith("/tmp/")


# ---- the preload

def add_library(prefix, folder="lib/python3.11/site-packages/.tidegate.mesonpy.libs",
                name="libtidegate.so.0.1.0"):
    """Files that stand for the library and its preload; answers the preload's path."""
    place = prefix / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / name).touch()
    (place / PRELOAD).touch()
    return str(place / PRELOAD)


@pytest.mark.parametrize("folder, name", (
    ("lib/python3.11/site-packages/.tidegate.mesonpy.libs", "libtidegate.so.0.1.0"),
    (".tidegate.mesonpy.libs", "libtidegate.so.0.1.0"),
    ("lib", "libtidegate.so.0"), ("lib/x86_64-linux-gnu", "libtidegate.so.0")))
def test_preload_is_found(installed, tmp_path, folder, name):
    preload = add_library(tmp_path / "prefix", folder, name)
    shown = installed.shown("--preload", LD_PRELOAD="", TIDEGATE_LIBRARY="")
    assert shown["LD_PRELOAD"] == preload and "TIDEGATE_DEFAULT_TAG" not in shown
    assert shown["TIDEGATE"] == "on"


def test_preload_of_a_source_tree(tidegate, tmp_path, preloadable):
    built = Installed(tidegate.program, tmp_path)
    shown = built.shown("--default-tag", "all", LD_PRELOAD="", TIDEGATE_LIBRARY="",
                        TIDEGATE_DEFAULT_TAG="before")
    assert shown["LD_PRELOAD"] == str(BUILT)
    assert shown["TIDEGATE_DEFAULT_TAG"] == "all" and "TIDEGATE_DEFAULT_KEEP_HOST" not in shown
    shown = built.shown("--default-tag", "all", "--keep-host", LD_PRELOAD="", TIDEGATE_LIBRARY="")
    assert (shown["TIDEGATE_DEFAULT_TAG"], shown["TIDEGATE_DEFAULT_KEEP_HOST"]) == ("all", "1")


def test_preload_lies_beside_the_library_that_is_named(installed, tmp_path):
    add_library(tmp_path / "prefix")
    preload = add_library(tmp_path, "other[1]", "mine.so")
    shown = installed.shown("--preload", LD_PRELOAD="",
                            TIDEGATE_LIBRARY=str(tmp_path / "other[1]" / "mine.so"))
    assert shown["LD_PRELOAD"] == preload


@pytest.mark.parametrize("before", ("/other/hook.so", "/other/hook.so:{}", "{}:/other/hook.so"))
def test_preload_is_behind_others_and_once(installed, tmp_path, before):
    preload = add_library(tmp_path / "prefix")
    before = before.format(preload)
    shown = installed.shown("--preload", LD_PRELOAD=before, TIDEGATE_LIBRARY="")
    assert shown["LD_PRELOAD"] == (before if preload in before else f"{before}:{preload}")


def test_without_being_asked_for_nothing_is_preloaded(installed, tmp_path):
    add_library(tmp_path / "prefix")
    assert installed.shown(LD_PRELOAD="", TIDEGATE_LIBRARY="")["LD_PRELOAD"] == ""


@pytest.mark.parametrize("is_there", (False, True), ids=("no library", "no preload"))
def test_preload_that_is_missing(installed, tmp_path, is_there):
    """One sentence, and nothing was run."""
    if is_there:
        os.remove(add_library(tmp_path / "prefix"))
    result = installed("--preload", "--", "touch", tmp_path / "ran", env={"TIDEGATE_LIBRARY": ""})
    assert result.status == 2 and len(result.err.splitlines()) == 1
    assert PRELOAD in result.err and "does not lie beside the library" in result.err
    assert not (tmp_path / "ran").exists() and not list(installed.temporary.iterdir())


def test_preload_path_that_no_list_holds(tidegate, tmp_path):
    """Of a command without a package, whose path would have been refused before."""
    add_library(tmp_path / "a b", "lib", "libtidegate.so.0")
    (tmp_path / "a b/bin").mkdir()
    odd = Installed(shutil.copy(tidegate.program, tmp_path / "a b/bin/tidegate"), tmp_path)
    result = odd("--preload", "--", "true", env={"TIDEGATE_LIBRARY": ""})
    assert result.status == 2 and "space" in result.err


def test_under_the_preload_no_seam_is_missed(tidegate, tmp_path, preloadable):
    built = Installed(tidegate.program, tmp_path)
    assert built("--preload", "--", "true", env={"TIDEGATE_LIBRARY": ""}).err == ""


def test_a_stock_program_allocates_from_its_tag(tidegate, tmp_path, preloadable):
    """cudaMalloc of a program over the toy runtime; without the tag the runtime sees all."""
    build = BUILT.parents[1]
    built = Installed(tidegate.program, tmp_path)
    env = {"LD_LIBRARY_PATH": str(build / "test/standin"), "TIDEGATE_LIBRARY": "",
           "TIDEGATE_STANDIN": "capacity=64MiB,context=0", "TIDEGATE_DIR": str(tmp_path / "node")}
    for options, seen in ((("--default-tag", "all"), 1), (("--preload",), 2), ((), 2)):
        result = built(*options, "--", build / "test/toycudart/host12", "once", "calls", env=env)
        assert result.out.splitlines()[1] == f"the runtime saw {seen} allocs, {seen} frees"
