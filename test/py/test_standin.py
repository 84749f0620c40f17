# SPDX-License-Identifier: Apache-2.0
"""The package over a driver that stands in for a GPU's: cards, tags on them, receipts whose figures
are the driver's own. torch is a fake that takes its memory from that driver."""

import pathlib

import pytest

MIB = 1 << 20
STANDIN = "capacity=128MiB,context=4"
BEGIN = f"""
import json, os, subprocess, sys
from ctypes import CFUNCTYPE, POINTER, byref, c_int, c_uint32, c_uint64, c_void_p
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import fake_torch, tidegate
from tidegate import card, devices
MIB = 1 << 20

def take(size):
    "A chunk of the driver's, as another allocator of this process would have it."
    device, chunk = devices.device("cuda:0"), c_uint64()
    create = CFUNCTYPE(c_int, c_void_p, c_uint64, c_uint32, POINTER(c_uint64))(device.ops.create)
    assert create(device.handle, size, 0, byref(chunk)) == 0
    return chunk.value

def drop(chunk):
    device = devices.device("cuda:0")
    assert CFUNCTYPE(c_int, c_void_p, c_uint64)(device.ops.release)(device.handle, chunk) == 0

class Torch(fake_torch.FakeCard):
    "Its live and cached bytes are the driver's."
    def hold(self, live, cached):
        self.live, self.cached = live, cached
        self.kept, self.spare = take(live), take(cached)
    def empty(self):
        super().empty()
        drop(self.spare)

def begin_torch(live, cached):
    torch = fake_torch.make()
    torch.card = fake = Torch()
    fake.hold(live, cached)
    stats = lambda index: fake_torch._stats(fake)
    torch._C._cuda_memoryStats, torch.cuda.empty_cache = stats, fake.empty
    torch.cuda.ipc_collect = lambda: None
    torch.cuda.mem_get_info = lambda index: devices.device("cuda:0").memory()
    sys.modules["torch"] = torch
    return torch
"""


ENGINE = f"""
engine = subprocess.Popen([sys.executable, "-c", {BEGIN!r} + '''
tag = tidegate.tag("weights", device="cuda:0")
block = tag.alloc(16 * MIB)
print("taken", flush=True)
sys.stdin.read()
'''], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ, TIDEGATE_NAME="sglang"))
assert engine.stdout.readline() == b"taken\\n"
"""

STRANGER = """
take(16 * MIB)
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_receipt_names_every_byte_and_a_stranger_s_are_nobody_s(tell):
    """The stranger's 16 MiB and its context of 4 stand in one item, and nowhere else."""
    stays = tell(f"""
stranger = subprocess.Popen([sys.executable, "-c", {BEGIN + STRANGER!r}], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
assert stranger.stdout.readline() == b"taken\\n"
begin_torch(8 * MIB, 40 * MIB)
receipt = tidegate.reclaim(30 * MIB)
free, total = devices.device("cuda:0").memory()
stranger.communicate()
print(json.dumps([receipt.reason, receipt.driver_bytes // MIB, (total - free) // MIB,
                  {{item: size / MIB for item, size in receipt.stays}}]))
""")
    assert stays == ["target met", 40, 32,
                     {"live": 8.0, "context and libraries": 4.0, "unattributed": 20.0}]


def test_alone_on_the_card_nothing_is_unattributed(tell):
    assert tell("""
begin_torch(8 * MIB, 24 * MIB)
tag = tidegate.tag("kv_cache")
block = tag.alloc(16 * MIB)
print(json.dumps({item: size // MIB for item, size in tidegate.reclaim().stays}))
""") == {"live": 8, "tags of this process": 16, "context and libraries": 4}


def test_another_tenant_is_named(tell):
    stays = tell(f"""
{ENGINE}
begin_torch(8 * MIB, 24 * MIB)
stays = dict(tidegate.reclaim().stays)
engine.communicate()
print(json.dumps({{item: size // MIB for item, size in stays.items()}}))
""")
    assert stays == {"live": 8, "context and libraries": 4, "sglang": 20}


@pytest.mark.parametrize("before", ["", "tidegate.reclaim()"])
def test_a_dead_tenant_claims_nothing_that_the_driver_has_back(tell, before):
    """Also in a process that has not joined the ledger, where nobody sweeps the dead up."""
    stays = tell(f"""
{ENGINE}
begin_torch(8 * MIB, 24 * MIB)
{before}
engine.kill()
engine.wait()
stays = dict(tidegate.reclaim().stays)
print(json.dumps({{item: size // MIB for item, size in stays.items()}}))
""")
    assert stays == {"live": 8, "context and libraries": 4}


def test_where_the_driver_does_not_tell_the_share_the_item_is_absent(tell):
    assert tell("""
begin_torch(8 * MIB, 24 * MIB)
print(json.dumps({item: size // MIB for item, size in tidegate.reclaim().stays}))
""", standin="capacity=128MiB,context=4,pids=hidden") == {"live": 8, "unattributed": 4}


def test_after_a_reclaim_the_ledger_knows_the_trainer(tell):
    assert tell("""
begin_torch(8 * MIB, 24 * MIB)
tidegate.reclaim(0)
row, = tidegate.status().tenants
print(json.dumps([row.title, {tag.name: [tag.occupied_bytes // MIB, tag.returnable_bytes // MIB]
                              for tag in row.tags},
                  tidegate.status().devices[0].free_bytes // MIB]))
""", RANK="0") == ["trainer rank 0", {"live": [8, 0], "cached": [24, 24],
                                      "context and libraries": [4, 0]}, 92]


def test_tags_lie_on_the_card_that_torch_uses(tell):
    assert tell("""
begin_torch(8 * MIB, 8 * MIB)
tag = tidegate.tag("kv_cache")
block = tag.alloc(16 * MIB)
face = block.__cuda_array_interface__
try:
    block.view()
except tidegate.BadValue as problem:
    said = str(problem)
free = [devices.device("cuda:0").memory()[0] // MIB]
tidegate.sleep()
free.append(devices.device("cuda:0").memory()[0] // MIB)
tidegate.wake("kv_cache", timeout=1)
print(json.dumps([tag.memory.device.uri, face["data"] == (block.address, False), face["shape"],
                  "as_tensor" in said, free]))
""") == ["cuda:0", True, [16 * MIB], True, [92, 108]]


def test_no_card_is_no_card(tell):
    assert tell("""
kinds = []
for uri in ("cuda:0", "cuda:7", "cuda:x"):
    try:
        devices.device(uri)
    except tidegate.TidegateError as problem:
        kinds.append(type(problem).__name__)
print(json.dumps(kinds))
""", standin="") == ["NoDevice", "NoDevice", "BadValue"]
