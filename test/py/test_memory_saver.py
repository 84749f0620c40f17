# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's stand-in over the driver that stands in. torch is pool_world's."""

import ast
import os
import pathlib
import subprocess
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
                  told(lambda: symbols.tms_torch_malloc), told(lambda: symbols.
                  tms_set_interesting_region(True)),
                  told(lambda: module.utils.get_binary_path_from_package("x"))]))
""") == [True, [True, False, True, False], 0, "awake", False, "NoPreload", "BadValue", "NoPreload"]


def test_what_is_not_there_says_so(tell):
    assert tell("""
def enter(**settings):
    with saver.region("a", **settings):
        pass
symbols = module._Symbols()
print(json.dumps([told(lambda: enter(enable_disk_backup=True)),
                  told(lambda: enter(cpu_backup_backend="mmap")),
                  told(lambda: enter(enable_cpu_backup=True, cpu_backup_backend="tape")),
                  told(lambda: saver.cuda_graph(None)), told(lambda: saver.hook_mode),
                  told(lambda: symbols.tms_set_enable_disk_backup(True)),
                  told(lambda: symbols.tms_set_disk_backup_dir(b"/tmp")),
                  told(lambda: symbols.tms_set_retain_cpu_backup(True)),
                  told(lambda: symbols.tms_set_cpu_backup_backend(b"tape")),
                  symbols.tms_get_enable_disk_backup(), symbols.tms_get_retain_cpu_backup(),
                  told(lambda: setattr(saver, "hook_mode", "torch")),
                  told(lambda: saver.memory_margin_bytes),
                  told(lambda: setattr(saver, "retain_cpu_backup", True)), saver.enabled]))
""") == ["NotImplementedError", "BadValue", "BadValue", "NoPreload", "AttributeError",
         "NotImplementedError", "NotImplementedError", "NotImplementedError", "BadValue", False,
         False, "nothing", "NotImplementedError", "NotImplementedError", True]


def test_the_symbols_speak_of_the_region(tell):
    """And inside it its tag is not theirs to change."""
    assert tell("""
symbols = module._Symbols()
def settings():
    return [symbols.tms_get_current_tag().decode(), symbols.tms_get_enable_cpu_backup(),
            symbols.tms_get_cpu_backup_backend().decode()]
seen = [settings()]
symbols.tms_set_current_tag(b"outer"), symbols.tms_set_enable_cpu_backup(True)
symbols.tms_set_cpu_backup_backend(b"mmap")
seen.append(settings())
with saver.region("inner"):
    seen.append(settings())
    refused = [told(lambda: symbols.tms_set_current_tag(b"x")),
               told(lambda: symbols.tms_set_enable_cpu_backup(True))]
seen.append(settings())
print(json.dumps([seen, refused, told(lambda: symbols.tms_set_current_tag(5))]))
""") == [[["default", False, "pinned"], ["outer", True, "mmap"], ["inner", False, "pinned"],
          ["outer", True, "mmap"]], ["BadValue", "BadValue"], "BadValue"]


def test_the_symbols_pause_and_resume(tell):
    assert tell("""
symbols = module._Symbols()
with saver.region("weights", enable_cpu_backup=True):
    kept = world.Tensor(2 * MIB)
memset(kept.data_ptr(), 9, 2 * MIB)
awake = symbols.tms_get_cpu_backup_pointer(kept.data_ptr(), 4)
done = [symbols.tms_pause(b"nobody"), state(kept), symbols.tms_pause(b"weights"), state(kept)]
copy = string_at(symbols.tms_get_cpu_backup_pointer(kept.data_ptr() + MIB, 3), 3)
done += [symbols.tms_resume(None), state(kept)]
print(json.dumps([awake, done, list(copy),
                  told(lambda: symbols.tms_get_cpu_backup_pointer(4096, 1))]))
""") == [None, [0, "awake", 0, "asleep", 0, "awake"], [9, 9, 9], "BadValue"]


# ---- under the preload: what the thread takes from the runtime itself ----------------------------

BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
# A module of the program, which takes 8 MiB from the runtime, and gives it back.
MODULE = """
int cudaMalloc(void **addr, unsigned long size_bytes);
int cudaFree(void *addr);
void *take(void) { void *addr = 0; return cudaMalloc(&addr, 8 << 20) == 0 ? addr : 0; }
int give(void *addr) { return cudaFree(addr); }
"""


@pytest.fixture
def preloaded(tell, preloadable, tmp_path):
    """tell under the preload, with take() and give() of a program's own module, and graphs whose
    capture takes memory as torch's does."""
    runtime = BUILD / "test" / "toycudart" / "libcudart.so.12"
    source = tmp_path / "own.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", source, "-x", "c", "-",
                    "-x", "none", runtime, f"-Wl,-rpath,{runtime.parent}"],
                   input=MODULE, text=True, check=True)
    begin = f"""
import contextlib, ctypes, os
own = ctypes.CDLL({str(source)!r})
own.take.restype = ctypes.c_void_p
own.give.argtypes = [ctypes.c_void_p]
symbols = module._Symbols()
graphs = []
@contextlib.contextmanager
def graph(**how):
    graphs.append(how)
    yield
torch.cuda.graph = graph
def of(address):
    tag = pools.tag_at(address)
    return None if tag is None else tag.name
"""
    return lambda code, **env: tell(begin + code, LD_PRELOAD=str(PRELOAD),
                                    **{"TIDEGATE": "on", **env})


