# SPDX-License-Identifier: Apache-2.0
"""Host copies of tensors on a card: which card, in what order things happen, what is held where.
The driver stands in for a GPU's, torch is a fake of bytes (fake_tensors.py); the real torch, on
CPU tensors, is in test_torch_hostcopies.py."""

import os
import pathlib

import pytest

FOLDER = pathlib.Path(os.environ.get("TIDEGATE_BIN", "build/cli/tidegate")).resolve().parents[1]
DRIVER = FOLDER / "test" / "standin"
BEGIN = f"""
import json, sys
sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
import fake_tensors, tidegate
torch = fake_tensors.install()
card = torch.card

def full(count, device="cuda:0", dtype=4):
    "A tensor whose every byte is known."
    made = torch.empty((count,), dtype, device)
    made.storage.view[:] = bytes((at * 7 + count) % 251 for at in range(count * dtype))
    return made

def refused(call, *arguments):
    try:
        call(*arguments)
        return "nothing"
    except tidegate.TidegateError as problem:
        return type(problem).__name__ + ": " + str(problem)

def here(tensors):
    return [str(tensor.device) for tensor in tensors]

def charged():
    return [(tag.name, tag.host_bytes) for tenant in tidegate.status().tenants
            for tag in tenant.tags if tag.host_bytes]

def answer(**values):
    print(json.dumps(values))
"""


@pytest.fixture
def on_card(tell):
    """on_card(code) -> what the code answers, over a driver with two cards"""
    if not (DRIVER / "libcuda.so.1").exists():
        pytest.fail(f"{DRIVER} has no driver: build it (make all)")

    def call(code, **env):
        return tell(code, LD_LIBRARY_PATH=str(DRIVER),
                    TIDEGATE_STANDIN="capacity=64MiB,context=0,devices=2", **env)

    return call


def test_bytes_leave_the_card_and_come_back(on_card):
    seen = on_card("""
tensors, copies = [full(1000), full(33), full(0)], tidegate.HostCopies("model")
content, used = [tensor.tobytes() for tensor in tensors], card.allocated["cuda:0"]
rounds = []
for _ in range(3):
    card.calls.clear()
    out = copies.offload(tensors)
    calls = card.calls[:]
    away = card.allocated["cuda:0"], here(tensors), [one.tobytes() for one in tensors] == content
    card.calls.clear()
    copies.load()
    rounds.append([calls, card.calls[:], away, card.allocated["cuda:0"], here(tensors),
                   [one.tobytes() for one in tensors] == content])
answer(rounds=rounds, used=used, gained=out.gained_bytes, stays=out.stays, size=copies.size_bytes,
       pinned=copies.is_pinned, charged=charged())
""")
    # Every copy is waited for before the first tensor is pointed elsewhere.
    order = ["wait", "copy", "copy", "wait", "point", "point", "point"]
    for out, back, away, used, where, same in seen["rounds"]:
        assert (out, back) == (order, order[1:])
        assert away == [0, ["cpu"] * 3, True]
        assert (used, where, same) == (seen["used"], ["cuda:0"] * 3, True)
    assert (seen["gained"], seen["stays"]) == (4132, [])
    assert (seen["size"], seen["pinned"]) == (4032 + 192, True)
    assert seen["charged"] == [["model", 8192]]


def test_what_others_hold_of_the_card_is_in_the_receipt(on_card):
    seen = on_card("""
whole, copies = full(1000), tidegate.HostCopies("model")
part = torch.empty(0, 4, "cuda:0").set_(whole.storage, 100, (200,), (1,))
out = copies.offload([part])
answer(out=out.to_dict(), held=card.allocated["cuda:0"], size=copies.size_bytes)
""")
    assert seen["held"] == 4000 and seen["size"] == 832
    assert seen["out"]["gained_bytes"] == 0
    assert seen["out"]["stays"] == [{"item": "still held by other tensors", "size_bytes": 800}]


def test_the_first_tensor_says_which_card(on_card):
    seen = on_card("""
copies, step = tidegate.HostCopies("optimizer"), full(1, "cpu")
nothing = copies.offload([step]).copied_bytes      # no card yet: left alone
mine, other = full(10, "cuda:1"), full(10, "cuda:0")
copies.offload([step, mine])
said = [refused(copies.offload, [other]), refused(copies.load, [other]),
        refused(tidegate.HostCopies("model").offload, [full(3, "npu:0")])]
devices = [device.name for device in tidegate.status().devices]
where = here([step, mine])
copies.load([step, mine])                          # what is on the host comes along, as in verl
answer(nothing=nothing, said=said, devices=devices, where=where, back=here([step, mine]),
       other=[str(other.device), other.tobytes() == full(10).tobytes()])
""")
    assert seen["nothing"] == 0 and len(seen["devices"]) == 1
    assert seen["where"] == ["cpu", "cpu"] and seen["back"] == ["cuda:1", "cuda:1"]
    assert seen["said"][0] == ("BadValue: a tensor on cuda:0: the host copies of optimizer are "
                               "pinned for cuda:1. Make others for each card")
    assert seen["said"][1] == seen["said"][0]
    assert seen["said"][2].startswith("NoDevice: a tensor on npu:0")
    assert seen["other"] == ["cuda:0", True]


