# SPDX-License-Identifier: Apache-2.0
"""vLLM's own allocator modules and its own GPU worker, from its wheel, over our allocator, on a
driver that stands in for a GPU's: what is replaced, what sleeps and wakes with which content, what
raises where vLLM's own loses data, and what the other programs on the card may do meanwhile."""

import ast
import json
import os
import pathlib
import re
import shutil
import sys

import pytest

from conftest import ROOT, run
from vllm_wheel import needs_vllm, unpack

pytestmark = [needs_vllm, pytest.mark.usefixtures("library")]
FOLDER = pathlib.Path(os.environ.get("TIDEGATE_BIN", ROOT / "build/cli/tidegate")).resolve()
DRIVER = FOLDER.parents[1] / "test" / "standin"
MIB = 1 << 20

BEGIN = f"""
import contextlib, json, os, subprocess, sys, time
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import tidegate, vllm_world
from vllm_world import CALLS, MIB, TENSORS, Stranger, driver
compat = vllm_world.begin()
def state(name):
    return compat.ours().tags[name].info().state
def free():
    return driver().memory()[0] // MIB
"""


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("vllm"))


@pytest.fixture
def engine(files, tmp_path):
    """engine(code, mode) -> (what the code printed as JSON, what was said)"""
    def call(code, mode="on", standin="capacity=128MiB,context=4", **env):
        env = {"PYTHONPATH": str(ROOT / "python"), "TIDEGATE_DIR": str(tmp_path / "node"),
               "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"], "VLLM_FILES": str(files),
               "TIDEGATE_STANDIN": standin, "LD_LIBRARY_PATH": str(DRIVER), **env}
        if mode is not None:
            env["TIDEGATE"] = mode
        done = run(sys.executable, "-c", BEGIN + code, cwd=tmp_path, env=env)
        assert done.status == 0, done.err
        return json.loads(done.out), done.err

    return call


# ---- content -------------------------------------------------------------------------------------

LEVELS = """
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
buffer = made.model_runner.model.buffer
seen = []
def look():
    seen.append([TENSORS.content(block) for block in (weights, cache, buffer)])
for level in (1, 2, 1):
    for block, fill in ((weights, 7), (cache, 9), (buffer, 5)):
        TENSORS.write(block, fill)
    made.sleep(level)
    seen.append(free())
    made.wake_up()
    look()
print(json.dumps(seen))
assert tidegate.status().tenants[0].seams == "vllm 0.24.0: our allocator"
"""


def test_levels_1_and_2_keep_what_vllm_s_own_keep(engine):
    seen, err = engine(LEVELS)
    assert seen == [124, [7, 0, 5], 124, [0, 0, 5], 124, [7, 0, 5]]
    assert "vLLM 0.24.0: sleep and wake are Tidegate's" in err
    assert "vllm sleep saving weights: the driver got 68 MiB in " in err
    assert "vllm sleep saving nothing: the driver got 66 MiB in " in err
    assert "vllm wake_up all: took 66 MiB in " in err


def test_a_staged_wake_in_any_order_and_twice(engine):
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
seen = []
for order in (["weights", "kv_cache"], ["kv_cache", "weights"]):
    made.sleep(1)
    made.sleep(1)
    compat.ours().sleep(())
    for tag in order:
        made.wake_up([tag])
        made.wake_up([tag])
        seen.append([state("weights"), state("kv_cache"), free()])
    made.wake_up(["scheduling", "none of ours"])
    seen.append(TENSORS.content(weights))
print(json.dumps(seen))
""")
    assert seen == [["awake", "asleep", 98], ["awake", "awake", 58], 7,
                    ["asleep", "awake", 84], ["awake", "awake", 58], 7]


@pytest.mark.parametrize("offload, kept", [
    ("None", [0, 0, 1]), ("()", [0, 0, 0]), ("'weights'", [1, 0, 0]),
    ("('kv_cache', 'default')", [0, 1, 1]), ("('nobody',)", [0, 0, 0])])
def test_offload_tags_say_what_is_saved(engine, offload, kept):
    seen, _ = engine(f"""
