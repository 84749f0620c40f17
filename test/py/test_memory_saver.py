# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's stand-in over the driver that stands in. torch is pool_world's."""

import ast
import pathlib
import zipfile

import pytest

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "doc" / "guide" / "pause_tags.py"
STANDIN = "capacity=128MiB,context=0"
BEGIN = f"""
import itertools, json, sys
from ctypes import memset, string_at
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import pool_world as world, tidegate
from tidegate import errors, pools
from tidegate.compat import torch_memory_saver as module
torch = world.begin()
saver = module.torch_memory_saver
MIB = 1 << 20
def driver_used():
    free, total = world.devices.device("cuda:0").memory()
    return (total - free) // MIB
def told(action):
    try:
        action()
    except Exception as problem:
        return type(problem).__name__
    return "nothing"
def state(tensor):
    return pools.tag_at(tensor.data_ptr()).info().state
"""


def test_all_orders_leave_the_process_alive(tell):
    """Also repeated and with what nobody allocated in; what stays is awake in the
    end, with its content."""
    assert tell("""
ends = set()
for order in itertools.permutations(range(5)):
    with saver.region("weights", enable_cpu_backup=True):
        kept, freed = world.Tensor(2 * MIB), [world.Tensor(4 * MIB)]
    with saver.region("kv_cache"):
        cache = world.Tensor(6 * MIB)
    fill = 1 + order[0] * 5 + order[1]
    memset(kept.data_ptr(), fill, 2 * MIB)
    calls = [saver.pause, saver.resume, lambda: saver.pause("weights"),
             lambda: saver.resume("weights"), freed.clear]
    for which in order:
        calls[which]()
    saver.pause("nobody"), saver.resume("nobody"), saver.resume(), saver.resume()
    same = string_at(kept.data_ptr(), 2 * MIB) == bytes([fill]) * (2 * MIB)
    ends.add((state(kept), state(cache), len(freed), same))
    del kept, cache
    pools.trim()
print(json.dumps([sorted(ends), driver_used()]))
""") == [[["awake", "awake", 0, True]], 0]


def test_one_tag_with_two_settings_acts_together(tell):
    assert tell("""
with saver.region("a b/c"):
    first = world.Tensor(2 * MIB)
with module.TorchMemorySaver().region("a b/c", enable_cpu_backup=True):
    second = world.Tensor(2 * MIB)
with saver.region("a.kept"):
    third = world.Tensor(2 * MIB)
saver.pause("a b/c"), saver.pause("a b/c")
asleep = [state(first), state(second), state(third), driver_used()]
saver.resume()
print(json.dumps([asleep, state(first), state(second), driver_used()]))
""") == [["asleep", "asleep", "awake", 2], "awake", "awake", 6]


def test_a_pause_saves_nothing_that_is_free(tell):
    assert tell("""
with saver.region("weights", enable_cpu_backup=True):
    kept, freed = world.Tensor(2 * MIB), world.Tensor(6 * MIB)
tag = pools.tag_at(kept.data_ptr())
del freed
saver.pause()
print(json.dumps([tag.info().host_bytes // MIB, tag.info().size_bytes // MIB]))
""") == [2, 2]


@pytest.mark.parametrize("length", (1, 26, 27, 31, 40, 999))
def test_names_of_any_length(tell, length):
    assert tell(f"""
for kept in (True, False):
    with saver.region("n" * {length}, enable_cpu_backup=kept):
        tensor = world.Tensor(2 * MIB)
    saver.pause("n" * {length})
    saver.resume("n" * {length})
print(json.dumps(pools.tag_at(tensor.data_ptr()) is not None))
""") is True


def test_the_backup_can_be_read_while_it_is_paused(tell):
    assert tell("""
class Tensor(world.Tensor):
    dtype, shape = "u1", (2 * MIB,)
    def is_contiguous(self):
        return True
    def numel(self):
        return 2 * MIB
    def element_size(self):
        return 1
class Read:
    def __init__(self, view):
        self.data = bytes(view)
    def view(self, _):
        return self
    def clone(self):
        return self
torch.uint8, torch.frombuffer = "u1", lambda view, dtype: Read(view)
with saver.region("weights", enable_cpu_backup=True):
    backed = Tensor(2 * MIB)
memset(backed.data_ptr(), 8, 2 * MIB)
awake = saver.get_cpu_backup(backed)
saver.pause()
copy = saver.get_cpu_backup(backed)
print(json.dumps([awake, copy.data == bytes([8]) * 2 * MIB,
                  told(lambda: saver.get_cpu_backup(Tensor(0)))]))
""") == [None, True, "BadValue"]


def test_the_example_pauses_and_resumes(tell):
    assert tell(f"""
import contextlib, io, runpy
torch.ones = torch.zeros = lambda count, device: world.Tensor(4 * count)
with contextlib.redirect_stdout(io.StringIO()) as said:
    runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
print(json.dumps(said.getvalue().splitlines()))
""") == ["paused: 48 MiB are the driver's", "resumed: 0 MiB missing, addresses as before"]
    assert len(EXAMPLE.read_text().splitlines()) <= 40


def test_what_is_no_tag_is_refused_and_nothing_changes(tell):
    """Passed over, it would leave the caller to believe that its tag is paused."""
    assert tell("""
with saver.region("5"):
    kept = world.Tensor(2 * MIB)
said = {told(lambda: call(bad)) for call in (saver.pause, saver.resume, module.state)
        for bad in (5, True, b"5", ["5"], ("5",), {"5"}, 1.5)}
said |= {told(lambda: saver.get_cpu_backup(bad)) for bad in (None, 5, "5", [kept])}
print(json.dumps([sorted(said), state(kept)]))
""") == [["BadValue"], "awake"]


