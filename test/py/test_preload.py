# SPDX-License-Identifier: Apache-2.0
"""The preload before programs that know nothing of it: toy runtimes of two versions over the driver
that stands in, in the program itself and in modules that are opened with RTLD_LOCAL."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from conftest import ROOT, run

MIB = 1 << 20
BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
TOYS = BUILD / "test" / "toycudart"
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
LIBRARY = BUILD / "src" / "libtidegate.so"
CARD = "capacity=64MiB,context=0,devices=2"
ON = {"TIDEGATE": "on", "TIDEGATE_DEFAULT_TAG": "usual"}

# What a stock program may do, and see no difference.
UNSEEN = ("errors", "order", "context", "devices", "wait", "fork", "threads", "version", "expand",
          "share", "peers")


@pytest.fixture(scope="module", autouse=True)
def built(preloadable):
    for path in (LIBRARY, TOYS / "host12"):
        if not path.exists():
            pytest.fail(f"{path} is not there: build it (make all)")


@pytest.fixture
def host(tmp_path):
    """host(program, *words, preload=…, …) -> Result of a program over the toy runtime."""
    def call(program, *words, preload=PRELOAD, driver=CARD, cwd=None, **env):
        env = {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": driver,
               "TIDEGATE_DIR": str(tmp_path / "node"), "TOYHOST_LIBRARY": str(LIBRARY), **env}
        if preload is not None:
            env["LD_PRELOAD"] = str(preload)
        result = run(TOYS / program, *words, env=env, cwd=cwd)
        assert result.status == 0, result.err
        return result

    return call


def local(number, *words):
    """The same words for a module with its runtime, for hostlocal."""
    return [f"{TOYS}/module{number}.so:{word}" for word in words]


def both_ways(number):
    return [(f"host{number}", lambda *words: words),
            ("hostlocal", lambda *words: local(number, *words))]


ALL = both_ways("12") + both_ways("13")
IDS = ["12", "12 local", "13", "13 local"]


# ---- a program sees no difference ---------------------------------------------------------------

@pytest.mark.parametrize("program, words", ALL, ids=IDS)
@pytest.mark.parametrize("thing", UNSEEN)
def test_a_program_sees_no_difference(host, program, words, thing):
    plain = host(program, *words(thing), preload=None)
    ours = host(program, *words(thing, "maps"), **ON)
    said = "libtidegate.so is " + ("not mapped" if thing == "version" else "mapped") + "\n"
    assert (ours.out, ours.err) == (plain.out + said, plain.err)


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_a_free_tells_that_the_device_was_lost(host, program, words):
    lost = CARD + ",sticky=500"
    plain = host(program, *words("lost"), preload=None, driver=lost)
    assert plain.out.count("700 untouched, last error 700 700 0") == 3
    ours = host(program, *words("lost"), driver=lost, **ON)
    assert (ours.out, ours.err) == (plain.out, "")


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_off_and_observe_leave_everything_as_it_is(host, program, words):
    things = words(*UNSEEN, "capture", "once", "calls", "maps")
    plain = host(program, *things, preload=None)
    assert "libtidegate.so is not mapped" in plain.out
    for env in ({}, {"TIDEGATE": "off"}, {"TIDEGATE": " Observe "}, {"TIDEGATE": ""}):
        ours = host(program, *things, **{"TIDEGATE_DEFAULT_TAG": "usual", **env})
        assert (ours.out, ours.err) == (plain.out, plain.err)


def test_what_is_no_mode_is_said_and_off(host):
    ours = host("host12", "once", "once", "calls", "maps", **{**ON, "TIDEGATE": "yes"})
    assert ours.out.splitlines()[2:] == ["the runtime saw 4 allocs, 4 frees",
                                         "libtidegate.so is not mapped"]
    assert ours.err == "tidegate: TIDEGATE='yes' is no mode: off, observe or on; taken as off\n"


# ---- what comes from a tag ----------------------------------------------------------------------

@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_small_requests_are_the_runtimes(host, program, words):
    ours = host(program, *words("once", "calls"), **ON)
    assert ours.out == "once: 0 0 0 0\nthe runtime saw 1 allocs, 1 frees\n"


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_a_scope_serves_its_thread_while_it_lasts(host, program, words):
    things = words("once", "calls", "maps", "scope", "calls", "once", "calls", "maps")
    assert host(program, *things, TIDEGATE="on").out.splitlines() == [
        "once: 0 0 0 0", "the runtime saw 2 allocs, 2 frees", "libtidegate.so is not mapped",
        "scope: 0 0 0", "once: 0 0 0 0", "out of it: 0", "the runtime saw 3 allocs, 3 frees",
        "once: 0 0 0 0", "the runtime saw 5 allocs, 5 frees", "libtidegate.so is mapped"]


def test_a_packed_scope_takes_small_requests(host):
    ours = host("host12", "scope", "calls", TIDEGATE="on", TOYHOST_PACKED="1")
    assert ours.out.splitlines()[-1] == "the runtime saw 0 allocs, 0 frees"


def test_a_scope_without_the_mode_is_the_users_alone(host):
    ours = host("host12", "scope", "calls")
    assert ours.out.splitlines()[-1] == "the runtime saw 2 allocs, 2 frees"


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_a_capture_is_left_whole(host, program, words):
    seen = host(program, *words("capture", "calls"), **ON).out.splitlines()
    assert seen[0] == "stream: 0"
    assert seen[1:9] == [line for what in ("one", "own", "to", "to own") for line in (
        f"{what}: begun 0, not ended 1, inside 0 0 0, ended 0, freed 0",
        f"after {what} room for 0 0")]
    assert seen[9:] == [
        "begun 0, synchronised 900, ended: 901 untouched, last error 901 901 0, errno 0",
        "after a lost one room for 0 0",
        "ended again: 1 untouched, last error 1 1 0, errno 0",
        "begun nowhere: 1 untouched, last error 1 1 0, errno 0", "after none room for 0 0",
        "begun 0, destroyed 0", "after a destroyed one room for 0 0",
        "the runtime saw 0 allocs, 0 frees"]


# ---- memory that the program maps itself ---------------------------------------------------------

@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_mapped_and_native_memory_sleep_as_one(host, program, words):
    """But what was shared stays; and what is unmapped meanwhile is forgotten."""
    ours = host(program, *words("asleep"), **ON)
    assert ours.out.splitlines() == [
        "begun 0, mapped 0, exported 0, the child 0, it wrote 7",
        "mapped 0, wrong 0, last error 0", "native 0, wrong 0, last error 0",
        "sleep 0, gained 42 MiB, usual 42, stays: shared 2",
        "shared page 101, create 2, unmap 0, wake 0", "native 0",
        "mapped 0, wrong 0, last error 0", "ended 0, wrong 0, last error 0"]
    assert ours.err == ""


def test_mapped_memory_is_the_drivers_where_no_tag_has_a_say(host):
    plain = host("host12", "share", "expand", preload=None)
    ours = host("host12", "share", "expand", "maps", TIDEGATE="on")
    seen = [line.split(",")[0] for line in plain.out.splitlines()]
    assert seen[2:] == [
        "begun 0", "mapped 0", "native 0", "too much 2", "emptied 0", "again 0", "refilled 0",
        "full 2", "freed early 1", "unmapped 0", "unmapped twice 1", "native 0", "behind 0",
        "ended 0"]
    assert ours.out == plain.out + "libtidegate.so is not mapped\n"


# ---- peers ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_peers_reach_blocks_through_sleep_and_wake(host, program, words):
    """Access that was given is given to what comes later, and by each wake; what was taken is gone
    with the next one."""
    ours = host(program, *words("reach"), **ON)
    assert ours.out.splitlines() == [
        "before: own yes, peer no, the peer's no",
        "given 0: first yes, second yes, the peer's no",
        "slept 0 0: first yes, second yes",
        "given asleep 0 0, woken 0: the peer's yes",
        "taken 0: first yes, what came after no, the peer's yes",
        "slept 0 0: first no, own yes"]
    assert ours.err == ""


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
def test_peers_reach_memories_that_come_later(host, program, words):
    """The library is opened, and memories enter a scope, after access was given."""
    ours = host(program, *words("reach_late"), TIDEGATE="on")
    assert ours.out.splitlines() == [
        "given 0", "of the process 0 0: yes",
        "its own 0 0 0: no, in a scope 0: yes, the older one's yes"]
    assert ours.err == ""


def test_giving_access_opens_nothing(host, tmp_path):
    """Only an allocation joins the ledger."""
    ours = host("host12", "version", "peers", "maps", TIDEGATE="on")
    assert "libtidegate.so is not mapped" in ours.out and not (tmp_path / "node/ledger").exists()


# ---- which runtime ------------------------------------------------------------------------------

@pytest.mark.parametrize("env", [{}, ON], ids=["off", "on"])
def test_each_of_two_runtimes_is_asked_by_its_own(host, env):
    things = [*local("12", "version", "full"), *local("13", "last", "version"),
              *local("12", "last", "last")]
    assert host("hostlocal", *things, **env).out.splitlines() == [
        "version 0 12000", "full: 0, then 2", "last error 0", "version 0 13000",
        "last error 2", "last error 0"]
    assert host("host12", "full", "last", **env).out == "full: 0, then 2\nlast error 2\n"


@pytest.mark.parametrize("env", [{}, ON], ids=["off", "on"])
def test_a_modules_runtime_is_not_the_programs(host, env):
    ours = host("host12", "full", "module", "last", TOYHOST_MODULE=f"{TOYS}/module13.so", **env)
    assert ours.out.splitlines() == ["full: 0, then 2", "last error 0", "module: 0",
                                     "last error 2"]


def test_who_finds_us_by_name_alone_gets_the_runtime_that_is_there(host):
    code = (f"import ctypes; ctypes.CDLL('{TOYS}/module12.so'); "
            "print(ctypes.CDLL(None).cudaPeekAtLastError())")
    ours = run(sys.executable, "-c", code, env={"LD_PRELOAD": str(PRELOAD), **ON})
    assert (ours.status, ours.out, ours.err) == (0, "0\n", "")


def test_who_is_linked_to_it_gets_the_runtime_too(host):
    module = f"{TOYS}/modulelinked.so"
    for env in ({}, ON):
        ours = host("hostlocal", f"{module}:version", f"{module}:once", f"{module}:last",
                    preload=None, **env)
        assert ours.out == "version 0 13000\nonce: 0 0 0 0\nlast error 0\n"


def test_without_any_runtime_it_is_said(tmp_path):
    code = ("import ctypes; preload = ctypes.CDLL(None); "
            "print(preload.cudaFree(None), preload.cudaMalloc(None, 1), preload.cudaFree(7))")
    ours = run(sys.executable, "-c", code, env={"LD_PRELOAD": str(PRELOAD), **ON})
    assert (ours.status, ours.out) == (0, "3 3 3\n")
    assert ours.err == "tidegate: cudaFree was called, but no runtime is loaded that has it\n"


@pytest.mark.parametrize("program, words", ALL, ids=IDS)
@pytest.mark.parametrize("is_first", [True, False], ids=["before", "behind"])
def test_another_hook_sees_each_call_once(host, program, words, is_first):
    hook = TOYS / "toyhook.so"
    order = f"{hook}:{PRELOAD}" if is_first else f"{PRELOAD}:{hook}"
    both = f"hook: {MIB - 1} bytes\nhook: {MIB} bytes\n"
    off = host(program, *words("once"), preload=order)
    if program == "hostlocal" and not is_first:  # the hook finds no runtime there, with or without
        assert off.out == host(program, *words("once"), preload=hook).out
        return
    assert (off.out, off.err) == (both + "once: 0 0 0 0\n", "")
    on = host(program, *words("once"), preload=order, **ON)
    seen = both if is_first else f"hook: {MIB - 1} bytes\n"
    assert (on.out, on.err) == (seen + "once: 0 0 0 0\n", "")


def test_scopes_of_another_file_are_not_seen_and_that_is_said(host, tmp_path):
    other = tmp_path / "libtidegate.so.0"
    shutil.copy(LIBRARY, other)
    ours = host("host12", "scope", "once", "calls", TIDEGATE="on", TOYHOST_LIBRARY=str(other))
    assert ours.out.splitlines()[-1] == "the runtime saw 4 allocs, 4 frees"
    assert ours.err.count("\n") == 1 and "does not see" in ours.err


# ---- what cannot work ---------------------------------------------------------------------------

FAKE = """
const char *tg_version(void) { return "9.9.9"; }
int tg_process_alloc(void) { return -1; }
int tg_process_free(void) { return -1; }
void tg_process_captures(const int *open) { (void)open; }
const void *tg_last_error(void) { return 0; }
"""


def _nothing(_path):
    pass


def _garbage(path):
    path.write_bytes(b"not at all an ELF file" * 100)


def _empty(path):
    path.write_bytes(b"")


def _half(path):
    data = LIBRARY.read_bytes()
    path.write_bytes(data[:len(data) // 2])


def _last_byte(path):
    path.write_bytes(LIBRARY.read_bytes()[:-1])


def _folder(path):
    path.mkdir()


def _pipe(path):
    os.mkfifo(path)


def _other_version(path):
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-"], input=FAKE, text=True,
                   check=True)


def _other_library(path):
    subprocess.run(["cc", "-shared", "-fPIC", "-o", path, "-x", "c", "-"], input="int x;",
                   text=True, check=True)


DAMAGES = [(_nothing, "No such file"), (_garbage, "no library"), (_empty, "no library"),
           (_half, "cut off"), (_last_byte, "cut off"), (_folder, "no file"), (_pipe, "no file"),
           (_other_version, "another version"), (_other_library, "another version")]


@pytest.mark.parametrize("damage, why", DAMAGES, ids=[damage.__name__ for damage, _ in DAMAGES])
def test_a_library_that_cannot_be_used_is_said_once(host, tmp_path, damage, why):
    folder = tmp_path / "lib"
    folder.mkdir()
    shutil.copy(PRELOAD, folder)
    damage(folder / "libtidegate.so")
    plain = host("host12", "errors", "once", "once", "calls", preload=None)
    ours = host("host12", "errors", "once", "once", "calls", preload=folder / PRELOAD.name, **ON)
    assert ours.out == plain.out
    assert ours.err.startswith(f"tidegate: the preload steps aside: {folder}/libtidegate.so: ")
    assert ours.err.count("\n") == 1 and why in ours.err


def test_a_library_without_links_is_found(host, tmp_path):
    """As in a wheel."""
    shutil.copy(PRELOAD, tmp_path)
    shutil.copy(LIBRARY, tmp_path / LIBRARY.resolve().name)
    ours = host("host12", "once", "calls", preload=tmp_path / PRELOAD.name, **ON)
    assert (ours.out, ours.err) == ("once: 0 0 0 0\nthe runtime saw 1 allocs, 1 frees\n", "")


def test_who_stepped_aside_stays_there(host, tmp_path):
    shutil.copy(PRELOAD, tmp_path)
    ours = host("host12", "once", "repair", "once", "calls", "maps",
                preload=tmp_path / PRELOAD.name, TOYHOST_PLACE=str(tmp_path / "libtidegate.so"),
                **ON)
    assert ours.out.splitlines()[1:] == ["repaired: 0", "once: 0 0 0 0",
                                         "the runtime saw 4 allocs, 4 frees",
                                         "libtidegate.so is not mapped"]


def test_a_relative_name_is_not_followed(host, tmp_path):
    shutil.copy(PRELOAD, tmp_path)
    (tmp_path / "libtidegate.so").symlink_to(LIBRARY)
    ours = host("host12", "leave", "once", "maps", preload=f"./{PRELOAD.name}", cwd=tmp_path, **ON)
    assert ours.out.splitlines()[1:] == ["once: 0 0 0 0", "libtidegate.so is not mapped"]
    assert ours.err.count("\n") == 1 and "by its whole path" in ours.err


def test_a_name_that_is_none_is_said_once(host):
    plain = host("host12", "errors", "once", "calls", preload=None)
    ours = host("host12", "errors", "once", "calls", **{**ON, "TIDEGATE_DEFAULT_TAG": "no tag"})
    assert ours.out == plain.out
    assert ours.err.count("\n") == 1 and "no tag" in ours.err


def test_without_the_ledger_it_goes_on_alone(host, tmp_path):
    (tmp_path / "node" / "ledger").mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    plain = host("host12", "errors", preload=None)
    ours = host("host12", "errors", "maps", **ON)
    assert ours.out == plain.out + "libtidegate.so is mapped\n"
    assert ours.err.count("\n") == 1 and "without the ledger" in ours.err


def test_without_a_driver_the_runtime_says_so(host):
    plain = host("host12", "errors", "once", "calls", preload=None, driver="")
    ours = host("host12", "errors", "once", "calls", driver="", **ON)
    assert ours.out == plain.out
    assert "100 untouched" in ours.out
    assert ours.err.count("tidegate: ") == 1 and "without a tag" in ours.err


def test_a_shell_has_nothing_of_it(host, tmp_path):
    """Nor its children, nor a program that looks at its own maps."""
    script = "ls / | wc -l >/dev/null; (exit 3) & wait $!; echo $?; cat /proc/self/maps; exit 0"
    env = {"LD_PRELOAD": str(PRELOAD), **ON}
    ours = run("/bin/bash", "-c", script, env=env, cwd=tmp_path)
    assert (ours.status, ours.err) == (0, "")
    assert ours.out.startswith("3\n") and "libtidegate-preload.so" in ours.out
    assert "/libtidegate.so" not in ours.out


# ---- the mode of the process --------------------------------------------------------------------

FOLLOWS = """
import ctypes, tidegate
from tidegate import library, preloaded
class Request(ctypes.Structure):
    _fields_ = [("size_bytes", ctypes.c_uint64), ("device", ctypes.c_int), ("tag", ctypes.c_char_p)]
ours = ctypes.CDLL(library.path())
def asks():
    block = ctypes.c_void_p()
    request = Request(1 << 20, 0, b"usual")
    assert ours.tg_process_alloc(ctypes.byref(request), ctypes.byref(block)) == 0
    return block.value
first = asks()
seen = [preloaded.is_there(), first is not None]
for mode in ("observe", "on", "off"):
    tidegate.set_mode(mode)
    seen.append(asks() is not None)
seen.append(ours.tg_process_free(ctypes.c_void_p(first)))
print(*seen)
"""


@pytest.mark.parametrize("preload, seen", [
    (PRELOAD, "True True False True False 0"), (None, "False True True True True 0")])
def test_it_follows_the_mode(tmp_path, preload, seen):
    """Where it is not in the process the mode is the seams' alone. What is there is still freed."""
    env = {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": CARD,
           "TIDEGATE_DIR": str(tmp_path / "node"), "TIDEGATE_LIBRARY": str(LIBRARY),
           "PYTHONPATH": str(ROOT / "python"), **ON}
    if preload is not None:
        env["LD_PRELOAD"] = str(preload)
    result = run(sys.executable, "-c", FOLLOWS, env=env)
    assert (result.out.strip(), result.err) == (seen, "")
