# SPDX-License-Identifier: Apache-2.0
"""Tags on the host device, on real bytes: sleep, wake, who else holds the memory, bad input, forks.
Each case runs in a Python of its own, since a process keeps its tags."""

import pytest

BEGIN = """
import json, os, sys, tidegate
DEVICE = "host:capacity=64MiB,name=tags"
MIB = 1 << 20
"""


def test_content_sleeps_and_wakes(tell):
    assert tell("""
weights = tidegate.tag("weights", backup="host", device=DEVICE)
block = weights.alloc(4 * MIB)
view = block.view()
view[:] = bytes(range(256)) * (len(view) // 256)
before = bytes(view)
slept = tidegate.sleep("weights")
state, info = tidegate.status(), weights.info()
woken = tidegate.wake("weights")
print(json.dumps({
    "same": bytes(view) == before, "slept": slept.gained_bytes // MIB, "reason": slept.reason,
    "woken": woken.gained_bytes // MIB, "copied": woken.copied_bytes // MIB, "state": info.state,
    "asleep": state.tenants[0].tags[0].asleep_bytes // MIB, "line": slept.line().split(" in ")[0],
    "free": state.devices[0].free_bytes // MIB}))
""") == {"same": True, "slept": 4, "reason": "done", "woken": 4, "copied": 4, "state": "asleep",
         "asleep": 4, "line": "sleep weights 4.0 MiB", "free": 64}


def test_a_cache_wakes_empty_and_repeating_is_nothing(tell):
    assert tell("""
cache = tidegate.tag("kv_cache", device=DEVICE)
block = cache.alloc(2 * MIB)
block.view()[:5] = b"dirty"
gained = [tidegate.sleep(["kv_cache"]).gained_bytes, tidegate.sleep().gained_bytes,
          tidegate.wake().gained_bytes, tidegate.wake("kv_cache").gained_bytes]
print(json.dumps([gained, bytes(block.view()[:5]).hex()]))
""") == [[2 << 20, 0, 2 << 20, 0], "00" * 5]


def test_readers_see_what_the_driver_says_after_a_wake(tell):
    """The figure of before it would stand for as long as nobody reserves anything."""
    assert tell("""
cache = tidegate.tag("kv_cache", device=DEVICE)
block = cache.alloc(8 * MIB)
tidegate.sleep()
tidegate.wake()
print(json.dumps([one.free_bytes // MIB for one in tidegate.status().devices]))
""") == [56]


def test_what_is_freed_inside_a_chunk_can_be_given_back(tell):
    assert tell("""
weights = tidegate.tag("weights", packed=True, backup="host", device=DEVICE)
blocks = [weights.alloc(2 * MIB) for number in range(8)]
tidegate.sleep()
tidegate.wake()
blocks[5].view()[:4] = b"kept"
for number in (0, 1, 3, 4, 6):
    blocks[number].free()
held = weights.info().device_bytes // MIB
receipts = [tidegate.repack("weights"), tidegate.repack()]
print(json.dumps([held, weights.info().device_bytes // MIB, bytes(blocks[5].view()[:4]).decode(),
                  [[receipt.operation, receipt.reason, receipt.gained_bytes // MIB,
                    receipt.copied_bytes // MIB] for receipt in receipts]]))
""") == [16, 6, "kept", [["repack", "done", 10, 6], ["repack", "done", 0, 0]]]


def test_a_sleep_can_drop_what_others_save(tell):
    assert tell("""
weights = tidegate.tag("weights", backup="host", keep_host=True, device=DEVICE)
cache = tidegate.tag("kv_cache", backup="host", device=DEVICE)
blocks = [tag.alloc(2 * MIB) for tag in (weights, cache)]
seen = []
for drop in ((), "kv_cache", ["kv_cache", "weights"], None, ()):
    for block in blocks:
        block.view()[:4] = b"kept"
    copied = tidegate.sleep(drop=drop).copied_bytes // MIB
    tidegate.wake()
    seen.append([copied, *(bytes(block.view()[:4]) == b"kept" for block in blocks)])
for drop, error in ((["weights"], tidegate.BadValue), ("optimizer", tidegate.UnknownTag)):
    try:
        tidegate.sleep("kv_cache", drop=drop)
    except error as problem:
        seen.append([cache.info().state, "weights" in str(problem)])
print(json.dumps(seen))
""") == [[4, True, True], [2, True, False], [0, False, False], [0, False, False], [4, True, True],
         ["awake", True], ["awake", True]]