allocator = compat.ours()
blocks = []
for tag in ("weights", "kv_cache", None):
    with allocator.use_memory_pool(tag):
        blocks.append(TENSORS.new(4 * MIB, 1))
allocator.sleep({offload})
allocator.wake_up()
print(json.dumps([TENSORS.content(block) for block in blocks]))
""")
    assert seen == kept


def test_discard_drops_some_and_leaves_the_rest_awake(engine):
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
compat.ours().discard(["kv_cache"])
seen = [state("weights"), state("kv_cache"), TENSORS.content(weights), free()]
compat.ours().wake_up(["kv_cache"])
print(json.dumps(seen + [TENSORS.content(cache)]))
""")
    assert seen == ["awake", "asleep", 7, 96, 0]  # a chunk of weights has 2 MiB to spare


def test_what_cannot_be_meant_is_refused_and_nothing_changes(engine):
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
allocator = compat.ours()
def enter(name):
    with allocator.use_memory_pool(name):
        pass
seen = []
for call, argument in ((allocator.sleep, ["weights"]), (allocator.sleep, 7), (enter, 7),
                       (enter, "two words"), (enter, "n" * 32), (enter, "")):
    try:
        call(argument)
    except RuntimeError as problem:
        seen.append(type(problem).__name__)
print(json.dumps([seen, state("weights"), allocator.current_tag, sorted(allocator.tags)]))
""")
    assert seen == [["BadValue"] * 6, "awake", "default", ["kv_cache", "weights"]]


def test_names_that_are_none_are_refused_before_anything_is_dropped(engine):
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
allocator, seen = compat.ours(), []
def told(call, argument):
    try:
        call(argument)
        return state("weights"), state("kv_cache")
    except tidegate.BadValue as problem:
        return str(problem)
for bad in ((5,), ("weights", None), ((),)):
    seen.append(told(allocator.sleep, bad))
for bad in (None, 5, [5], [None, "weights"], b"weights"):
    seen.append(told(allocator.discard, bad))
held = [TENSORS.content(weights), TENSORS.content(cache)]
allocator.sleep(("weights",))
for bad in (5, [5], [None, "weights"], [["weights"]], b"weights", True):
    seen.append(told(allocator.wake_up, bad))
asleep = [state("weights"), state("kv_cache")]
ways = []
for names in ("weights", "my kv_cache", "weights,kv_cache", (n for n in ("kv_cache", "weights"))):
    allocator.sleep("weights")
    ways.append(told(allocator.wake_up, names))
print(json.dumps([seen, held, asleep, ways]))
""")
    assert seen[0] == [f"{name}={bad}: a tag, or a list of tags" for name, bad in (
        ("offload_tags", "(5,)"), ("offload_tags", "('weights', None)"), ("offload_tags", "((),)"),
        ("tags", "None"), ("tags", "5"), ("tags", "[5]"), ("tags", "[None, 'weights']"),
        ("tags", "b'weights'"), ("tags", "5"), ("tags", "[5]"), ("tags", "[None, 'weights']"),
        ("tags", "[['weights']]"), ("tags", "b'weights'"), ("tags", "True"))]
    assert seen[1:3] == [[7, 9], ["asleep", "asleep"]]
    assert seen[3] == [["awake", "asleep"], ["asleep", "asleep"], ["awake", "awake"],
                       ["awake", "awake"]]


# ---- lacking memory ------------------------------------------------------------------------------

def test_a_wake_that_lacks_memory_leaves_all_asleep_and_succeeds_later(engine):
    """What vLLM's own would have lost: twenty times of twenty."""
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
seen = []
for round in range(20):
    made.sleep(1)
    stranger = Stranger(100 * MIB)
    before = CALLS.count("empty_cache")
    try:
        made.wake_up(None if round % 2 else ["weights"])
        seen.append("woken")
    except RuntimeError as problem:
        text = str(problem)
        seen.append([type(problem).__name__, state("weights"), state("kv_cache"), free(),
                     CALLS.count("empty_cache") - before])
    stranger.leave()
    made.wake_up()
    seen.append(TENSORS.content(weights))
