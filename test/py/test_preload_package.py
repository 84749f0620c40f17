# SPDX-License-Identifier: Apache-2.0
"""The package in a program under the preload: one tenant, one memory, whoever comes first. What the
program allocates by itself sleeps and wakes with the package's own tags. Over the driver that
stands in and a toy runtime; each case in a Python of its own."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from conftest import ROOT, clean_env, run

BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
RUNTIME = BUILD / "test" / "toycudart" / "libcudart.so.12"
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
ON = {"TIDEGATE": "on", "TIDEGATE_DEFAULT_TAG": "usual"}

BEGIN = f"""
import ctypes, json, os, sys
from ctypes import byref, c_size_t, c_void_p, memset, string_at
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import tidegate
MIB = 1 << 20
runtime = ctypes.CDLL({str(RUNTIME)!r}, ctypes.RTLD_GLOBAL)
program = ctypes.CDLL(None)
def malloc(size, byte=0):
    block = c_void_p()
    result = program.cudaMalloc(byref(block), c_size_t(size))
    assert result == 0, result
    memset(block.value, byte, size)
    return block.value
def free(block):
    return program.cudaFree(c_void_p(block))
def holds(block, size, byte):
    return string_at(block, size) == bytes([byte]) * size
def seen_by_runtime():
    allocs, frees = ctypes.c_int(), ctypes.c_int()
    runtime.toyCalls(byref(allocs), byref(frees))
    return allocs.value
