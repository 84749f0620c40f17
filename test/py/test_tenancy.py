# SPDX-License-Identifier: Apache-2.0
"""This process in the node's ledger: its name, what it declares, start-up marks, asking peers. On
the host device, each case in Pythons of their own."""

import json
import sys

import pytest

DEVICE = "host:capacity=64MiB,name=tenancy"
BEGIN = f"""
import json, os, select, subprocess, sys, tidegate
from tidegate import devices, library, tenancy
device = devices.device({DEVICE!r})
mine = tenancy.tenant(device)
MIB = 1 << 20
def rows():
    return [(tenant.title, tenant) for tenant in tidegate.status().tenants]
"""


@pytest.mark.parametrize("env, title, role", [
    ({}, "trainer", "trainer"),
    ({"RANK": "3", "LOCAL_RANK": "1"}, "trainer rank 3", "trainer"),
    ({"LOCAL_RANK": "1"}, "trainer rank 1", "trainer"),
    ({"RANK": "x"}, "trainer", "trainer"),
    ({"TIDEGATE_NAME": "sglang tp 0", "TIDEGATE_ROLE": "rollout"}, "sglang tp 0", "rollout"),
    ({"TIDEGATE_NAME": "n" * 99}, "n" * 47, ""),
    ({"TIDEGATE_NAME": "b\u00e4r\n"}, "b?r?", ""),
])
def test_name_role_and_rank(tell, env, title, role):
    environment = {"RANK": "", "LOCAL_RANK": "", **env}
    assert tell("print(json.dumps([[title, tenant.role] for title, tenant in rows()]))",
                **environment) == [[title, role]]


def test_what_is_declared_is_read(tell):
    assert tell("""
mine.declare("live", 20 * MIB)
mine.declare("cached", 10 * MIB, 8 * MIB)
mine.measure()
tags = {tag.name: [tag.occupied_bytes // MIB, tag.returnable_bytes // MIB]
        for tag in rows()[0][1].tags}
device, = tidegate.status().devices
print(json.dumps([tags, device.total_bytes // MIB, device.seconds_old is not None]))
""") == [{"live": [20, 0], "cached": [10, 8]}, 64, True]


def test_status_prints_as_a_table(tell):
    """Words and figures as those of `tidegate status`; ages are of the moment."""
    assert tell("""
mine.declare("live", 20 * MIB)
mine.declare("cached", 10 * MIB, 8 * MIB)
tag = tidegate.tag("kv_cache", device=device.uri)
block = tag.alloc(4 * MIB)
tidegate.sleep()
mine.measure()
print(json.dumps(str(tidegate.status()).replace(str(os.getpid()), "PID").splitlines()))
""", TIDEGATE="observe", RANK="0") == [
        'host device "tenancy" 64 MiB   used 0 B   free 64 MiB (driver, 0 s ago)',
        "  trainer rank 0  pid PID  observe  live 20 MiB  cached 10 MiB (returnable 8.0 MiB)"
        "  kv_cache asleep (4.0 MiB)",
        "  unattributed 0 B"]


def test_mode_and_seams_are_noted_and_follow_the_mode(tell):
    assert tell("""
seen = []
def look():
    seen.append([rows()[0][1].mode, rows()[0][1].seams])
look()
mine.note("verl 0.9.1: 4 of 4")
look()
tidegate.set_mode("on")
look()
tidegate.off()
look()
mine.note("x" * 99)
look()
print(json.dumps(seen))
""", TIDEGATE="observe") == [["observe", ""], ["observe", "verl 0.9.1: 4 of 4"],
                             ["on", "verl 0.9.1: 4 of 4"], ["off", "verl 0.9.1: 4 of 4"],
                             ["off", "x" * 47]]


def test_start_up_marks_nest_and_end_with_an_error_too(tell):
    assert tell(f"""
seen = []
def look():
    seen.append(rows()[0][1].is_starting)
try:
    with tidegate.starting({DEVICE!r}):
        with tidegate.starting({DEVICE!r}):
            look()
        mine.note("seams")
        look()
        raise ValueError
except ValueError:
    look()
print(json.dumps(seen))
""") == [True, True, False]


@pytest.mark.parametrize("name", ("starting", "giving"))
def test_ctrl_c_at_any_moment_leaves_no_mark(tell, name):
    """At each call in turn, from the first to the last of what is marked: an interrupt comes there,
    or behind the call of C that it came into."""
    stopped, left = tell(f"""
import inspect
peer = tenancy.Tenant(device)
def marked():
    try:
        library.call("tg_tenant_reserve", peer.handle, b"live", MIB, 1)
    except tidegate.Busy:
        return True
    library.call("tg_tenant_cancel", peer.handle, b"live", MIB)
    return False
def interrupted(after):
    events = iter(range(after))
    def count(frame, event, what):
        # As a generator is left or entered anew, what is raised here passes its handlers by.
        here = event != "return" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if here and next(events, None) is None:
            raise KeyboardInterrupt  # which takes the count off
    sys.setprofile(count)
    try:
        with tenancy.{name}({DEVICE!r}):
            pass
        sys.setprofile(None)
    except KeyboardInterrupt:
        pass
    return next(events, None) is None
stopped, left = 0, []
while interrupted(stopped):
    if marked():
        left.append(stopped)
    stopped += 1
print(json.dumps([stopped, left]))
""")
    assert left == [] and stopped > 30