def test_a_sleep_can_be_prepared(tell):
    assert tell("""
tag = tidegate.tag("weights", backup="host", device=DEVICE)
cache = tidegate.tag("kv_cache", device=DEVICE)
blocks = [tag.alloc(2 * MIB), cache.alloc(2 * MIB)]
first, again = tidegate.prepare(), tidegate.prepare("weights,kv_cache")
blocks[0].view()[:4] = b"kept"
made = [tag.info().host_bytes, tag.info().state]
tidegate.sleep()
asleep = [tag.info().host_bytes, tidegate.prepare().tags]
tidegate.wake()
print(json.dumps([[item.item for item in first.tags], first.line()[:23], first.operation,
                  again.tags, made, asleep, bytes(blocks[0].view()[:4]).decode(),
                  tag.info().host_bytes]))
""") == [["weights"], "prepare weights 2.0 MiB", "prepare", [], [2 << 20, "awake"], [2 << 20, []],
         "kept", 0]


def test_what_the_node_has_not_is_not_prepared(tell):
    assert tell("""
print(json.dumps(tidegate.prepare().reason))
""") == "done"
    assert tell("""
import os
os.environ["TIDEGATE_HOST_BYTES"] = "1MiB"
tag = tidegate.tag("weights", backup="host", device=DEVICE)
block = tag.alloc(2 * MIB)
try:
    tidegate.prepare()
except tidegate.HostMemory:
    print(json.dumps([tag.info().host_bytes, tag.info().state]))
""") == [0, "awake"]


def test_tag_is_the_same_again_and_other_settings_are_refused(tell):
    assert tell("""
first = tidegate.tag("a", device=DEVICE)
try:
    tidegate.tag("a", backup="host")
except tidegate.TidegateError as problem:
    print(json.dumps([tidegate.tag("a") is first, str(problem) != ""]))
""") == [True, True]


def test_blocks_are_freed_by_hand_and_by_going(tell):
    assert tell("""
tag = tidegate.tag("a", device=DEVICE)
counts = []
block = tag.alloc(MIB)
other = tag.alloc(MIB)
counts.append(tag.info().block_count)
block.free()
block.free()
counts.append(tag.info().block_count)
del other
counts.append(tag.info().block_count)
print(json.dumps(counts))
""") == [2, 1, 0]


HOLDER = """
import os, sys, tidegate
tag = tidegate.tag("live", device="host:capacity=64MiB,name=tags")
block = tag.alloc(40 << 20)
print("held", flush=True)
sys.stdin.read()
"""


def test_what_does_not_fit_names_who_holds_it_and_what_helps(python, tmp_path):
    result = python(BEGIN + f"""
import subprocess
tag = tidegate.tag("kv_cache", device=DEVICE)
block = tag.alloc(48 * MIB)
tidegate.sleep()
holder = subprocess.Popen([sys.executable, "-c", {HOLDER!r}], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, env=dict(os.environ, TIDEGATE_NAME="trainer",
                                                           RANK="0"))
assert holder.stdout.readline() == b"held\\n"
try:
    tidegate.wake("kv_cache", timeout=0)
except tidegate.TidegateWouldNotFit as problem:
    print(problem, problem.asked_bytes // MIB, problem.available_bytes // MIB, sep="\\n")
state = tag.info().state
holder.communicate()
tidegate.wake("kv_cache", timeout=20)
print(state, tag.info().state)
""", TIDEGATE_NAME="sglang")
    assert result.out.splitlines() == [
        "wake kv_cache needs 48.0 MiB, 24.0 can be had: trainer rank 0 live 40.0.",
        "  All tags are asleep as before. "
        "Try param_offload=True, or gpu_memory_utilization <= 0.37",
        "48", "24", "asleep awake"], result.err


def test_what_is_promised_to_others_cannot_be_had(tell):
    assert tell("""
from tidegate import devices, library, tenancy
PEER = '''
import sys
from tidegate import devices, library, tenancy
peer = tenancy.tenant(devices.device("host:capacity=64MiB,name=tags"))
library.call("tg_tenant_reserve", peer.handle, b"live", 40 << 20, 0)
print("reserved", flush=True)
sys.stdin.read()
'''
import subprocess
tag = tidegate.tag("a", device=DEVICE)
peer = subprocess.Popen([sys.executable, "-c", PEER], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE)
assert peer.stdout.readline() == b"reserved\\n"
try:
    tag.alloc(30 * MIB)
except tidegate.TidegateWouldNotFit as problem:
    print(json.dumps([problem.available_bytes // MIB, devices.device(DEVICE).memory()[0] // MIB]))
peer.communicate()
""") == [24, 64]


def test_a_block_that_does_not_fit(tell):
    assert tell("""
tag = tidegate.tag("a", device=DEVICE)
block = tag.alloc(40 * MIB)
try:
    tag.alloc(30 * MIB)
except tidegate.TidegateWouldNotFit as problem:
    print(json.dumps(str(problem)))
""").startswith("a block of a needs 30.0 MiB, 24.0 can be had: trainer a 40.0.")


