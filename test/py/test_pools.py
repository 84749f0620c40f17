# SPDX-License-Identifier: Apache-2.0
"""Regions: torch's allocations in tags, over the driver that stands in. torch is pool_world's."""

import pathlib

import pytest

STANDIN = "capacity=128MiB,context=0"
BEGIN = f"""
import json, os, sys, threading
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import pool_world as world, tidegate
from tidegate import errors, pools
from ctypes import memset, string_at
torch = world.begin()
MIB = 1 << 20
def driver_used():
    free, total = world.devices.device("cuda:0").memory()
    return (total - free) // MIB
def told(kind, action):
    try:
        action()
    except kind as problem:
        return type(problem).__name__
    return "nothing"
"""


def test_what_torch_allocates_inside_belongs_to_the_tag(tell):
    assert tell("""
before = world.Tensor(4 * MIB)
with pools.region("weights", backup="host") as tag:
    inside = world.Tensor(4 * MIB)
after = world.Tensor(4 * MIB)
found = pools.tag_at(inside.data_ptr() + 3 * MIB)
print(json.dumps([before.data_ptr(), after.data_ptr(), found is tag,
                  pools.tag_at(inside.data_ptr() + 4 * MIB) is None,
                  tag.info().size_bytes // MIB, pools.is_inside()]))
""") == [0, 0, True, True, 4, False]


def test_it_sleeps_and_wakes_at_its_address_with_what_it_held(tell):
    assert tell("""
with pools.region("weights", backup="host"):
    kept = world.Tensor(6 * MIB)
with pools.region("kv_cache"):
    cache = world.Tensor(10 * MIB)
awake = driver_used()
tag = tidegate.tags.tag("weights", backup="host", packed=True)
tidegate.sleep()
asleep = driver_used()
copy = pools.host_view(kept.data_ptr() + MIB, 16)
zeros, length = bytes(copy) == bytes(16), len(copy)
refused = told(errors.TidegateError, lambda: pools.region("weights", backup="host").__enter__())
tidegate.wake()
print(json.dumps([awake, asleep, driver_used(), zeros, length, refused,
                  told(errors.TidegateError, lambda: pools.host_view(kept.data_ptr(), 16)),
                  told(errors.BadValue, lambda: pools.host_view(kept.data_ptr(), 7 * MIB)),
                  told(errors.BadValue, lambda: pools.host_view(12345, 1))]))
""") == [16, 0, 16, True, 16, "TidegateError", "TidegateError", "BadValue", "BadValue"]


def test_regions_nest_and_the_innermost_has_it(tell):
    assert tell("""
with pools.region("a") as a:
    first = world.Tensor(2 * MIB)
    with pools.region("b") as b:
        second = world.Tensor(2 * MIB)
        with pools.region("a"):
            third = world.Tensor(2 * MIB)
        with pools.outside():
            fourth = world.Tensor(2 * MIB)
    fifth = world.Tensor(2 * MIB)
print(json.dumps([(pools.tag_at(t.data_ptr()) or a).name if t.data_ptr() else "none"
                  for t in (first, second, third, fourth, fifth)]))
""") == ["a", "b", "a", "none", "a"]


def test_an_exception_inside_restores_the_outer_region(tell):
    assert tell("""
with pools.region("a"):
    try:
        with pools.region("b"):
            raise ValueError
    except ValueError:
        pass
    inner = world.Tensor(2 * MIB)
outer = world.Tensor(2 * MIB)
print(json.dumps([pools.tag_at(inner.data_ptr()).name, outer.data_ptr(), pools.is_inside()]))
""") == ["a", 0, False]


def test_ctrl_c_at_any_line_leaves_the_thread_in_no_region(tell):
    """Of regions inside each other, one line after the other: what is allocated after it is
    ordinary memory, and a region has what is allocated in it."""
    seen = tell("""
from ctrl_c import interrupted
def nested():
    with pools.region("a"):
        with pools.outside(), pools.region("b"):
            world.Tensor(2 * MIB)
        with pools.region("b"):
            world.Tensor(2 * MIB)
bad, after = [], 1
while interrupted(nested, after, pools):
    plain = world.Tensor(2 * MIB)
    with pools.region("c"):
        tagged = world.Tensor(2 * MIB)
    if (pools.is_inside() or world._threads.pools or plain.data_ptr()
            or pools.tag_at(tagged.data_ptr()).name != "c"):
        bad.append(after)
        break
    after += 1
print(json.dumps([bad, after]))
""", standin="capacity=1GiB,context=0")
    assert seen[0] == [] and seen[1] > 100


