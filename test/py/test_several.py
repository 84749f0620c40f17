# SPDX-License-Identifier: Apache-2.0
"""Tags on several devices of one process sleep and wake as one, whatever one of the devices
refuses, on real bytes: on host devices, and over the driver that stands in. Each case runs in a
Python of its own."""

import pytest

STANDIN = "capacity=64MiB,context=0,devices=2"

BEGIN = """
import ctypes, json, os, subprocess, sys, tidegate
from tidegate import moving, tags
MIB = 1 << 20
HOST = ["host:capacity=64MiB,name=several-a", "host:capacity=64MiB,name=several-b"]
CUDA = ["cuda:0", "cuda:1"]
def made(name, device, byte, **params):
    tag = tidegate.tag(name, device=device, **params)
    block = tag.alloc(4 * MIB)
    ctypes.memset(block.address, byte, 4 * MIB)
    return tag, block
def holds(block, byte):
    return ctypes.string_at(block.address, block.size_bytes) == bytes([byte]) * block.size_bytes
def refused(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as problem:
        return str(problem)
    return "nothing"
def tell(*what):
    print(json.dumps(what))
def taker(device):
    code = f'''
import sys, tidegate
block = tidegate.tag("taken", device={device!r}).alloc(62 << 20)
print("taken", flush=True)
sys.stdin.readline()
'''
    env = {**os.environ, "TIDEGATE_NAME": "peer"}
    peer = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env=env)
    assert peer.stdout.readline() == "taken\\n"
    return peer
def leave(peer):
    peer.communicate("\\n")
"""

KINDS = pytest.mark.parametrize("kind", ["HOST", "CUDA"])


@KINDS
def test_all_sleep_and_wake_as_one(tell, kind):
    seen = tell(f"""
first, one = made("weights", {kind}[0], 1, backup="host")
second, other = made("weights", {kind}[1], 2, backup="host")
cache, third = made("cache", {kind}[1], 3)
def states():
    return [tag.info().state for tag in (first, second, cache)]
slept = tidegate.sleep()
seen = [states(), slept.gained_bytes // MIB, slept.copied_bytes // MIB,
        [[item.item, item.size_bytes // MIB] for item in slept.tags]]
woken = tidegate.wake(timeout=None)
seen += [states(), woken.gained_bytes // MIB, holds(one, 1), holds(other, 2), holds(third, 0)]
tidegate.prepare()
seen.append([tag.info().host_bytes // MIB for tag in (first, second)])
seen.append([tidegate.sleep("cache").tags[0].item, states(), tidegate.repack().reason])
tidegate.sleep("weights", drop="weights")
tidegate.wake()
tell({kind}, *seen, states(), holds(one, 0), holds(other, 0),
     tags.place(other.address).tag is second,
     [tag.memory.device.uri for tag in tags.opened("weights")], tags.chosen(None))
""")
    uris, seen = seen[0], seen[1:]
    assert seen[0] == ["asleep"] * 3 and seen[1:3] == [12, 8]
    assert sorted(seen[3]) == sorted([[f"weights on {uris[0]}", 4], [f"weights on {uris[1]}", 4],
                                      [f"cache on {uris[1]}", 4]])
    assert seen[4:9] == [["awake"] * 3, 12, True, True, True]
    assert seen[9] == [4, 4]
    assert seen[10] == ["cache", ["awake", "awake", "asleep"], "done"]
    assert seen[11:] == [["awake"] * 3, True, True, True, uris, ["cache", "weights"]]


@KINDS
@pytest.mark.parametrize("which", [0, 1])
def test_whatever_call_of_a_device_fails_all_are_as_before(tell, kind, which):
    """The n-th call of one of both, for each n."""
    nth, wrong, counts = tell(f"""
wrong, counts, nth, clean = [], [0, 0], 0, 0
while clean < 12:  # a call whose failure costs nothing is none of those
    nth += 1
    name, uris = f"t{{nth}}", list({kind})
    uris[{which}] = f"fault:nth={{nth}}/" + uris[{which}]
    try:
        made_both = [made(name, uri, number + 1, backup="host") for number, uri in enumerate(uris)]
    except tidegate.TidegateError:
        continue  # not these calls
    both, blocks = zip(*made_both)
    clean += 1
    for operation, before in ((tidegate.sleep, "awake"), (tidegate.wake, "asleep")):
        try:
            operation(name)
        except tidegate.TidegateError as problem:
            clean = 0
            counts[operation is tidegate.wake] += 1
            states = [tag.info().state for tag in both]
            if states != [before] * 2 or uris[{which}] not in str(problem):
                wrong.append([nth, operation.__name__, str(problem)])
            operation(name)
    if not holds(blocks[0], 1) or not holds(blocks[1], 2):
        wrong.append([nth, "content"])
    for block in blocks:
        block.free()
tell(nth, wrong, counts)
""")
    assert wrong == []
    assert min(counts) > 1, (nth, counts)