def test_a_peer_neither_wakes_nor_sleeps_during_a_start_up(python):
    result = python(BEGIN + f"""
tag = tidegate.tag("kv_cache", device={DEVICE!r})
block = tag.alloc(2 * MIB)
tidegate.sleep()
STARTER = '''
import sys, tidegate
with tidegate.starting({DEVICE!r}):
    print("starting", flush=True)
    sys.stdin.read()
'''
starter = subprocess.Popen([sys.executable, "-c", STARTER], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, env=dict(os.environ, TIDEGATE_NAME="vllm"))
assert starter.stdout.readline() == b"starting\\n"
try:
    tidegate.wake("kv_cache", timeout=0.05)
except tidegate.Busy as problem:
    print(problem)
starter.communicate()
print(tidegate.wake("kv_cache").gained_bytes // MIB)
""")
    assert result.status == 0, result.err
    said, woken = result.out.splitlines()
    assert "vllm" in said and "start" in said
    assert woken == "2"


def test_a_peer_may_sleep_but_not_wake_while_another_gives(python):
    result = python(BEGIN + f"""
tag = tidegate.tag("kv_cache", device={DEVICE!r})
block = tag.alloc(2 * MIB)
GIVER = '''
import sys
from tidegate import tenancy
with tenancy.giving({DEVICE!r}):
    print("giving", flush=True)
    sys.stdin.read()
'''
# What is reserved, and not yet taken, is waited for.
library.call("tg_tenant_reserve", mine.handle, b"optimizer", 4 * MIB, 0)
giver = subprocess.Popen([sys.executable, "-c", GIVER], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, env=dict(os.environ, TIDEGATE_NAME="vllm"))
try:
    while True:
        library.call("tg_tenant_reserve", mine.handle, b"live", MIB, 1)
        library.call("tg_tenant_cancel", mine.handle, b"live", MIB)
except tidegate.Busy:
    print(select.select([giver.stdout], [], [], 0)[0])
library.call("tg_tenant_cancel", mine.handle, b"optimizer", 4 * MIB)
assert giver.stdout.readline() == b"giving\\n"
print(tidegate.sleep("kv_cache").gained_bytes // MIB)
try:
    tidegate.wake("kv_cache", timeout=0.05)
except tidegate.Busy as problem:
    print(problem)
giver.communicate()
print(tidegate.wake("kv_cache").gained_bytes // MIB)
""")
    assert result.status == 0, result.err
    waited, slept, said, woken = result.out.splitlines()
    assert waited == "[]" and slept == woken == "2"
    assert "vllm gives memory back, and nobody wakes" in said


def test_peers_are_asked_and_see_it_at_their_next_look(python):
    result = python(BEGIN + f"""
mine.declare("cached", 16 * MIB, 16 * MIB)
PEER = '''
from tidegate import devices, tenancy
peer = tenancy.tenant(devices.device({DEVICE!r}))
print(peer.ask(7 << 20), peer.target())
'''
print(subprocess.run([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True,
                     env=dict(os.environ, TIDEGATE_NAME="sglang"), check=True).stdout.strip())
print(rows()[0][1].asked_bytes // MIB, mine.asked() // MIB, mine.asked())
""")
    assert result.status == 0, result.err
    assert result.out.splitlines() == ["1 (0, 0)", "7 7 0"]


def test_target_is_what_others_have_asleep(tell):
    assert tell(f"""
tag = tidegate.tag("kv_cache", device={DEVICE!r})
block = tag.alloc(4 * MIB)
tidegate.sleep()
PEER = '''
from tidegate import devices, tenancy
peer = tenancy.tenant(devices.device({DEVICE!r}))
print(peer.target(), peer.target("kv_cache"), peer.target("weights"))
'''
print(json.dumps(subprocess.run([sys.executable, "-c", PEER], stdout=subprocess.PIPE, text=True,
                                check=True).stdout.strip()))
""") == f"({4 << 20}, 0) ({4 << 20}, 0) (0, 0)"


def test_starting_without_a_card_says_what_to_name(library, monkeypatch):
    import tidegate
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    with pytest.raises(tidegate.NoDevice, match="starting"):
        with tidegate.starting():
            pytest.fail("it began")