def test_a_load_that_lacks_memory_leaves_all_on_the_host(on_card):
    seen = on_card("""
tensors, copies = [full(1000) for _ in range(4)], tidegate.HostCopies("optimizer")
content = tensors[3].tobytes()
copies.offload(tensors)
card.capacity = 10000                              # somebody else has the rest
said = [refused(copies.load), refused(copies.load)]
held, where = card.allocated["cuda:0"], here(tensors)
card.capacity = 16000
copies.load()
answer(said=said, held=held, where=where, back=here(tensors),
       same=tensors[3].tobytes() == content)
""")
    for said in seen["said"]:
        assert said.startswith("TidegateWouldNotFit: load optimizer needs "), said
    assert "All its tensors are on the host as before." in seen["said"][0]
    assert (seen["held"], seen["where"]) == (0, ["cpu"] * 4)
    assert (seen["back"], seen["same"]) == (["cuda:0"] * 4, True)


def test_a_card_that_fails_changes_no_tensor(on_card):
    seen = on_card("""
tensors, copies = [full(1000), full(20)], tidegate.HostCopies("model")
def failing(call):
    before = here(tensors), [one.tobytes() for one in tensors]
    card.refusal = RuntimeError("CUDA error: an illegal memory access\\nCUDA kernel errors might")
    said = refused(call)
    card.refusal = None
    return said, (here(tensors), [one.tobytes() for one in tensors]) == before
out = failing(lambda: copies.offload(tensors))
copies.offload(tensors)
back = failing(copies.load)
copies.load()
answer(out=out, back=back, size=copies.size_bytes, where=here(tensors))
""")
    for said, is_same in (seen["out"], seen["back"]):
        assert said == "DeviceFailed: torch cannot copy: CUDA error: an illegal memory access"
        assert is_same
    assert seen["size"] == 4032 + 128 and seen["where"] == ["cuda:0"] * 2


def test_what_is_no_list_of_tensors_is_refused_and_nothing_moves(on_card):
    """One tensor alone too: its rows would be moved, and it would stay."""
    seen = on_card("""
tensor, copies = full(10), tidegate.HostCopies("model")
torch.Tensor.__iter__ = lambda self: iter([full(1), full(1)])
kinds = set()
for bad in (5, None, tensor, "abc", [5], [None], [[tensor]], {"a": tensor}):
    for call in (copies.offload, copies.prepare, copies.like, copies.copy,
                 *([] if bad is None else [copies.load])):
        kinds.add(refused(call, bad).split(":")[0])
kinds.add(refused(copies.copy, [(tensor, 5)]).split(":")[0])
kinds.add(refused(lambda: tidegate.HostCopies("model", device=5)).split(":")[0])
answer(kinds=sorted(kinds), where=str(tensor.device), size=copies.size_bytes,
       alone=refused(copies.offload, tensor))
""")
    assert seen["kinds"] == ["BadValue"]
    assert (seen["where"], seen["size"]) == ("cuda:0", 0)
    assert seen["alone"] == ("BadValue: Tensor is no list of tensors: give several, such as "
                             "model.parameters(), or [tensor]")


def test_ctrl_c_at_any_line_loses_nothing(on_card):
    """Of offload and of load, one line after the other, until one run has gone through: then all
    is loaded, and every byte is there; also after another offload, which takes no memory that a
    tensor still looks into."""
    seen = on_card("""
from ctrl_c import interrupted
from tidegate import hostcopies, torch_storages

bad, count = [], {}
for name in ("offload", "load"):
    for after in range(1, 2000):
        tensors = [full(1000), full(33), full(0), full(7)]
        content = [tensor.tobytes() for tensor in tensors]
        copies = tidegate.HostCopies("model")
        call = lambda: copies.offload(tensors)
        if name == "load":
            copies.offload(tensors)
            call = copies.load
        came = interrupted(call, after, hostcopies, torch_storages)
        others = [full(1000), full(500)]
        copies.offload(others)
        for one in others:
            one.storage.view[:] = bytes(len(one.storage.view))
        same = [tensor.tobytes() for tensor in tensors] == content
        copies.load()
        same = same and [tensor.tobytes() for tensor in tensors] == content
        if not same or here(tensors) != ["cuda:0"] * 4:
            bad.append([name, after, here(tensors)])
        copies.close()
        if not came:
            count[name] = after
            break
answer(bad=bad, count=count, used=card.allocated["cuda:0"])
""")
    assert seen["bad"] == []
    assert min(seen["count"].values()) > 50