print(json.dumps([seen, text]))
""", TIDEGATE_WAIT_SECONDS="0.01")
    rounds, text = seen
    assert rounds == [["TidegateWouldNotFit", "asleep", "asleep", 24, 1], 7] * 20
    assert text.startswith("wake weights, kv_cache needs 66.0 MiB, 24.0 can be had: ")
    assert "unattributed 100.0" in text and "All tags are asleep as before." in text


# ---- what others read ----------------------------------------------------------------------------

def test_the_fields_that_others_read(engine):
    seen, _ = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
allocator = sys.modules["vllm.device_allocator"].get_mem_allocator_instance()
seen = [allocator.get_current_usage() // MIB, allocator.current_tag, allocator.default_tag,
        sorted(allocator.allocator_and_pools)]
with allocator.use_memory_pool("outer"):
    with allocator.use_memory_pool("inner"):
        seen.append(allocator.current_tag)
    seen.append(allocator.current_tag)
seen.append(allocator.current_tag)
data = allocator.pointer_to_data[weights.address]
device, size, address, handle = data.handle
seen.append([device, size // MIB, address == weights.address, data.tag, data.is_mapped,
             data.cpu_backup_tensor])
by_tag = {}
for one in allocator.pointer_to_data.values():
    by_tag[one.tag] = by_tag.get(one.tag, 0) + one.handle[1] // MIB
seen.append(by_tag)
try:
    allocator.pointer_to_data[1] = None
except TypeError:
    seen.append("read only")
allocator.sleep()
seen.append([allocator.get_current_usage() // MIB,
             allocator.pointer_to_data[weights.address].is_mapped])
try:
    made._maybe_get_memory_pool_context("weights")
except AssertionError as problem:
    seen.append(str(problem))
print(json.dumps(seen))
""")
    assert seen == [66, "default", "default", ["kv_cache", "weights"], "inner", "outer", "default",
                    [0, 24, True, "weights", True, None], {"weights": 26, "kv_cache": 40},
                    "read only", [66, False],
                    "CuMem allocator can only be used for one instance per process."]


def test_the_copy_of_a_sleeping_allocation_can_be_read(engine):
    seen, _ = engine("""
import torch
torch.frombuffer = lambda view, dtype: [view.readonly, len(view) // MIB, set(view)]
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
made.sleep(1)
data = compat.ours().pointer_to_data
readonly, size, content = data[weights.address].cpu_backup_tensor
print(json.dumps([readonly, size, list(content), data[cache.address].cpu_backup_tensor]))
""")
    assert seen == [True, 24, [7], None]


def test_a_second_engine_can_start_when_the_first_is_gone(engine):
    """vLLM asks whether the allocator is empty; what torch only caches is not in use."""
    seen, _ = engine("""
made = vllm_world.worker()
held = vllm_world.load(made)
made.sleep(1)
made.wake_up()
seen = [compat.ours().get_current_usage() // MIB]
del held, made
seen += [free(), compat.ours().get_current_usage(), free()]
again = vllm_world.worker()
held = vllm_world.load(again)
print(json.dumps(seen + [compat.ours().get_current_usage() // MIB]))
""")
    assert seen == [66, 58, 0, 124, 66]


def _signatures(text, wanted):
    """Name -> its arguments, as they are written, of functions and of methods of classes."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        members = node.body if isinstance(node, ast.ClassDef) else []
        for member in members:
            if isinstance(member, ast.FunctionDef) and member.name in wanted:
                found.setdefault(member.name, (ast.unparse(member.args),
                                               sorted(ast.unparse(each)
                                                      for each in member.decorator_list)))
    return found


def _as_written(signature):
    arguments, decorators = signature
    return (re.sub(r"Optional\[(\w+)\]", r"\1 | None", arguments),
            [name.split(".")[-1] for name in decorators])


def test_signatures_are_those_of_vllm(files):
    names = ("get_instance", "use_memory_pool", "sleep", "wake_up", "get_current_usage")
    theirs = _signatures((files / "vllm/device_allocator/cumem.py").read_text(), names)
    ours = _signatures((ROOT / "python/tidegate/compat/vllm_allocator.py").read_text(), names)
    assert set(theirs) == set(names)
    assert {name: _as_written(theirs[name]) for name in names} == \
        {name: _as_written(ours[name]) for name in names}


# ---- modes ---------------------------------------------------------------------------------------

WHO = """
import importlib
allocators = importlib.import_module("vllm.device_allocator")
worker = importlib.import_module("vllm.v1.worker.gpu_worker")
cumem = importlib.import_module("vllm.device_allocator.cumem")
def who():
    return [worker.get_mem_allocator_instance is allocators.get_mem_allocator_instance,
            *(function.__module__ + ("" if "tidegate" in function.__code__.co_filename else " own")
              for function in (worker.get_mem_allocator_instance, cumem.CuMemAllocator.get_instance,
                               worker.Worker.sleep, cumem.CuMemAllocator.sleep))]
