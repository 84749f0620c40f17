# SPDX-License-Identifier: Apache-2.0
"""SGLang's own adapter, its own scheduler's mixin and its own plugin loader, from its wheel, over
our saver, on a driver that stands in for a GPU's."""

import ast
import json
import os
import pathlib
import sys
import zipfile

import pytest

from conftest import ROOT, run
from verl_wheels import entry_point

WHEELS = sorted((ROOT / ".cache" / "engines" / "sglang").glob("sglang-0.5.12-*.whl"))
FILES = ("sglang/srt/constants.py", "sglang/srt/environ.py", "sglang/srt/plugins/__init__.py",
         "sglang/srt/plugins/hook_registry.py", "sglang/srt/managers/scheduler.py",
         "sglang/srt/managers/scheduler_update_weights_mixin.py",
         "sglang/srt/model_executor/model_runner.py",
         "sglang/srt/utils/torch_memory_saver_adapter.py")
FOLDER = pathlib.Path(os.environ.get("TIDEGATE_BIN", ROOT / "build/cli/tidegate")).resolve()
DRIVER = FOLDER.parents[1] / "test" / "standin"
pytestmark = [pytest.mark.usefixtures("library"), pytest.mark.skipif(
    not WHEELS or sys.version_info < (3, 10),
    reason="the wheel of SGLang 0.5.12 is for: make check-engines, with Python 3.10")]

BEGIN = f"""
import json, sys
from ctypes import memset, string_at
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import sglang_world
from sglang_world import MIB, Ways, request, world
import tidegate
torch = sglang_world.begin()
from tidegate import pools, seams
def free():
    return world.devices.device("cuda:0").memory()[0] // MIB
def engine():
    "An engine that is up: 16 MiB of weights with a backup, 32 of cache."
    saver = sglang_world.adapter()
    with saver.region("weights", enable_cpu_backup=True):
        weights = world.Tensor(16 * MIB)
    with saver.region("kv_cache"):
        cache = world.Tensor(32 * MIB)
    memset(weights.data_ptr(), 7, 16 * MIB)
    module = sglang_world.make_scheduler(saver)
    from tidegate.compat import sglang_scheduler
    if "on" == tidegate.mode():
        sglang_scheduler.install_loop(module)
    scheduler = module.Scheduler()
    scheduler.held = weights, cache
    return scheduler
def same(scheduler):
    return string_at(scheduler.held[0].data_ptr(), 16 * MIB) == bytes([7]) * (16 * MIB)
def sent(scheduler):
    return [name.replace("MemoryOccupationReqOutput", "") for name in
            scheduler.send_to_tokenizer.sent]
"""


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sglang")
    with zipfile.ZipFile(WHEELS[0]) as wheel:
        for name in FILES:
            wheel.extract(name, folder)
    return folder


@pytest.fixture
def tell(files, tmp_path):
    """tell(code, mode) -> (what the code printed as JSON, what was said)"""
    def call(code, mode="on", **env):
        env = {"PYTHONPATH": f"{ROOT / 'python'}:{entry_point(tmp_path)}",
               "TIDEGATE_DIR": str(tmp_path / "node"), "SGLANG_FILES": str(files),
               "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"],
               "TIDEGATE_STANDIN": "capacity=128MiB,context=0", "LD_LIBRARY_PATH": str(DRIVER),
               **env}
        if mode is not None:
            env["TIDEGATE"] = mode
        done = run(sys.executable, "-c", BEGIN + code, cwd=tmp_path, env=env)
        assert done.status == 0, done.err
        return json.loads(done.out), done.err

    return call


def test_without_a_mode_nothing_is_replaced_and_nothing_said(tell):
    answer, said = tell("""
import sglang.srt.utils.torch_memory_saver_adapter as module
print(json.dumps([hasattr(module, "_memory_saver"), seams.active(),
                  "tidegate.compat.sglang_installing" in sys.modules]))
""", mode=None)
    assert answer == [False, [], False] and "tidegate" not in said


ROUND = """
scheduler = engine()
before = free()
for _ in range(3):
    scheduler.process_input_requests([request(Ways.RELEASE, "kv_cache"),
                                      request(Ways.RELEASE, "weights")])
    asleep = free()
    scheduler.process_input_requests([request(Ways.RESUME, "weights"),
                                      request(Ways.RESUME, "kv_cache")])
print(json.dumps([before, asleep, free(), same(scheduler), sent(scheduler), scheduler.flushed]))
"""