def rows():
    return [[one.title, {{tag.name: [tag.occupied_bytes // MIB, tag.asleep_bytes // MIB]
                         for tag in one.tags if tag.name != "context and libraries"}}]
            for one in tidegate.status().tenants]
def told(kind, action):
    try:
        action()
    except kind as problem:
        return str(problem)
    return "nothing"
def tell(*what):
    print(json.dumps(what))
"""


@pytest.fixture(scope="module", autouse=True)
def built(preloadable):
    if not RUNTIME.exists():
        pytest.fail(f"{RUNTIME} is not there: build it (make all)")


@pytest.fixture
def environment(tmp_path):
    """environment(**more) -> what a program under the preload is started with"""
    def make(card="capacity=64MiB,context=0,devices=2", **env):
        return {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": card,
                "TIDEGATE_DIR": str(tmp_path / "node"), "LD_PRELOAD": str(PRELOAD),
                "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"],
                "PYTHONPATH": str(ROOT / "python"), "RANK": "", "LOCAL_RANK": "", **env}

    return make


@pytest.fixture
def told(environment):
    """told(code, …) -> (what it told, its stderr)"""
    def call(code, **env):
        result = run(sys.executable, "-c", BEGIN + code, env=environment(**env))
        assert result.status == 0, result.err
        return json.loads(result.out), result.err

    return call


# ---- one process, one tenant ---------------------------------------------------------------------

FIRST = {
    "the program": "block = malloc(4 * MIB)",
    "a tag": 'tidegate.tag("own", device="cuda:0")\nblock = malloc(4 * MIB)',
    "the ledger": 'with tidegate.starting("cuda:0"): pass\nblock = malloc(4 * MIB)',
    "the program, and the ledger": """block = malloc(4 * MIB)
with tidegate.starting("cuda:0"): pass""",
}


@pytest.mark.parametrize("first", FIRST)
def test_whoever_comes_first_it_is_one_tenant(told, first):
    seen, err = told(FIRST[first] + """
own = tidegate.tag("own", device="cuda:0").alloc(2 * MIB)
mode = tidegate.status().tenants[0].mode
tell(rows(), mode, seen_by_runtime())
""", **ON)
    assert seen == [[["trainer", {"usual": [4, 0], "own": [2, 0]}]], "on", 0]
    assert err == ""


def test_the_command_shows_one_tenant(tidegate, environment, tmp_path):
    """Of a program that `tidegate run --default-tag` has started and that sleeps."""
    code = BEGIN + """
import subprocess
block = malloc(4 * MIB)
own = tidegate.tag("own", device="cuda:0").alloc(2 * MIB)
tidegate.sleep()
sys.stdout.write(subprocess.run([sys.argv[1], "status"], capture_output=True, text=True).stdout)
"""
    env = {**environment(), "LD_PRELOAD": "", "TIDEGATE_LIBRARY": ""}
    result = tidegate("run", "--default-tag", "all", "--", sys.executable, "-c", code,
                      tidegate.program, env=env)
    tenants = [line for line in result.out.splitlines() if " pid " in line]
    assert (result.status, len(tenants), result.err) == (0, 1, "")
    assert "all asleep (4.0 MiB)" in tenants[0] and "own asleep (2.0 MiB)" in tenants[0]


# ---- it sleeps and wakes -------------------------------------------------------------------------

def test_a_step_boundary_sleeps_all_and_wakes_it_where_it_was(told):
    """Another process has the whole card meanwhile."""
    seen, err = told("""
import subprocess
other = '''
import tidegate
tag = tidegate.tag("taken", device="cuda:0")
block = tag.alloc(64 << 20)
'''
weights, moments, cache = malloc(20 * MIB), malloc(20 * MIB), malloc(8 * MIB)
steps, addresses = [], []
for step in range(3):
    for block in (weights, moments):
        memset(block, step + 1, 20 * MIB)
    slept = tidegate.sleep()
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TIDEGATE")}
    taken = subprocess.run([sys.executable, "-c", other], env={**env, "TIDEGATE_NAME": "other"})
    woken = tidegate.wake()
    again = malloc(4 * MIB)
    steps.append([taken.returncode, slept.gained_bytes // MIB, woken.copied_bytes // MIB,
                  holds(weights, 20 * MIB, step + 1), holds(moments, 20 * MIB, step + 1),
                  [item.item for item in slept.tags], free(again)])
tell(steps, seen_by_runtime())
""", **ON)
    assert (seen, err) == ([[[0, 48, 48, True, True, ["usual"], 0]] * 3, 0], "")


def test_tags_of_both_are_one_set(told):
    """Moved as one, by name, and dropped."""
    seen, err = told("""
block = malloc(4 * MIB, 7)
cache = tidegate.tag("cache", device="cuda:0")
own = cache.alloc(2 * MIB)
usual = tidegate.tag("usual", backup="host", fill=False)
def states():
    return [usual.info().state, cache.info().state]
seen = [[usual.info().block_count, usual.info().device_bytes // MIB]]
for names in (None, "usual", ["cache", "usual"], "cache"):
    receipt = tidegate.sleep(names)
    seen.append([*states(), [item.item for item in receipt.tags]])
    tidegate.wake(names)
seen.append(states())
seen.append(holds(block, 4 * MIB, 7))
tidegate.sleep(drop="usual")
copied = tidegate.wake().copied_bytes
found = tidegate.tags.place(block + MIB)
seen.append([copied, found.tag is usual, found.size_bytes // MIB])
seen.append(told(tidegate.UnknownTag, lambda: tidegate.sleep("other")))
tell(*seen)
""", **ON)
    assert seen == [
        [1, 4], ["asleep", "asleep", ["usual", "cache"]], ["asleep", "awake", ["usual"]],
        ["asleep", "asleep", ["usual", "cache"]], ["awake", "asleep", ["cache"]],
        ["awake", "awake"], True, [0, True, 4],
        "there is no tag 'other' in this process; there are: cache, usual"]
    assert err == ""


def test_it_can_be_prepared_and_read_asleep(told):
    seen, _ = told("""
block = malloc(4 * MIB, 9)
seen = [[item.item for item in tidegate.prepare().tags], tidegate.repack().gained_bytes]
tag = tidegate.tags.chosen(None)
seen.append(tag)
receipt = tidegate.sleep("usual")
from tidegate import tags
seen.append(bytes(tags.host_view(block + MIB, 4)).hex())
again, usual = tidegate.sleep(), tags.opened("usual")[0]
seen.append([again.gained_bytes, told(tidegate.TidegateError, lambda: usual.alloc(MIB))])
tidegate.wake("usual")
tell(*seen, holds(block, 4 * MIB, 9))
""", **ON)
    assert seen == [["usual"], 0, ["usual"], "09090909",
                    [0, "tag 'usual' is asleep: wake it before you allocate"], True]


def test_before_the_program_allocates_nothing_sleeps(told):
    seen, err = told("""
seen = [tidegate.sleep().line()[:13], tidegate.sleep("usual").gained_bytes, tidegate.wake().reason,
        tidegate.prepare("usual").tags, rows(),
        told(tidegate.UnknownTag, lambda: tidegate.sleep("usual,other"))[:24]]
block = malloc(4 * MIB)
seen.append([tidegate.sleep("usual").gained_bytes // MIB, tidegate.wake("usual").reason])
tell(*seen)
""", **ON)
    assert seen == ["sleep nothing", 0, "done", [], [], "this process has no tags", [4, "done"]]
    assert err == ""


@pytest.mark.parametrize("first", ["", "block = malloc(4 * MIB)\n"], ids=["own", "program"])
def test_the_default_tag_has_its_settings_whoever_opens_it(told, first):
    seen, err = told(first + """
refused = told(tidegate.BadValue, lambda: tidegate.tag("usual", device="cuda:0"))
tag = tidegate.tag("usual", backup="host", fill=False, device="cuda:0")
other = malloc(2 * MIB, 3)
size = tag.info().size_bytes // MIB
tidegate.sleep("usual")
tidegate.wake("usual")
tell(refused, size, holds(other, 2 * MIB, 3), seen_by_runtime())
""", **ON)
    assert seen == ["usual is this program's default tag, and has settings of its own: "
                    "tidegate.tag('usual', backup=\"host\", fill=False) is it",
                    6 if first else 2, True, 0]
    assert err == ""


@pytest.mark.parametrize("said, kept", [("1", True), ("0", False), ("", False), ("yes", False)])
def test_the_default_tag_keeps_its_host_memory_where_it_is_told_to(told, said, kept):
    """What it holds asleep it holds awake: the second sleep makes none, and needs none."""
    seen, err = told("""
block = malloc(4 * MIB, 3)
usual = tidegate.tags.opened("usual")[0]
host = []
for step in range(2):
    tidegate.sleep()
    host.append(usual.info().host_bytes // MIB)
    tidegate.wake()
    host.append(usual.info().host_bytes // MIB)
refused = told(tidegate.BadValue, lambda: tidegate.tag("usual", device="cuda:0"))
tell(host, "keep_host=True" in refused, holds(block, 4 * MIB, 3))
""", TIDEGATE_DEFAULT_KEEP_HOST=said, **ON)
    assert seen == [[4, 4, 4, 4] if kept else [4, 0, 4, 0], kept, True]
    assert err.count("neither 1 nor 0") == (said == "yes")


# ---- what fails changes nothing ------------------------------------------------------------------

PEER = """
import sys, tidegate
block = tidegate.tag("taken", device="cuda:0").alloc(60 << 20)
print("taken", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def peer(environment):
    """peer() -> a process that holds 60 MiB of GPU 0 until a line comes"""
    started = []

    def start():
        env = {**environment(TIDEGATE_NAME="peer"), "LD_PRELOAD": ""}
        child = subprocess.Popen([sys.executable, "-c", PEER], env=clean_env(**env),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(child)
        assert child.stdout.readline() == "taken\n"
        return child

    yield start
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def asleep(environment):
    """A process whose program's 20 MiB and own 2 MiB sleep; a line wakes it, or tells why not."""
    code = BEGIN + """
block = malloc(20 * MIB, 5)
own = tidegate.tag("own", device="cuda:0", backup="host").alloc(2 * MIB)
memset(own.address, 6, 2 * MIB)
tidegate.sleep()
tell("asleep")
for line in sys.stdin:
    problem = told(tidegate.TidegateWouldNotFit, lambda: tidegate.wake(timeout=float(line)))
    states = [tag.info().state for tag in tidegate.tags.opened(None)]
    good = states == ["awake"] * 2 and holds(block, 20 * MIB, 5) and holds(own.address, 2 * MIB, 6)
    print(json.dumps([problem, states, good]), flush=True)
"""
    child = subprocess.Popen([sys.executable, "-uc", code], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True,
                             env=clean_env(**environment(**ON)))
    assert json.loads(child.stdout.readline()) == ["asleep"]

    def ask(line):
        child.stdin.write(line + "\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())

    ask.process = child
    yield ask
    child.kill()
    child.communicate()


def test_a_wake_without_room_leaves_all_asleep(asleep, peer):
    holder = peer()
    why, states, good = asleep("0")
    assert (states, good) == (["asleep", "asleep"], False)
    assert "wake own, usual" in why and "peer" in why and "All tags are asleep as before" in why
    holder.communicate("\n")
    assert asleep("60") == ["nothing", ["awake", "awake"], True]


def test_who_is_killed_asleep_leaves_nothing_behind(asleep, peer, tidegate, environment):
    asleep.process.send_signal(signal.SIGKILL)
    asleep.process.wait()
    peer()
    shown = tidegate("status", "--json", env=environment()).json()
    assert [one["name"] for one in shown["tenants"]] == ["peer"]


def test_a_sleep_without_host_memory_leaves_all_awake(told):
    seen, _ = told("""
block = malloc(4 * MIB, 5)
cache = tidegate.tag("cache", device="cuda:0").alloc(2 * MIB)
os.environ["TIDEGATE_HOST_BYTES"] = "1MiB"
problem = told(tidegate.HostMemory, tidegate.sleep)
states = [tag.info().state for tag in tidegate.tags.opened(None)]
tell(problem != "nothing", states, holds(block, 4 * MIB, 5), rows())
""", **ON)
    assert seen == [True, ["awake", "awake"], True,
                    [["trainer", {"usual": [4, 0], "cache": [2, 0]}]]]


# ---- modes, forks, names -------------------------------------------------------------------------

def test_off_ends_it_for_what_comes(told):
    """What is there still sleeps and wakes, by a call that the user writes."""
    seen, err = told("""
block = malloc(4 * MIB, 5)
tidegate.off()
other = malloc(2 * MIB)
mode = tidegate.status().tenants
gained = tidegate.sleep().gained_bytes // MIB
tidegate.wake()
tidegate.set_mode("on")
third = malloc(2 * MIB)
tell(gained, seen_by_runtime(), holds(block, 4 * MIB, 5), free(other), rows())
""", **ON)
    assert (seen, err) == ([4, 1, True, 0, [["trainer", {"usual": [6, 0]}]]], "")


@pytest.mark.parametrize("env", [{}, {"TIDEGATE": "off"}, {"TIDEGATE": "observe"},
                                 {"TIDEGATE": "on", "TIDEGATE_DEFAULT_TAG": ""}])
def test_where_no_tag_is_named_or_the_mode_is_not_on_it_is_as_without(told, tmp_path, env):
    code = """
block = malloc(4 * MIB)
seen = [tidegate.sleep().gained_bytes, rows(),
        told(tidegate.UnknownTag, lambda: tidegate.sleep("usual"))]
plain = tidegate.tag("usual", device="cuda:0").alloc(2 * MIB)
seen += [tidegate.sleep().gained_bytes // MIB, rows(), seen_by_runtime()]
tell(*seen)
"""
    env = {"TIDEGATE_DEFAULT_TAG": "usual", **env}
    ours = told(code, **env)
    assert ours[0] == [0, [], "this process has no tags, so none to sleep: tidegate.tag(name) "
                       "makes one", 2, [["trainer", {"usual": [0, 2]}]], 1]
    assert ours == told(code, **{**env, "LD_PRELOAD": "", "TIDEGATE_DIR": str(tmp_path / "plain")})


def test_a_forked_child_has_none_of_it_and_harms_none(told):
    seen, err = told("""
block = malloc(4 * MIB, 5)
own = tidegate.tag("own", device="cuda:0").alloc(2 * MIB)
child = os.fork()
if child == 0:
    seen = [tidegate.sleep().gained_bytes == 0, tidegate.sleep("usual").gained_bytes == 0,
            tidegate.tags.place(block) is None,
            told(tidegate.Forked, lambda: tidegate.tag("usual", device="cuda:0")) != "nothing",
            told(tidegate.Forked, own.view) != "nothing"]
    os._exit(0 if all(seen) else 1)
status = os.waitpid(child, 0)[1]
before = holds(block, 4 * MIB, 5)
tidegate.sleep()
tidegate.wake()
tell(status, before, holds(block, 4 * MIB, 5), rows())
""", **ON)
    assert seen == [0, True, True, [["trainer", {"usual": [4, 0], "own": [2, 0]}]]]
    assert err == ""


NAMES = """
from tidegate import identity
identity.stand_for("vllm server")
own = tidegate.tag("own", device="cuda:0").alloc(2 * MIB)
block = malloc(4 * MIB)
tell(rows())
"""


def test_a_name_that_comes_too_late_is_said_once(told):
    """An adapter knows better than the environment who this is; but the program has joined."""
    seen, err = told("block = malloc(2 * MIB)\n" + NAMES, **ON)
    assert seen == [[["trainer", {"usual": [6, 0], "own": [2, 0]}]]]
    assert err.count("\n") == 1 and "in the ledger as 'trainer' (role 'trainer'), and stays" in err
    assert "'vllm server'" in err and "TIDEGATE_NAME" in err


@pytest.mark.parametrize("first", ["", "block = malloc(2 * MIB)\n"])
def test_a_name_of_the_environment_is_everybodys(told, first):
    seen, err = told(first + NAMES, TIDEGATE_NAME=" b\u00e4r ", TIDEGATE_ROLE="rollout", **ON)
    assert (seen[0][0][0], err) == ("b?r", "")


def test_a_name_in_time_is_the_ledgers(told):
    seen, err = told(NAMES, **ON)
    assert (seen, err) == ([[["vllm server", {"usual": [4, 0], "own": [2, 0]}]]], "")


@pytest.mark.parametrize("first", ["", "block = malloc(4 * MIB)\n"])
def test_without_the_ledger_it_is_said_once(told, tmp_path, first):
    (tmp_path / "node" / "ledger").mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    seen, err = told(first + """
own = tidegate.tag("own", device="cuda:0").alloc(2 * MIB)
block = malloc(4 * MIB, 5)
gained = tidegate.sleep().gained_bytes // MIB
tidegate.wake()
tell(gained, holds(block, 4 * MIB, 5))
""", **ON)
    assert seen == [10 if first else 6, True]
    assert err.count("\n") == 1 and "without the ledger" in err


def test_memory_on_two_gpus_sleeps_and_wakes_as_one(told):
    """The default tag is one of that name on each."""
    seen, err = told("""
block = malloc(4 * MIB, 3)
program.cudaSetDevice(1)
other = malloc(6 * MIB, 4)
slept = tidegate.sleep("usual")
during = rows()
tidegate.wake()
own = tidegate.tag("own", device="cuda:1").alloc(2 * MIB)
tell([[item.item, item.size_bytes // MIB] for item in slept.tags], slept.gained_bytes // MIB,
     during, holds(block, 4 * MIB, 3), holds(other, 6 * MIB, 4),
     tidegate.sleep("own").gained_bytes // MIB)
""", **ON)
    assert seen == [[["usual on cuda:0", 4], ["usual on cuda:1", 6]], 10,
                    [["trainer", {"usual": [0, 4]}], ["trainer", {"usual": [0, 6]}]],
                    True, True, 2]
    assert err == ""


def test_a_capture_is_known_before_any_of_two_gpus_sleeps(told):
    """Of no content anything is lost, and the capture is whole."""
    seen, _ = told("""
block = malloc(4 * MIB, 3)
cache = tidegate.tag("cache", device="cuda:0", fill=False)
own = cache.alloc(2 * MIB)
memset(own.address, 5, 2 * MIB)
program.cudaSetDevice(1)
other = malloc(4 * MIB, 4)
stream = c_void_p()
assert program.cudaStreamCreateWithFlags(byref(stream), 1) == 0
assert program.cudaStreamBeginCapture(stream, 2) == 0
said = told(tidegate.Busy, lambda: tidegate.sleep(drop="usual"))
ended = program.cudaStreamEndCapture(stream, byref(c_void_p()))
tell(said, ended, holds(block, 4 * MIB, 3), holds(own.address, 2 * MIB, 5),
     holds(other, 4 * MIB, 4), tidegate.sleep().gained_bytes // MIB)
""", **ON)
    assert seen[0].startswith("on cuda:0: ") and "captur" in seen[0]
    assert seen[1:] == [0, True, True, True, 10]


def test_names_may_come_from_an_iterator(told):
    """Which gives each once, while they are looked at more often."""
    seen, _ = told("""
block = malloc(4 * MIB, 3)
moved = [call(iter(["usual"])).tags[0].size_bytes // MIB
         for call in (tidegate.sleep, tidegate.wake) * 2]
tidegate.prepare(iter(["usual"]))
tell(moved, holds(block, 4 * MIB, 3))
""", **ON)
    assert seen == [[4] * 4, True]


# ---- torch's memory is counted once --------------------------------------------------------------

TORCH = """
import types, fake_torch
from tidegate import accounts, card as cards, devices, reclaiming
torch = sys.modules["torch"] = fake_torch.make()
segments = {"live": [], "cached": []}
def driver():
    return devices.device("cuda:0").memory()
def take(kind, size):
    segments[kind].append((malloc(size, 4), size))
    count()
def count():
    for kind, found in segments.items():
        setattr(torch.card, kind, sum(size for _, size in found))
def empty():
    while segments["cached"]:
        free(segments["cached"].pop()[0])
    count()
torch.cuda.empty_cache = empty
torch.cuda.mem_get_info = lambda index: driver()
torch.cuda.device_count = lambda: 1
torch.cuda.cudart = lambda: types.SimpleNamespace(cudaMemGetInfo=lambda index: driver())
torch._C._cuda_getDevice = lambda: 0
torch._C._cuda_attach_out_of_memory_observer = lambda observer: None
where = cards.current()
def ledger():
    view, = tidegate.status().tenants
    card, = tidegate.status().devices
    return [{tag.name: [tag.occupied_bytes // MIB, tag.returnable_bytes // MIB] for tag in view.tags
             if tag.occupied_bytes + tag.returnable_bytes > 0},
            card.unattributed_bytes // MIB]
def account():
    found = accounts.account(where)
    free_bytes, total = driver()
    whole = sum(item.size_bytes for item in found.items()) == total - free_bytes
    return [{item.item: item.size_bytes // MIB for item in found.items()}, whole]
def published():
    accounts.publish(where)
    return [*ledger(), *account()]
def stepped():
    tidegate.step()
    return ledger()
"""


@pytest.mark.parametrize("how", ["published", "stepped"])
def test_torchs_memory_in_the_default_tag_is_held_once(told, how):
    """And what of it is cached peers may ask for, but while it sleeps."""
    seen, err = told(TORCH + f"""
take("live", 20 * MIB)
take("cached", 10 * MIB)
seen = [{how}()[:2]]
tidegate.sleep()
from tidegate import watching
watching._watch.ledger_at = -9.0
seen.append({how}()[:2])
tidegate.wake()
watching._watch.ledger_at = -9.0
seen.append({how}()[:2])
tell(*seen)
""", **ON)
    awake = [{"usual": [30, 10]}, 0]
    assert (seen, err) == ([awake, [{}, 0], awake], "")


def test_an_account_tells_torchs_memory_as_torch_does(told):
    """What is in the tag beside it, and what torch has beside the tag, too."""
    seen, err = told(TORCH + """
take("live", 20 * MIB)
take("cached", 10 * MIB)
seen = [published()]
other = malloc(6 * MIB)
seen.append(account())
tidegate.sleep()
seen.append(published())
tidegate.wake()
free(other)
tidegate.off()
take("live", 8 * MIB)
tidegate.set_mode("on")
seen.append(published())
tidegate.sleep()
seen.append(published())
tell(*seen)
""", card="capacity=64MiB,context=2", **ON)
    outside = {"context and libraries": 2}
    told_outside = {"context and libraries": [2, 0]}
    assert err == ""
    assert seen == [
        [{"usual": [30, 10], **told_outside}, 0, {"live": 20, "cached": 10, **outside}, True],
        [{"live": 20, "cached": 10, "tags of this process": 6, **outside}, True],
        [told_outside, 0, outside, True],
        [{"live": [8, 0], "usual": [30, 10], **told_outside}, 0,
         {"live": 28, "cached": 10, **outside}, True],
        [{"live": [8, 0], **told_outside}, 0, {"live": 8, **outside}, True]]


def test_what_a_sleep_tells_of_the_context_is_the_context_alone(told):
    seen, _ = told(TORCH + """
take("live", 20 * MIB)
tag = tidegate.tag("usual", backup="host", fill=False)
seen = [ledger()]
tag.memory._told_outside = -99.0
tidegate.sleep()
tag.memory.tenant.measure()
tell(*seen, ledger())
""", card="capacity=64MiB,context=2", **ON)
    outside = {"context and libraries": [2, 0]}
    assert seen[0][0] == {"usual": [20, 0], **outside}
    assert seen[1] == [outside, 0]


def test_a_cache_in_the_default_tag_is_given_to_who_asks(told):
    """The driver has it when it is looked at, as from the runtime: also where fences take long."""
    asker = """
import tidegate
from tidegate import devices, tenancy
mine = tenancy.tenant(devices.device("cuda:0"))
print(mine.ask(22 << 20))
"""
    seen, err = told(TORCH + f"""
import subprocess
take("live", 20 * MIB)
take("cached", 12 * MIB)
take("cached", 12 * MIB)
tidegate.step()
env = {{k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TIDEGATE")}}
asked = subprocess.run([sys.executable, "-c", {asker!r}], capture_output=True, text=True,
                       env=env)
from tidegate import watching
watching._watch.ledger_at = -9.0
tidegate.step()
free_bytes, total = driver()
receipt = tidegate.reclaim()
tell(asked.stdout, (total - free_bytes) // MIB, rows()[-1][1], receipt.driver_bytes)
""", card="capacity=64MiB,context=0,driver=12040", **ON)
    assert seen == ["1\n", 20, {"usual": [20, 0]}, 0]
    assert "a peer that asked" in err