def test_threads_are_in_no_region_of_another_and_share_a_tag(tell):
    assert tell("""
got = []
def work():
    got.append(world.Tensor(2 * MIB).data_ptr())
    with pools.region("a") as tag:
        got.append(pools.tag_at(world.Tensor(2 * MIB).data_ptr()).name)
with pools.region("a"):
    held = world.Tensor(2 * MIB)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
print(json.dumps(got))
""") == [0, "a"]


def test_expandable_segments_are_off_inside_and_as_before_after(tell):
    assert tell("""
world.expandable[0] = True
with pools.region("a"):
    held = world.Tensor(2 * MIB)
    with pools.region("b"):
        inner = world.Tensor(2 * MIB)
print(json.dumps([world.expandable[0], world.settings]))
""") == [True, ["expandable_segments:False", "expandable_segments:True"]]


def test_without_memory_it_is_torchs_own_error(tell):
    assert tell("""
with pools.region("a") as tag:
    kept = world.Tensor(100 * MIB)
    said = told(world.OutOfMemoryError, lambda: world.Tensor(60 * MIB))
print(json.dumps([said, tag.info().size_bytes // MIB, pools.is_inside()]))
""") == ["OutOfMemoryError", 100, False]


def test_trim_gives_back_what_is_free_and_nothing_else(tell):
    """Also what comes free later in a pool that was let go of."""
    assert tell("""
with pools.region("a") as tag:
    kept, free = world.Tensor(4 * MIB), world.Tensor(8 * MIB)
with pools.region("b"):
    other = world.Tensor(2 * MIB)
del free
first, used = pools.trim("a"), driver_used()
again = pools.trim("a")
with pools.region("a"):
    later = world.Tensor(6 * MIB)
del kept
last = pools.trim(["a", "b"])
print(json.dumps([first // MIB, used, again, last // MIB, driver_used(),
                  pools.tag_at(later.data_ptr()).name,
                  told(errors.UnknownTag, lambda: pools.trim("nobody"))]))
""") == [8, 6, 0, 4, 8, "a", "UnknownTag"]


def test_a_pool_that_a_graph_replays_in_is_not_let_go_of(tell):
    assert tell("""
with pools.region("a"):
    freed = world.Tensor(4 * MIB)
pools.of("a")[0].graphs = 1
del freed
print(json.dumps([pools.trim(), driver_used()]))
""") == [0, 4]


def test_free_in_a_sleeping_tag_costs_no_wake(tell):
    assert tell("""
with pools.region("a", backup="host") as tag:
    kept, free = world.Tensor(4 * MIB), world.Tensor(8 * MIB)
tidegate.sleep("a")
del free
pools.trim()
tidegate.wake("a")
print(json.dumps([driver_used(), tag.info().size_bytes // MIB]))
""") == [4, 4]


def test_a_forked_child_has_no_pools_and_harms_none(tell):
    assert tell("""
with pools.region("a") as tag:
    kept = world.Tensor(4 * MIB)
reader, writer = os.pipe()
if os.fork() == 0:
    said = [pools.trim(), pools.tag_at(kept.data_ptr()) is None, pools.of("a")[0] is None]
    os.write(writer, json.dumps(said).encode())
    os._exit(0)
os.wait()
print(json.dumps([json.loads(os.read(reader, 100)), tag.info().size_bytes // MIB, driver_used()]))
""") == [[0, True, True], 4, 4]