def test_the_real_mixin_releases_and_resumes_over_the_real_adapter(tell):
    answer, said = tell(ROUND)
    assert answer == [80, 128, 80, True, ["Release", "Release", "Resume", "Resume"] * 3, 3]
    assert said.count("release and resume are Tidegate's") == 1


def test_a_repeated_release_or_resume_is_answered_and_does_nothing(tell):
    """Also of all tags, none of which need be named."""
    answer, _ = tell("""
scheduler = engine()
both = [request(Ways.RESUME), request(Ways.RELEASE), request(Ways.RELEASE, "weights"),
        request(Ways.RELEASE), request(Ways.RESUME, "kv_cache"), request(Ways.RESUME),
        request(Ways.RESUME), request(Ways.RESUME, "weights")]
scheduler.process_input_requests(both)
print(json.dumps([len(sent(scheduler)), free(), same(scheduler), sorted(scheduler.offload_tags)]))
""")
    assert answer == [8, 80, True, []]


STRANGER = """
from ctypes import CFUNCTYPE, POINTER, byref, c_int, c_uint32, c_uint64, c_void_p
device = world.devices.device("cuda:0")
def take(size):
    chunk = c_uint64()
    create = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint32, POINTER(c_uint64))(device.ops.create)
    assert create(device.handle, size, 0, byref(chunk)) == 0
    return chunk
def drop(chunk):
    assert CFUNCTYPE(c_int, c_void_p, c_uint64)(device.ops.release)(device.handle, chunk) == 0
"""


def test_a_resume_without_memory_keeps_the_engine_and_is_answered_later(tell):
    """Twenty times: the weights wake, the cache waits until the stranger lets go. Who sent it again
    meanwhile is answered too."""
    answer, said = tell(STRANGER + """
scheduler, states = engine(), []
for _ in range(20):
    scheduler.process_input_requests([request(Ways.RELEASE)])
    chunk = take(100 * MIB)
    scheduler.send_to_tokenizer.sent.clear()
    scheduler.process_input_requests([request(Ways.RESUME)])
    scheduler.process_input_requests([])
    waiting = [sent(scheduler), sorted(scheduler.offload_tags), free()]
    drop(chunk)
    scheduler.process_input_requests([])
    scheduler.process_input_requests([request(Ways.RESUME)])
    scheduler.process_input_requests([])
    states.append([waiting, sent(scheduler), sorted(scheduler.offload_tags), free(),
                   same(scheduler)])
print(json.dumps([states[0], all(state == states[0] for state in states)]))
""", TIDEGATE_WAIT_SECONDS="0")
    assert answer == [[[[], ["kv_cache"], 12], ["Resume", "Resume"], [], 80, True], True]
    assert "Trying again" in said


def test_what_is_refused_at_once_is_said_once_and_not_at_every_turn(tell):
    _, said = tell(STRANGER + """
scheduler = engine()
scheduler.process_input_requests([request(Ways.RELEASE)])
chunk = take(100 * MIB)
scheduler.process_input_requests([request(Ways.RESUME)])
for _ in range(50):
    scheduler.process_input_requests([])
print(json.dumps(None))
""", TIDEGATE_WAIT_SECONDS="0")
    assert said.count("by as much. Trying again") == 1 == said.count("Trying again")


def test_a_later_release_is_not_undone_by_a_resume_that_waits(tell):
    answer, _ = tell(STRANGER + """
scheduler = engine()
scheduler.process_input_requests([request(Ways.RELEASE)])
chunk = take(100 * MIB)
scheduler.process_input_requests([request(Ways.RESUME)])
scheduler.process_input_requests([request(Ways.RELEASE)])
drop(chunk)
scheduler.process_input_requests([])
released = [sent(scheduler), sorted(scheduler.offload_tags), free()]
scheduler.process_input_requests([request(Ways.RESUME)])
print(json.dumps([released, free(), same(scheduler)]))
""", TIDEGATE_WAIT_SECONDS="0")
    assert answer == [[["Release", "Release", "Resume"], ["cuda_graph", "kv_cache", "weights"],
                       128], 80, True]