"""
OWN = ["vllm.device_allocator own", "vllm.device_allocator.cumem own",
       "vllm.v1.worker.gpu_worker own", "vllm.device_allocator.cumem own"]


@pytest.mark.parametrize("mode", [None, "off", ""])
def test_unasked_nothing_is_replaced_and_nothing_said(engine, mode):
    seen, err = engine(WHO + """
from tidegate import arrivals
print(json.dumps([who(), arrivals._finder in sys.meta_path]))
""", mode=mode)
    assert seen == [[True, *OWN], False]
    assert "tidegate" not in err


def test_on_replaces_wherever_it_is_bound_and_off_restores(engine):
    seen, err = engine(WHO + """
seen = [[text.endswith("own") for text in who()[1:]], who()[0],
        allocators.get_mem_allocator_instance() is compat.ours(),
        cumem.CuMemAllocator.get_instance() is compat.ours()]
tidegate.off()
seen.append(who())
tidegate.set_mode("on")
seen.append([text.endswith("own") for text in who()[1:]])
print(json.dumps(seen))
""")
    # What measures vLLM's own has no place where ours sleeps.
    assert seen == [[False, False, False, True], True, True, True, [True, *OWN],
                    [False, False, False, True]]
    assert err.count("sleep and wake are Tidegate's") == 1


def test_a_plugin_that_comes_late_finds_who_has_bound_it(engine):
    seen, _ = engine("""
tidegate.off()
""" + WHO + """
tidegate.set_mode("on")
print(json.dumps([who()[0], [text.endswith("own") for text in who()[1:]]]))
""")
    assert seen == [True, [False, False, False, True]]


def test_threads_that_ask_at_once_get_the_same_allocator(engine):
    """Also while one of them still finds out whether ours can serve."""
    seen, err = engine("""
import threading
import vllm.device_allocator as module
from tidegate.compat import vllm_allocator
why_not, made = vllm_allocator.why_not, vllm_allocator.Allocator.__init__
vllm_allocator.why_not = lambda: time.sleep(0.2) or why_not()
vllm_allocator.Allocator.__init__ = lambda self: time.sleep(0.1) or made(self)
got = []
threads = [threading.Thread(target=lambda: got.append(module.get_mem_allocator_instance()))
           for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([[one is compat.ours() for one in got]]))
""")
    assert seen == [[True] * 4]
    assert err.count("sleep and wake are Tidegate's") == 1


def test_off_leaves_memory_that_only_we_can_wake_with_us(engine):
    seen, err = engine("""
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
made.sleep(1)
from vllm.device_allocator.cumem import CuMemAllocator  # where older versions go
tidegate.off()
by_class = CuMemAllocator.get_instance() is compat.ours()
made.wake_up()
seen = [by_class, TENSORS.content(weights)]
made.sleep(1)
seen.append([state("weights"), state("kv_cache")])
print(json.dumps(seen))
""")
    assert seen == [True, 7, ["asleep", "asleep"]]
    assert err.count("off, but vLLM's memory lies in Tidegate's tags") == 1


@pytest.mark.parametrize("size, rank, name", [(1, 0, "vllm"), (2, 1, "vllm tp 1"),
                                              ("unknown", 1, "vllm")])
def test_a_worker_is_named_by_its_place(engine, size, rank, name):
    """In the user's own process it has the name that this has."""
    _, err = engine(f"""
import multiprocessing, types
multiprocessing.parent_process = lambda: {"None" if rank == 0 else "1"}
made = vllm_world.worker()
group = types.SimpleNamespace(world_size={size!r}, rank_in_group={rank})
sys.modules["vllm.distributed.parallel_state"].get_tp_group = lambda: group
made._maybe_get_memory_pool_context("weights")
print(json.dumps(None))
""")
    assert f"[{'trainer' if rank == 0 else name}] tidegate on: GPU 0, vLLM" in err