def test_disable_inside_ordinary_memory_leaves_it_ordinary(tell):
    """Whoever says "interesting" inside disable() speaks of what is inside it, and what was said
    around it holds again at its end."""
    assert tell("""
symbols = module._Symbols()
with saver.region("a"):
    symbols.tms_set_interesting_region(False)
    with saver.disable():
        symbols.tms_set_interesting_region(True)
        inner = symbols.tms_get_interesting_region()
    outer = symbols.tms_get_interesting_region()
    symbols.tms_set_interesting_region(True)
    tensor = world.Tensor(2 * MIB)
print(json.dumps([inner, outer, pools.is_inside(), state(tensor), len(world._threads.pools)]))
""") == [False, False, False, "awake", 0]


def test_disabled_is_not_interesting(tell):
    assert tell("""
with saver.region("weights"):
    inside = world.Tensor(2 * MIB)
    with saver.disable():
        off = saver._impl._binary_wrapper.cdll.tms_get_interesting_region()
        ordinary = world.Tensor(2 * MIB)
    on = saver._impl._binary_wrapper.cdll.tms_get_interesting_region()
print(json.dumps([off, on, pools.tag_at(ordinary.data_ptr()) is None]))
""") == [False, True, True]


def test_a_wake_that_lacks_memory_leaves_all_asleep(tell):
    assert tell("""
with saver.region("weights", enable_cpu_backup=True):
    kept = world.Tensor(80 * MIB)
saver.pause()
with saver.region("kv_cache"):
    other = world.Tensor(80 * MIB)
said, between = told(lambda: saver.resume("weights")), state(kept)
saver.pause("kv_cache")
saver.resume("weights")
print(json.dumps([said, between, state(kept)]))
""", TIDEGATE_WAIT_SECONDS="0") == ["TidegateWouldNotFit", "asleep", "awake"]


def test_private_parts_that_others_use(tell):
    assert tell("""
before = saver._impl is None
with saver.region("a"):
    symbols = saver._impl._binary_wrapper.cdll
    seen = [symbols.tms_get_interesting_region()]
    symbols.tms_set_interesting_region(False)
    seen.append(symbols.tms_get_interesting_region())
    plain = world.Tensor(2 * MIB).data_ptr()
    symbols.tms_set_interesting_region(True)
    inside = world.Tensor(2 * MIB)
    symbols.tms_set_interesting_region(False)  # the region's end puts it right
    with saver.region("b"):
        seen.append(symbols.tms_get_interesting_region())
seen.append(symbols.tms_get_interesting_region())
with saver.disable():
    pass
print(json.dumps([before, seen, plain, state(inside), pools.is_inside(),
                  told(lambda: symbols.tms_pause), told(lambda: symbols.
                  tms_set_interesting_region(True)),
                  told(lambda: module.utils.get_binary_path_from_package("x"))]))
""") == [True, [True, False, True, False], 0, "awake", False, "NoPreload", "BadValue", "NoPreload"]


def test_what_is_not_there_says_so(tell):
    assert tell("""
def enter(**settings):
    with saver.region("a", **settings):
        pass
print(json.dumps([told(lambda: enter(enable_disk_backup=True)),
                  told(lambda: enter(cpu_backup_backend="mmap")),
                  told(lambda: enter(enable_cpu_backup=True, cpu_backup_backend="tape")),
                  told(lambda: saver.cuda_graph(None)), told(lambda: saver.hook_mode),
                  told(lambda: setattr(saver, "hook_mode", "torch")),
                  told(lambda: saver.memory_margin_bytes),
                  told(lambda: setattr(saver, "retain_cpu_backup", True)), saver.enabled]))
""") == ["NotImplementedError", "BadValue", "BadValue", "NotImplementedError", "AttributeError",
         "nothing", "NotImplementedError", "NotImplementedError", True]


def test_the_name_is_taken_on_request(tell):
    assert tell("""
absent = "torch_memory_saver" not in sys.modules
module.install(), module.install()
import torch_memory_saver
from torch_memory_saver.utils import get_binary_path_from_package
same = torch_memory_saver is module
sys.modules["torch_memory_saver"] = json
print(json.dumps([absent, same, told(module.install)]))
""") == [True, True, "BadValue"]


WHEELS = pathlib.Path(__file__).resolve().parents[2] / ".cache" / "engines" / "torch_memory_saver"


def _signatures(source):
    """{method of TorchMemorySaver: its arguments and their defaults, without annotations}"""
    found = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == "TorchMemorySaver":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name[0] != "_":
                    values = [ast.unparse(d) for d in method.args.defaults]
                    found[method.name] = [a.arg for a in method.args.args], values
    return found


def test_signatures_are_the_originals_and_newer_arguments():
    wheels = sorted(WHEELS.glob("*0.0.9.post1-*.whl"))
    if not wheels:
        pytest.skip("torch_memory_saver's wheel is for: make check-engines")
    with zipfile.ZipFile(wheels[0]) as wheel:
        theirs = _signatures(wheel.read("torch_memory_saver/entrypoint.py").decode())
    module = pathlib.Path(__file__).resolve().parents[2] / "python" / "tidegate" / "compat" / \
        "torch_memory_saver.py"
    ours = _signatures(module.read_text())
    for name in ("region", "cuda_graph", "disable", "pause", "resume"):
        names, defaults = theirs[name]
        first = len(names) - len(defaults)  # ours has newer arguments after these
        mine = dict(zip(ours[name][0][::-1], ours[name][1][::-1]))
        assert ours[name][0][:len(names)] == names
        assert [mine[n] for n in names[first:]] == [
            d.replace("_TAG_DEFAULT", "'default'") for d in defaults]
        assert all(n in mine for n in ours[name][0][len(names):])