@KINDS
def test_a_wake_that_lacks_memory_on_one_takes_none_on_the_other(tell, kind):
    seen = tell(f"""
both, blocks = zip(*[made("weights", uri, number + 1, backup="host")
                     for number, uri in enumerate({kind})])
tidegate.sleep()
peer = taker({kind}[1])
said = refused(tidegate.TidegateWouldNotFit, tidegate.wake, timeout=0.1)
during = [tag.info().state for tag in both], both[0].memory.device.memory()[0] // MIB
leave(peer)
tidegate.wake()
tell({kind}, said, *during, [tag.info().state for tag in both], holds(blocks[0], 1),
     holds(blocks[1], 2))
""")
    assert seen[1].startswith(f"on {seen[0][1]}: wake weights needs 4.0 MiB")
    assert "peer taken 62.0" in seen[1] and "All tags are asleep as before" in seen[1]
    assert seen[2:] == [["asleep"] * 2, 64, ["awake"] * 2, True, True]


def test_a_peer_that_is_faster_than_the_way_back_is_named_and_nothing_is_lost(tell):
    """The second device refuses to sleep, and a peer has the first one's memory already."""
    seen = tell("""
HOST[1] = "fault:nth=1,op=copy/" + HOST[1]
both, blocks = zip(*[made("weights", uri, number + 1, backup="host")
                     for number, uri in enumerate(HOST)])
peers, wake_again = [], moving._wake_again
def late(*arguments):
    peers.append(taker(HOST[0]))
    return wake_again(*arguments)
moving._wake_again = late
said = refused(tidegate.DeviceFailed, tidegate.sleep, timeout=0.5)
states = [tag.info().state for tag in both]
leave(peers[0])
tidegate.wake()
tell(HOST, said, states, holds(blocks[0], 1), holds(blocks[1], 2))
""")
    uris, said = seen[:2]
    assert said.startswith(f"on {uris[1]}: ")
    assert f"weights on {uris[0]} cannot be woken again and sleeps on until tidegate.wake()" in said
    assert "peer taken 62.0" in said
    assert seen[2:] == [["asleep", "awake"], True, True]


def test_what_is_dropped_goes_last_and_only_when_no_device_has_work(tell):
    """A device that is busy costs nothing, nor one that cannot save; one that fails after that
    costs what was dropped, which the error says."""
    seen = tell("""
def tried(plan, kept_count):
    name, uris = "cache-" + plan, [HOST[0], f"fault:nth=1,op={plan}/" + HOST[1]]
    kept = [made("kept-" + plan, uri, 5, backup="host")[1] for uri in uris[:kept_count]]
    both, blocks = zip(*[made(name, uri, number + 1, fill=False)
                         for number, uri in enumerate(uris)])
    said = refused(tidegate.TidegateError, tidegate.sleep, [name, "kept-" + plan], timeout=0.2)
    return [said, [tag.info().state for tag in both], all(holds(one, 5) for one in kept),
            holds(blocks[0], 1),            f"What {name} on {uris[0]} held is dropped" in said]
tell(tried("wait", 1), tried("copy", 2), tried("unmap", 1))
""")
    assert seen[0][1:] == seen[1][1:] == [["awake", "awake"], True, True, False]
    assert seen[2][1:3] == [["awake", "awake"], True] and seen[2][4]


def test_one_that_comes_later_may_fail_to_prepare_and_says_what_stays(tell):
    seen = tell("""
HOST[1] = "fault:nth=1,op=pin,status=-4106/" + HOST[1]
both, blocks = zip(*[made("weights", uri, number + 1, backup="host")
                     for number, uri in enumerate(HOST)])
said = refused(tidegate.TidegateError, tidegate.prepare)
tell(HOST, said, both[0].info().host_bytes // MIB)
""")
    assert seen[1].startswith(f"on {seen[0][1]}: ")
    assert f"The prepare of {seen[0][0]} stays as it is" in seen[1] and seen[2] == 4


@KINDS
def test_ctrl_c_at_any_line_leaves_all_asleep_or_all_awake(tell, kind):
    seen = tell(f"""
sys.path.insert(0, {__file__.rsplit('/', 1)[0]!r})
import ctrl_c
both, blocks = zip(*[made("weights", uri, number + 1, backup="host")
                     for number, uri in enumerate({kind})])
wrong, counts = [], []
for operation, back in ((tidegate.wake, tidegate.sleep), (tidegate.sleep, tidegate.wake)):
    after, came = 1, True
    while came:
        back()
        came = ctrl_c.interrupted(operation, after, moving)
        states = [tag.info().state for tag in both]
        if states[0] != states[1]:
            wrong.append([operation.__name__, after, states])
        after += 1
    counts.append(after)
tidegate.wake()
tell(wrong, min(counts) > 20, holds(blocks[0], 1), holds(blocks[1], 2))
""")
    assert seen == [[], True, True, True]


def test_which_device_is_said_where_it_matters(tell):
    seen = tell("""
first = made("a", HOST[0], 1)
usual = tidegate.tag("b").memory.device.uri == HOST[0]  # the only one there is
third = made("c", HOST[1], 1)
tell(usual, refused(tidegate.BadValue, tidegate.tag, "d"),
     refused(tidegate.UnknownTag, tidegate.sleep, "a,x"),
     refused(tidegate.BadValue, tidegate.sleep, "a", drop="c"),
     tidegate.sleep("a").gained_bytes // MIB, HOST)
""", standin=None)
    assert seen[0] is True
    assert seen[1] == ("this process has tags on " + " and ".join(seen[5]) +
                       ": name one of them by device=")
    assert seen[2].endswith("there are: a, b, c")
    assert seen[3] == "drop names 'c', which is not among the tags to sleep"
    assert seen[4] == 4