def test_where_ours_cannot_serve_vllm_s_own_does(engine):
    seen, err = engine(WHO + """
from tidegate import card
card.Card.device = lambda self: None
class Own: pass
cumem.CuMemAllocator.instance = Own()
cumem.cumem_available = True
allocators.current_platform = vllm_world.worker() and worker.current_platform
print(json.dumps([type(allocators.get_mem_allocator_instance()).__name__ for _ in range(2)]))
""")
    assert seen == ["Own", "Own"]
    assert err.count("sleep and wake stay vLLM's own: the library does not open this card") == 1


OBSERVED = WHO + """
allocators.current_platform = vllm_world.worker() and worker.current_platform
cumem.cumem_available = True
class Driver:
    @staticmethod
    def cudaMemcpy(*_): pass
held = {}
def unmap(device, size, address, handle):
    held.pop(address).leave()
def create(device, size, address, handle):
    held[address] = Stranger(size)
cumem.python_create_and_map, cumem.python_unmap_and_release = create, unmap
cumem.libcudart = Driver
class Tensor:
    def __init__(self, size, **_): self.size = size
    def data_ptr(self): return 1
    def numel(self): return self.size
    def element_size(self): return 1
import torch
torch.empty = Tensor
own = allocators.get_mem_allocator_instance()
for address, tag, size in ((1, "weights", 16), (2, "kv_cache", 32)):
    create(0, size * MIB, address, 0)
    own.pointer_to_data[address] = allocators.AllocationData((0, size * MIB, address, 0), tag)
made = vllm_world.worker()
made.sleep(1)
made.wake_up(["weights"])
made.wake_up(["kv_cache"])
"""