def test_a_child_forked_inside_a_region_leaves_it_by_its_own_exception(tell):
    """And touches no pool of its parent's, also not by letting it go."""
    assert tell("""
import gc
reader, writer = os.pipe()
try:
    with pools.region("a"), pools.outside(dispose=False), pools.region("b"):
        if os.fork() == 0:
            died = []
            world.MemPool.__del__ = lambda self: died.append(self.id)
            raise KeyError("its own")
except KeyError as problem:
    said = [type(problem).__name__, pools.is_inside()]
    del problem
    gc.collect()
    os.write(writer, json.dumps(said + [died]).encode())
    os._exit(0)
os.wait()
print(json.dumps(json.loads(os.read(reader, 100))))
""") == ["KeyError", False, []]


def test_torchs_counters_and_the_tags_count_a_byte_once(tell):
    """torch goes on counting what lies in tags, also while it sleeps; its segments there are no
    pool that somebody could end."""
    assert tell("""
from tidegate import accounts, card, torch_sources
with pools.region("weights", backup="host"):
    kept = world.Tensor(20 * MIB)
torch.card.live = 30 * MIB  # 10 of it in ordinary memory
torch.cuda.memory_snapshot = lambda: [
    {"device": 0, "address": address, "total_size": 20 * MIB, "segment_type": "large",
     "segment_pool_id": (0, 1), "blocks": [{"size": 20 * MIB, "state": "inactive"}]}
    for address in (kept.data_ptr(), 1 << 40)]
where = card.current()
seen = []
for action in (lambda: None, tidegate.sleep, tidegate.wake):
    action()
    now = torch_sources.figures(where)
    stays = {item: size // MIB for item, size in accounts.stays(where)}
    seen.append([now.reserved // MIB, now.live // MIB, stays.get("live"),
                 stays.get("tags of this process")])
print(json.dumps([seen, len(torch_sources.segments(where))]))
""") == [[[10, 10, 10, 20], [10, 10, 10, None], [10, 10, 10, 20]], 1]


def test_other_settings_of_a_tag_are_refused(tell):
    assert tell("""
with pools.region("a", backup="host"):
    pass
print(json.dumps([told(errors.TidegateError, lambda: pools.region("a").__enter__()),
                  told(errors.BadValue, lambda: pools.region("no name").__enter__()),
                  told(errors.BadValue, lambda: pools.region("b", backup="disk").__enter__()),
                  pools.is_inside()]))
""") == ["TidegateError", "BadValue", "BadValue", False]


def test_weights_after_a_cache_that_torch_keeps_are_not_the_caches(tell):
    """A freed tensor's segment stays in its pool: whatever comes next elsewhere has another."""
    assert tell("""
with pools.region("kv_cache"):
    old = world.Tensor(8 * MIB)
    address = old.data_ptr()
    del old
    cache = world.Tensor(8 * MIB)
with pools.region("weights", backup="host"):
    weights = world.Tensor(8 * MIB)
memset(weights.data_ptr(), 7, 8 * MIB)
tidegate.sleep("kv_cache")
awake = string_at(weights.data_ptr() + 8 * MIB - 16, 16)
tidegate.sleep("weights")
tidegate.wake()
print(json.dumps([cache.data_ptr() == address, pools.tag_at(weights.data_ptr()).name,
                  awake == bytes([7] * 16),
                  string_at(weights.data_ptr(), 16) == bytes([7] * 16),
                  string_at(cache.data_ptr(), 16) == bytes(16)]))
""") == [True, "weights", True, True, True]


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF",
                                  "PYTORCH_HIP_ALLOC_CONF"])
def test_torch_is_asked_for_its_settings_and_not_the_environment(tell, name):
    """However it is spelt, a setting may have been changed since: the one that holds is put back,
    and one that does not hold is never set."""
    assert tell(f"""
os.environ[{name!r}] = "expandable_segments:True,max_split_size_mb:512"
with pools.region("a"):
    plain = world.Tensor(2 * MIB)
quiet = list(world.settings)
os.environ[{name!r}] = "expandable_segments:False"
world.set_settings("expandable_segments:True")
with pools.region("a"):
    other = world.Tensor(4 * MIB)
print(json.dumps([quiet, world.expandable[0], world.settings[1:]]))
""") == [[], True, ["expandable_segments:False", "expandable_segments:True"]]