def test_one_tag_as_a_string_is_that_tag(tell):
    """As with SGLang's own, whose engine hands it on as it is."""
    answer, _ = tell("""
import types
scheduler, seen = engine(), []
for way in (Ways.RELEASE, Ways.RESUME):
    scheduler.process_input_requests([(way, types.SimpleNamespace(tags="weights"))])
    seen += [free(), sorted(scheduler.offload_tags)]
print(json.dumps([seen, same(scheduler)]))
""")
    assert answer == [[96, ["weights"], 80, []], True]


def test_where_several_ranks_answer_together_it_is_raised(tell):
    answer, _ = tell(STRANGER + """
scheduler = engine()
scheduler.tp_size = 2
scheduler.process_input_requests([request(Ways.RELEASE)])
chunk = take(126 * MIB)
try:
    scheduler.process_input_requests([request(Ways.RESUME)])
except tidegate.TidegateWouldNotFit:
    raised = sorted(scheduler.offload_tags)
drop(chunk)
scheduler.process_input_requests([request(Ways.RESUME)])
print(json.dumps([raised, sent(scheduler), same(scheduler)]))
""", TIDEGATE_WAIT_SECONDS="0")
    assert answer == [["kv_cache", "weights"], ["Release", "Resume"], True]


def test_observe_measures_what_sglang_s_own_saver_does(tell):
    """The one that is installed; nothing of ours is in its place."""
    answer, said = tell("""
import types
calls = []
own = types.SimpleNamespace(pause=lambda tag: calls.append(["pause", tag]), enabled=True,
                            resume=lambda tag: calls.append(["resume", tag]))
sys.modules["torch_memory_saver"] = types.SimpleNamespace(torch_memory_saver=own)
from tidegate import observing
measured = []
observing.record_handover = lambda kind, tags, *figures: measured.append([kind, tags])
saver = sglang_world.adapter()
saver.pause("weights")
saver.resume("weights")
import sglang.srt.utils.torch_memory_saver_adapter as module
print(json.dumps([calls, measured, module._memory_saver is own,
                  [name for name in seams.active() if name.endswith(("pause", "create"))]]))
""", mode="observe")
    name = "sglang: sglang.srt.utils.torch_memory_saver_adapter.pause"
    assert answer == [[["pause", "weights"], ["resume", "weights"]],
                      [["sglang pause", ["weights"]], ["sglang resume", ["weights"]]], True, [name]]
    assert said.count("its releases and resumes are measured") == 1


def test_peers_learn_of_a_start(tell):
    """From the first look at the card to the end of the runner's start, also of one that fails."""
    answer, _ = tell("""
import multiprocessing, types
from tidegate import tenancy
from tidegate.compat import sglang_start
multiprocessing.parent_process = lambda: 1
seen = []
def look():
    seen.append(any(one.is_starting for one in tidegate.status().tenants))
class ModelRunner:
    def init_torch_distributed(self):
        look()
    def initialize(self, pre_model_load_memory):
        look()
        if pre_model_load_memory < 0:
            raise MemoryError("not enough")
module = types.ModuleType("runner")
module.ModelRunner = ModelRunner
sglang_start.install(module)
runner = ModelRunner()
runner.init_torch_distributed()
look()
runner.initialize(1)
look()
try:
    runner.initialize(-1)
except MemoryError:
    look()
print(json.dumps(seen + [one.name for one in tidegate.status().tenants]))
""")
    assert answer == [False, True, True, False, True, False, "sglang"]


def test_off_restores_the_real_modules(tell):
    answer, _ = tell("""
import sglang.srt.utils.torch_memory_saver_adapter as module
import sglang.srt.managers.scheduler_update_weights_mixin as mixin
real, mixed = module._TorchMemorySaverAdapterReal, mixin.SchedulerUpdateWeightsMixin
names = lambda: [getattr(owner, name).__code__.co_filename.endswith(file) for owner, name, file in (
    (real, "pause", "adapter.py"), (real, "region", "adapter.py"),
    (mixed, "resume_memory_occupation", "mixin.py"),
    (mixed, "release_memory_occupation", "mixin.py"))]
on = [names(), module.TorchMemorySaverAdapter.create(True).enabled]
tidegate.off()
try:
    module.TorchMemorySaverAdapter.create(True)
except ImportError:
    print(json.dumps([on, names(), module._memory_saver, seams.active()]))
""")
    assert answer == [[[False] * 4, True], [True] * 4, None, []]