def test_observe_measures_vllm_s_own_and_changes_nothing(engine, tmp_path):
    seen, err = engine(OBSERVED + "print(json.dumps([type(own).__name__, who()[1], free()]))\n",
                       mode="observe", TIDEGATE_OUT=str(tmp_path / "out"))
    assert seen == ["CuMemAllocator", OWN[0], 76]
    lines = [json.loads(line) for path in (tmp_path / "out").iterdir()
             for line in path.read_text().splitlines()]
    assert [(line["handover"], line["tags"], line["driver_bytes"] // MIB) for line in lines] == \
        [("vllm sleep", ["weights"], 48), ("vllm wake_up", ["weights"], -16),
         ("vllm wake_up", ["kv_cache"], -32)]
    assert err.count("tidegate observe: GPU 0, vLLM 0.24.0: its sleeps and wakes are measured") == 1
    assert "vllm sleep saving weights: the driver got 48 MiB in " in err
    assert "vllm wake_up kv_cache: took 32 MiB in " in err


def test_observe_leaves_what_is_named_to_vllm_s_own(engine):
    """A generator is read by vLLM alone; a list of what is no name is recorded as it is."""
    seen, _ = engine("""
from tidegate.compat import vllm_observing
got = []
wake = vllm_observing._around_wake(lambda self, tags: got.append(list(tags)))
sleep = vllm_observing._around_sleep(lambda self, tags: got.append(tags))
wake(None, (n for n in ("kv_cache", "weights")))
wake(None, [5, None])
sleep(None, 7)
print(json.dumps(got))
""", mode="observe")
    assert seen == [["kv_cache", "weights"], [5, None], 7]


def test_on_steps_aside_where_vllm_s_own_is_in_use(engine):
    """The mode changes while tensors lie in vLLM's own: it goes on serving them."""
    code = OBSERVED.replace("made.sleep(1)", "tidegate.set_mode('on')\nmade.sleep(1)")
    seen, err = engine(code + "print(json.dumps([free()]))\n", mode="observe")
    assert seen == [76]
    assert "sleep and wake stay vLLM's own: memory lies in it already" in err


BACKENDS = """
class SleepModeBackend:
    def __init__(self):
        self._state = "RUNNING"
    def state(self):
        return self._state

class SleepModeBackendFactory:
    known = {}
    @classmethod
    def register_backend(cls, name, module, class_name):
        if name in cls.known:
            raise ValueError(name)
        cls.known[name] = (module, class_name)
"""


def test_where_vllm_chooses_among_backends_ours_is_one(engine, files, tmp_path):
    copy = shutil.copytree(files, tmp_path / "files")
    (copy / "vllm/device_allocator/sleep_mode_backend.py").write_text(BACKENDS)
    seen, _ = engine("""
import importlib
backends = importlib.import_module("vllm.device_allocator.sleep_mode_backend")
compat.begin()
module, name = backends.SleepModeBackendFactory.known["tidegate"]
backend = getattr(importlib.import_module(module), name)()
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
seen = [backend.is_supported(), backend.state()]
def did(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError as problem:
        seen.append(type(problem).__name__)
    seen.append(backend.state())
did(backend.suspend)
did(backend.resume, ["weights"])
stranger = Stranger(90 * MIB)
did(backend.resume, ["kv_cache"])
stranger.leave()
did(backend.resume)
print(json.dumps(seen + [TENSORS.content(weights)]))
""", TIDEGATE_WAIT_SECONDS="0.01", VLLM_FILES=str(copy))
    assert seen == [True, "RUNNING", "SUSPENDED", "SUSPENDED", "TidegateWouldNotFit", "SUSPENDED",
                    "RUNNING", 7]


# ---- the example ---------------------------------------------------------------------------------

EXAMPLE = ROOT / "doc" / "guide" / "vllm_levels.py"


def test_the_example_of_the_guide_sleeps_and_wakes(engine):
    """As it stands, over vLLM's own worker; a stranger holds the memory at its first try."""
    seen, _ = engine(f"""
import runpy, types, vllm
class LLM:
    def __init__(self, **settings):
        self.worker = vllm_world.worker()
        self.weights, self.cache = vllm_world.load(self.worker)
    def generate(self, prompts, params):
        text = str(TENSORS.content(self.weights))
        return [types.SimpleNamespace(outputs=[types.SimpleNamespace(text=text)])]
    def sleep(self, level):
        self.worker.sleep(level)
        self.stranger = Stranger(100 * MIB)
    def wake_up(self, tags):
        self.worker.wake_up(tags)
said = []
def sleep(seconds):
    llm.stranger.leave()
def make(**settings):
    global llm
    llm = LLM(**settings)
    return llm
vllm.LLM, vllm.SamplingParams = make, dict
time.sleep = sleep
import builtins
builtins.print, told = lambda *words: said.append(str(words[0])), print
sys.argv[1:] = ["MODEL"]
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
told(json.dumps(said))
""", TIDEGATE_WAIT_SECONDS="0.01")
    assert len(seen) == 2 and seen[0].startswith("wake weights needs 26.0 MiB, 24.0 can be had")
    assert seen[1] == "the same answer"


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 40


# ---- what peers may do ---------------------------------------------------------------------------

STARTS = """
from tidegate import tenancy
import importlib
worker = importlib.import_module("vllm.v1.worker.gpu_worker")
made = vllm_world.worker()
def starting():
    return [row.is_starting for row in tidegate.status().tenants]
config = vllm_world.stub_packages._make("config")()
config.parallel_config = vllm_world.stub_packages._make("parallel")()
config.parallel_config.distributed_timeout_seconds = None
"""


@pytest.mark.parametrize("mode", ["observe", "on"])
def test_a_start_up_keeps_peers_still_from_the_first_look_to_the_last_call(engine, mode):
    seen, _ = engine(STARTS + """
seen = [starting()]
worker.init_worker_distributed_environment(config, 0)
seen.append(starting())
made.model_runner.load_model = lambda **_: seen.append(starting())
worker.set_current_vllm_config = lambda _: contextlib.nullcontext()
made.vllm_config.weight_transfer_config = None
made.vllm_config.model_config.enable_cumem_allocator = False
made.load_model()
try:
    made.compile_or_warm_up_model()
except AttributeError:
    seen.append(starting())
print(json.dumps(seen))
""", mode=mode)
    assert seen == [[], [True], [True], [False]]


def test_a_start_up_is_already_the_engines(engine):
    """The mark joins the ledger before the allocator is announced, and the name stays."""
    seen, _ = engine(STARTS + """
import multiprocessing
multiprocessing.parent_process = lambda: 1
worker.init_worker_distributed_environment(config, 0)
made._maybe_get_memory_pool_context("weights")
print(json.dumps([row.name for row in tidegate.status().tenants]))
""")
    assert seen == ["vllm"]


@pytest.mark.parametrize("name", ["init_device", "load_model", "determine_available_memory",
                                  "initialize_from_config", "sleep"])
def test_a_start_up_that_fails_ends_and_so_does_one_whose_engine_sleeps(engine, name):
    arguments = {"initialize_from_config": "None"}.get(name, "")
    seen, _ = engine(STARTS + f"""
worker.init_worker_distributed_environment(config, 0)
seen = [starting()]
del made.model_runner, made.vllm_config
try:
    made.{name}({arguments})
except Exception as problem:
    seen.append(type(problem).__name__)
print(json.dumps(seen + [starting()]))
""")
    assert len(seen) == (2 if name == "sleep" else 3)
    assert seen[0] == [True] and seen[-1] == [False]


def test_a_worker_of_another_version_is_marked_where_it_can_be(engine):
    """What is missing is named once; loading the model begins the start-up then."""
    seen, err = engine("""
import types
from tidegate.compat import vllm_worker
def starting():
    return [row.is_starting for row in tidegate.status().tenants]
seen = []
class Worker:
    def load_model(self):
        seen.append(starting())
    def compile_or_warm_up_model(self):
        seen.append(starting())
module = types.ModuleType("another.gpu_worker")
module.Worker = Worker
vllm_worker.install(module)
for call in (Worker().load_model, Worker().compile_or_warm_up_model):
    call()
    seen.append(starting())
print(json.dumps(seen))
""")
    assert seen == [[True], [True], [True], [False]]
    assert "vLLM's worker has no init_worker_distributed_environment, init_device, " \
        "determine_available_memory, initialize_from_config, sleep here" in err


PEER = """
import os, sys, tidegate
tag = tidegate.tag("optimizer", device="cuda:0")
block = tag.alloc(70 << 20)
tidegate.sleep()
print("ready", flush=True)
sys.stdin.readline()
print(tidegate.wake(timeout=50).gained_bytes, flush=True)
"""


def test_free_memory_does_not_fall_while_vllm_measures_its_sleep(engine):
    """A peer waits for just what the sleep gives: it has it when vLLM has seen what it gave."""
    seen, _ = engine(f"""
peer = subprocess.Popen([sys.executable, "-c", {PEER!r}], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, env=dict(os.environ, TIDEGATE_NAME="trainer"))
assert peer.stdout.readline() == b"ready\\n"
made = vllm_world.worker()
weights, cache = vllm_world.load(made)
peer.stdin.write(b"go\\n")
peer.stdin.flush()
def waits():
    return any(row.waits_for for row in tidegate.status().tenants if row.name == "trainer")
while not waits():
    pass
import torch
looks = []
def memory(*_):
    looks.append(1)
    end = time.monotonic() + 1
    while len(looks) == 2 and waits() and time.monotonic() < end:
        pass  # who is not held takes it now
    return driver().memory()
torch.cuda.mem_get_info = memory
made.sleep(1)
del looks[:]
out, _ = peer.communicate()
print(json.dumps([int(out) // MIB, free()]))
""")
    assert seen == [70, 124]