def test_a_graphs_memory_can_be_paused(preloaded):
    """Its arguments are torch's; a region that it is in has no part in it."""
    assert preloaded("""
with saver.region("weights"):
    with saver.cuda_graph("graph", pool="pool", tag="cuda_graph", enable_cpu_backup=True):
        address, inside = own.take(), len(world._threads.pools)
    after = len(world._threads.pools)
memset(address, 7, 8 * MIB)
before = driver_used()
saver.pause("cuda_graph")
paused = driver_used()
saver.resume()
same = string_at(address, 8 * MIB) == bytes([7]) * (8 * MIB)
print(json.dumps([of(address), inside, after, before - paused, same, graphs, own.give(address),
                  of(own.take())]))
""") == ["cuda_graph.kept", 0, 1, 8, True, [
        {"cuda_graph": "graph", "pool": "pool", "stream": None, "capture_error_mode": "global"}],
        0, None]


def test_a_region_has_what_the_thread_takes_from_the_runtime(preloaded):
    assert preloaded("""
with saver.region("weights"):
    inside, tensor = own.take(), world.Tensor(2 * MIB)
outside = own.take()
print(json.dumps([of(inside), of(tensor.data_ptr()), of(outside)]))
""") == ["weights", "weights", None]


def test_the_symbols_make_a_scope(preloaded):
    """As programs of the preload mode do that have no region."""
    assert preloaded("""
taken = [own.take()]
symbols.tms_set_current_tag(b"direct")
symbols.tms_set_interesting_region(True)
on = symbols.tms_get_interesting_region()
taken.append(own.take())
symbols.tms_set_enable_cpu_backup(True)
taken.append(own.take())
symbols.tms_set_interesting_region(False)
taken.append(own.take())
memset(taken[2], 5, 8 * MIB)
saver.pause("direct")
asleep = [pools.tag_at(address).info().state for address in taken[1:3]]
saver.resume("direct")
print(json.dumps([on, symbols.tms_get_interesting_region(), [of(one) for one in taken], asleep,
                  string_at(taken[2], 8 * MIB) == bytes([5]) * 8 * MIB]))
""") == [True, False, [None, "direct", "direct.kept", None], ["asleep", "asleep"], True]


def test_a_symbol_that_raises_leaves_the_scope_and_its_tag(preloaded):
    """Else what the thread takes next could not be paused, and nothing would say so."""
    assert preloaded("""
symbols.tms_set_current_tag(b"first")
symbols.tms_set_interesting_region(True)
own.take()
symbols.tms_set_current_tag(b"second")
saver.pause("first")
said = told(lambda: symbols.tms_set_current_tag(b"first"))
taken = own.take()
print(json.dumps([said, symbols.tms_get_current_tag().decode(),
                  symbols.tms_get_interesting_region(), of(taken)]))
""") == ["TidegateError", "second", True, "second"]


def test_without_the_mode_a_graph_is_refused(preloaded):
    assert preloaded("""
print(json.dumps([told(lambda: saver.cuda_graph("graph", tag="cuda_graph")), graphs]))
""", TIDEGATE="observe") == ["NoPreload", []]


def test_a_whole_program_is_not_taken_for_paused(tell):
    assert tell("""
seen = [told(saver.pause), told(saver.resume)]
with saver.region("weights"):
    kept = world.Tensor(2 * MIB)
print(json.dumps([seen, told(lambda: saver.pause("weights")), state(kept)]))
""", TMS_INIT_ENABLE="1") == [["NoPreload", "nothing"], "nothing", "asleep"]
    assert tell("print(json.dumps(told(saver.pause)))", TMS_INIT_ENABLE="0") == "nothing"


def test_a_whole_program_is_paused_under_a_default_tag(preloaded):
    """Where the original's variable asks for it."""
    code = """
address = own.take()
memset(address, 3, 8 * MIB)
own.read = of(address)
before = driver_used()
saver.pause("other"), saver.pause("default")
paused = before - driver_used()
saver.pause(), saver.resume()
print(json.dumps([own.read, paused, string_at(address, 8 * MIB) == bytes([3]) * 8 * MIB]))
"""
    assert preloaded(code, TIDEGATE_DEFAULT_TAG="whole", TMS_INIT_ENABLE="1") == ["whole", 8, True]
    assert preloaded(code, TIDEGATE_DEFAULT_TAG="whole") == ["whole", 0, True]


def test_subprocesses_have_the_preload(tell, preloadable):
    """In front of what is there, once, and not in other modes."""
    code = """
import os
seen = []
for before in (None, "", "/a.so:/b.so", "/x/libtidegate-preload.so"):
    os.environ.pop("LD_PRELOAD", None)
    if before is not None:
        os.environ["LD_PRELOAD"] = before
    with module.configure_subprocess():
        seen.append(os.environ.get("LD_PRELOAD"))
    seen.append(os.environ.get("LD_PRELOAD") == before)
print(json.dumps(seen))
"""
    assert tell(code, TIDEGATE="on") == [
        str(PRELOAD), True, str(PRELOAD), True, f"{PRELOAD}:/a.so:/b.so", True,
        "/x/libtidegate-preload.so", True]
    assert tell(code) == [None, True, "", True, "/a.so:/b.so", True, "/x/libtidegate-preload.so",
                          True]
    assert tell("""
path = module.get_binary_path_from_package("torch_memory_saver_hook_mode_preload")
print(json.dumps([str(path), b"TMS_INIT_ENABLE_DISK_BACKUP" in path.read_bytes()]))
""") == [str(PRELOAD), False]


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