def test_off_while_memory_lies_in_tags_keeps_our_saver(tell):
    answer, said = tell("""
scheduler = engine()
scheduler.process_input_requests([request(Ways.RELEASE, "kv_cache", "weights")])
tidegate.off()
scheduler.process_input_requests([request(Ways.RESUME, "kv_cache", "weights")])
print(json.dumps([free(), same(scheduler)]))
""")
    assert answer == [80, True] and "stay Tidegate's until it is freed" in said


def test_a_graph_is_an_ordinary_one_and_a_child_has_nothing_preloaded(tell):
    answer, said = tell("""
import contextlib, os
captured = []
torch.cuda.graph = lambda **named: captured.append(sorted(named)) or contextlib.nullcontext()
saver = sglang_world.adapter()
with saver.cuda_graph(cuda_graph=1, pool=2, stream=3, tag="cuda_graph"), \\
        saver.configure_subprocess():
    preload = os.environ.get("LD_PRELOAD")
print(json.dumps([captured, preload, saver.enabled]))
""")
    assert answer == [[["cuda_graph", "pool", "stream"]], None, True]
    assert said.count("does not sleep yet") == 1


def test_the_files_have_what_is_replaced(files):
    """What is asked for by name in modules that cannot be imported here."""
    wanted = {"managers/scheduler.py": ("Scheduler", {"process_input_requests"}),
              "model_executor/model_runner.py": ("ModelRunner", {"init_torch_distributed",
                                                                 "initialize"})}
    for name, (owner, methods) in wanted.items():
        text = (files / "sglang" / "srt" / name).read_text()
        found, = [node for node in ast.walk(ast.parse(text))
                  if isinstance(node, ast.ClassDef) and node.name == owner]
        assert methods <= {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    text = (files / "sglang/srt/managers/scheduler.py").read_text()
    for asked in ("self.send_to_tokenizer.send_output(output, recv_req)", "self.tp_size",
                  "self.pp_size"):
        assert asked in text


EXAMPLE = ROOT / "doc" / "guide" / "sglang_rounds.py"
STUB = """
import importlib, os, sys, types
sys.path.insert(0, {here!r})
import sglang_world
from sglang_world import MIB, Ways, request
sglang_world.begin()
class Engine:
    "What the example asks of SGLang's, over the real adapter and mixin."
    def __init__(self, **options):
        assert options["enable_memory_saver"] and options["enable_weights_cpu_backup"]
        saver = sglang_world.adapter()
        with saver.region("weights", enable_cpu_backup=True):
            self.weights = sglang_world.world.Tensor(4 * MIB)
        with saver.region("kv_cache"):
            self.cache = sglang_world.world.Tensor(8 * MIB)
        self.scheduler = sglang_world.make_scheduler(saver).Scheduler()
    def generate(self, prompt, sampling_params):
        from ctypes import string_at
        return {{"text": string_at(self.weights.data_ptr(), 8).hex()}}
    def release_memory_occupation(self, tags):
        self.scheduler.process_input_requests([request(Ways.RELEASE, *tags)])
    def resume_memory_occupation(self, tags):
        self.scheduler.process_input_requests([request(Ways.RESUME, *tags)])
    def shutdown(self):
        pass
sys.modules["sglang"].Engine = Engine
sys.argv = [{example!r}, "a-model"]
exec(compile(open({example!r}).read(), {example!r}, "exec"))
"""


def test_the_example_releases_and_resumes(files, tmp_path):
    code = STUB.format(here=str(pathlib.Path(__file__).parent), example=str(EXAMPLE))
    done = run(sys.executable, "-c", code, cwd=tmp_path, env={
        "PYTHONPATH": f"{ROOT / 'python'}:{entry_point(tmp_path)}", "TIDEGATE": "on",
        "TIDEGATE_DIR": str(tmp_path / "node"), "SGLANG_FILES": str(files),
        "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"],
        "TIDEGATE_STANDIN": "capacity=128MiB,context=0", "LD_LIBRARY_PATH": str(DRIVER)})
    assert done.status == 0, done.err
    one = ["release kv_cache", "release weights", "resume weights", "resume kv_cache",
           "the text is the same"]
    assert [line.partition(" in ")[0] for line in done.out.splitlines()] == one * 2
    assert len(EXAMPLE.read_text().splitlines()) <= 40