@pytest.mark.parametrize("code, kind, said", [
    ("tidegate.sleep('x')", "UnknownTag", "has no tags"),
    ("tidegate.tag('a', device=DEVICE); tidegate.wake('a,x')", "UnknownTag", "there are: a"),
    ("tidegate.prepare('x')", "UnknownTag", "has no tags, so none to prepare"),
    ("tidegate.tag('a', device=DEVICE); tidegate.prepare(5)", "BadValue", "5 is no name of a tag"),
    ("tidegate.tag('a', device='host:capacity=3')", "BadValue", "capacity"),
    ("tidegate.tag('a', device='')", "BadValue", "device='': \"cuda:0\""),
    (r"tidegate.tag('a', device='host:capacity=1GiB\0x')", "BadValue", "memory of this machine"),
    (r"tidegate.tag('a', device='\udc80')", "BadValue", r"device='\udc80'"),
    (r"tidegate.tag('a', device='a\nb')", "BadValue", "device \"a?b\""),
    (r"tidegate.tag('a\0b', device=DEVICE)", "BadValue", r"name='a\x00b': letters"),
    (r"tidegate.tag('\udc80', device=DEVICE)", "BadValue", "letters, digits"),
    ("tidegate.tag('a', backup=[], device=DEVICE)", "BadValue", "backup=[]"),
    ("tidegate.tag('a', device=DEVICE); tidegate.sleep(5)", "BadValue", "5 is no name of a tag"),
    ("tidegate.tag('a', device=DEVICE); tidegate.wake([['a']])", "BadValue", "['a'] is no name"),
    ("tidegate.tag('a', device=DEVICE); tidegate.sleep('a', drop=b'a')", "BadValue", "is no name"),
    ("tidegate.tag('a b', device=DEVICE)", "BadValue", "a b"),
    ("tidegate.tag('a', backup='disk', device=DEVICE)", "BadValue", "\"none\" or \"host\""),
    ("tidegate.tag('a', device=DEVICE).alloc(-1)", "BadValue", "size_bytes=-1"),
    ("tidegate.tag('a', device=DEVICE).alloc(0)", "BadValue", ""),
    ("tidegate.wake(timeout=-1)", "BadValue", "timeout=-1"),
    ("tidegate.sleep(timeout='x')", "BadValue", "timeout='x'"),
])
def test_bad_input_says_what_would_be_right(tell, code, kind, said):
    name, text = tell(f"""
try:
    {code}
except tidegate.TidegateError as problem:
    print(json.dumps([type(problem).__name__, str(problem)]))
""")
    assert name == kind
    assert said in text


def test_no_limit_is_a_timeout(tell):
    assert tell("""
tag = tidegate.tag("a", device=DEVICE)
print(json.dumps([tidegate.sleep(timeout=None).reason, tidegate.wake(timeout=None).reason]))
""") == ["done", "done"]


def test_what_sees_a_block_keeps_it_and_a_block_without_memory_is_not_seen(tell):
    assert tell("""
tag = tidegate.tag("a", device=DEVICE)
view = tag.alloc(MIB).view()
view[:4] = b"kept"
seen = [bytes(view[:4]) == b"kept", tag.info().block_count]
del view
seen.append(tag.info().block_count)
block = tag.alloc(MIB)
if os.fork() == 0:
    try:
        block.view()[0]
    except tidegate.Forked:
        os._exit(0)
seen.append(os.waitstatus_to_exitcode(os.wait()[1]))
block.free()
for look in (block.view, lambda: block.__cuda_array_interface__):
    try:
        look()
    except tidegate.BadValue as problem:
        seen.append("has been freed" in str(problem))
print(json.dumps(seen))
""") == [True, 1, 0, 0, True, True]


def test_a_forked_child_has_none_of_it_and_does_no_harm(tell):
    assert tell("""
tag = tidegate.tag("a", backup="host", device=DEVICE)
block = tag.alloc(MIB)
pid = os.fork()
if pid == 0:
    import gc
    held = [tidegate.sleep().reason]
    try:
        tag.alloc(MIB)
    except tidegate.Forked:
        held.append("forked")
    del block, tag
    gc.collect()
    os._exit(0 if held == ["done", "forked"] else 1)
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps([code, tag.info().block_count, len(tidegate.status().tenants)]))
""") == [0, 1, 1]


def test_without_a_usable_ledger_the_process_goes_on_alone(python, tmp_path):
    (tmp_path / "node").mkdir(mode=0o700)
    (tmp_path / "node" / "ledger").symlink_to("/dev/null")
    result = python(BEGIN + """
tag = tidegate.tag("a", device=DEVICE)
block = tag.alloc(MIB)
print(tidegate.sleep().gained_bytes // MIB, tidegate.wake().gained_bytes // MIB)  # granules
""")
    assert result.status == 0, result.err
    assert result.out == "2 2\n"
    assert result.err.count("\n") == 1 and "goes on without the ledger" in result.err
