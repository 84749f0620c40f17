# SPDX-License-Identifier: Apache-2.0
"""Host copies of the real torch's tensors. There is no card here: CPU tensors stand for those of a
host device, so what is seen is content, sharing, accounts and failures. For `make check-verl`."""

import json
import os
import signal
import subprocess
import sys

import pytest

from conftest import ROOT
from verl_wheels import CACHE, TORCH

needs_torch = pytest.mark.skipif(not TORCH,
                                 reason="the real torch (1.5 GB) is for: make check-verl")

BEGIN = """
import json, os, sys, threading, warnings
import torch, tidegate
from tidegate import hostcopies, torch_storages
torch.set_num_threads(1)
DEVICE = "host:capacity=64MiB,name=copies"
def copies(name="model", device=DEVICE):
    return tidegate.HostCopies(name, device=device)
def numbers(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype) + 1
def places(tensors):
    return [tensor.data_ptr() for tensor in tensors]
def size_of(tensors):
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
def refused(call, *arguments):
    try:
        call(*arguments)
        return "nothing"
    except tidegate.TidegateError as problem:
        return type(problem).__name__ + ": " + str(problem)
def answer(**values):
    print(json.dumps(values))
"""


@pytest.fixture
def world(library, tmp_path):
    """world(code, **environment) -> what the code answers; .err: what it said on stderr."""
    def play(code, **env):
        done = subprocess.run([sys.executable, "-c", BEGIN + code], env=environment(tmp_path, env),
                              cwd=tmp_path, capture_output=True, text=True, timeout=120,
                              check=False)
        assert done.returncode == 0, done.stderr
        play.err = done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return play


def environment(folder, more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDEGATE")}
    return {**kept, "PYTHONPATH": f"{ROOT / 'python'}:{CACHE / 'torch'}",
            "PYTHONWARNINGS": "ignore", "TIDEGATE_DIR": str(folder / "node"),
            "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"], **more}


def test_without_torch_it_is_said(python):
    result = python("import sys, tidegate\nsys.modules['torch'] = None\n"
                    "copies = tidegate.HostCopies('model')\n"
                    "try: copies.offload([])\n"
                    "except tidegate.TorchMissing as problem: print(problem)\n"
                    "for name in ('', 'a b', 'x' * 32, 7):\n"
                    "    try: tidegate.HostCopies(name)\n"
                    "    except tidegate.BadValue: print('refused')\n")
    lines = result.out.splitlines()
    assert "PyTorch cannot be imported here" in lines[0], result.err
    assert lines[1:] == ["refused"] * 4


@needs_torch
def test_training_goes_on_as_if_nothing_had_moved(world):
    seen = world("""
def train(copies_of, rounds=4):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Tanh(), torch.nn.Linear(300, 7))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, sizes = [], []
    for step in range(rounds):
        for one in copies_of.values():
            one.load()
        adam.zero_grad()
        loss = (model(torch.randn(16, 64)) ** 2).sum()
        loss.backward()
        adam.step()
        losses.append(loss.item().hex())
        state = [value for one in adam.state.values() for value in one.values()]
        if copies_of:
            copies_of["model"].offload(model.parameters())
            copies_of["optimizer"].offload(state)
            sizes.append([one.size_bytes for one in copies_of.values()])
            sums = [float(one.sum()) for one in model.parameters()]  # read while they are away
    names = [(tag.name, tag.host_bytes) for tenant in tidegate.status().tenants
             for tag in tenant.tags]
    return losses, sizes, [size_of(model.parameters()), size_of(state)], names
alone = train({})[0]
losses, sizes, wanted, names = train({"model": copies("model"), "optimizer": copies("optimizer")})
answer(same=alone == losses, sizes=sizes, wanted=wanted, names=names)
""")
    assert seen["same"]
    assert seen["sizes"] == [seen["sizes"][0]] * 4
    for got, wanted in zip(seen["sizes"][0], seen["wanted"]):
        assert wanted <= got <= 1.02 * wanted
    assert [name for name, _ in seen["names"]] == ["model", "optimizer"]


@needs_torch
def test_receipts_and_rounds(world):
    seen = world("""
model, one = [numbers(300, 300), numbers(50)], copies()
out, back = one.offload(model), one.load()
first = one.offload(model)
again = one.offload(model)      # there already: left alone
there = places(model)
one.load(model[:1])
rest = one.load()
one.offload(model)
answer(out=out.to_dict(), line=out.line(), back=back.line(), again=again.copied_bytes,
       rest=rest.copied_bytes, same=places(model) == there, pinned=one.is_pinned,
       right=torch.equal(model[0], numbers(300, 300)) and torch.equal(model[1], numbers(50)))
""")
    assert seen["line"].startswith("offload model 352 KiB in ")
    assert seen["back"].startswith("load model 352 KiB in ")
    assert seen["out"]["copied_bytes"] == 360200 and set(seen["out"]["phases"]) == {
        "drain", "host", "copy"}
    assert (seen["again"], seen["rest"]) == (0, 200)
    assert seen["same"] and seen["right"] and seen["pinned"]


@needs_torch
def test_what_shares_memory_goes_on_sharing_it(world):
    seen = world("""
whole = numbers(100, 10)
tied = torch.nn.Parameter(whole.data)
slice_, turned = whole[20:30], whole[40:60].t()
odd = torch.empty(1001, dtype=torch.bfloat16)[1:].copy_(numbers(1000, dtype=torch.bfloat16))
none, scalar = torch.empty(0, 5), torch.tensor(3.5)
big = numbers(1000000)
corner = big[10:20]
tensors = [whole, tied, slice_, turned, odd, none, scalar, corner, corner]
before = [tensor.detach().clone() for tensor in tensors]
one = copies()
right = []
for _ in range(3):
    receipt = one.offload(tensors)
    right.append(all(map(torch.equal, tensors, before)))
    whole[25, 5] += 1
    for at in (0, 1, 2):
        before[at].view(-1)[55 if at == 2 else 255] += 1
    right.append([tied[25, 5].item(), slice_[5, 5].item()] == [whole[25, 5].item()] * 2)
    saved = torch.save(corner, "corner.pt")
    one.load()
    right.append(all(map(torch.equal, tensors, before)))
    right.append(turned.stride() == (1, 10) and whole.data_ptr() == tied.data_ptr())
answer(right=right, copied=receipt.copied_bytes, saved=os.path.getsize("corner.pt"),
       big=torch.equal(big, numbers(1000000)))
""")
    assert all(seen["right"]), seen
    # 4000 and 2002 with what lies before on 16 bytes, 4, 40 with 8 before.
    assert seen["copied"] == 4000 + 2002 + 4 + 48
    assert seen["saved"] < 4096 and seen["big"]


@needs_torch
def test_what_others_did_between_is_what_comes_back(world):
    seen = world("""
tensors = [numbers(100) for _ in range(8)]
one = copies()
one.offload(tensors)
tensors[0].mul_(2)                                 # written
tensors[1].data = numbers(7)                       # memory of its own
tensors[2].data = tensors[2].data[:10]             # a part of what it was
tensors[3].data = tensors[3].data.to(torch.bfloat16)
tensors[4].data = tensors[4].data.view(torch.int32)
tensors[5].data = tensors[0].data[50:]             # now it shares
tensors[6].data = torch.empty(0)
tensors[7].data = tensors[7].data.reshape(10, 10).t()
held = [tensor.clone() for tensor in tensors]
one.load()
right = [torch.equal(*pair) for pair in zip(tensors, held)]
shares = tensors[5].data_ptr() == tensors[0].data_ptr() + 200
free = one._slabs[0].is_free
one.offload(tensors)
one.load()
answer(right=right + [torch.equal(*pair) for pair in zip(tensors, held)], shares=shares, free=free,
       shape=list(tensors[7].shape), size=one.size_bytes)
""")
    assert all(seen["right"]) and seen["shares"] and seen["free"]
    assert seen["shape"] == [10, 10]
    assert seen["size"] <= 8 * 448  # the first mapping still serves


@needs_torch
def test_a_copy_that_somebody_kept_stays_as_it_is(world):
    seen = world("""
model, one = torch.nn.Linear(100, 100), copies()
one.offload(model.parameters())
kept = model.state_dict()["weight"]
then = kept.clone()
one.load()
with torch.no_grad():
    model.weight.add_(1)
one.offload(model.parameters())
both, same = one.size_bytes, torch.equal(kept, then)
del kept
one.load()
one.offload([model.weight, model.bias, numbers(30000)])  # more than before: one mapping again
answer(both=both, same=same, right=torch.equal(model.weight, then + 1), after=one.size_bytes,
       host=tidegate.status().host_bytes)
""")
    assert seen["same"] and seen["right"]
    assert seen["both"] == 2 * 40448 and seen["after"] == 160448
    assert seen["host"] == 163840


@needs_torch
def test_what_has_no_plain_bytes_is_refused_before_anything_moves(world):
    seen = world("""
good, one = numbers(10), copies()
emptied = numbers(10)
emptied.untyped_storage().resize_(0)
bad = [torch.eye(3).to_sparse(), torch.empty(3, device="meta"), emptied, "weight",
       torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
       torch.ones(2, dtype=torch.complex64).conj()]
place = good.data_ptr()
answer(said=[refused(one.offload, [good, each]) for each in bad] + [refused(one.load, ["x"])],
       moved=good.data_ptr() != place, size=one.size_bytes)
""")
    assert not seen["moved"] and seen["size"] == 0
    for said, word in zip(seen["said"], ["layout", "meta", "emptied", "str is no tensor",
                                         "quantized", "wraps", "str is no tensor"]):
        assert said.startswith("BadValue: ") and word in said, said


@needs_torch
def test_beyond_the_budget_nothing_moves(world):
    seen = world("""
small, large, one = [numbers(1000)], [numbers(300000)], copies()
one.offload(small)
place = places(large)
said = refused(one.offload, large)
answer(said=said, moved=places(large) != place, right=torch.equal(small[0], numbers(1000)),
       host=tidegate.status().host_bytes, load=one.load().copied_bytes)
""", TIDEGATE_HOST_BYTES="1MiB")
    assert seen["said"].startswith("HostMemory: host copies of model need 1.1 MiB")
    assert not seen["moved"] and seen["right"]
    assert (seen["host"], seen["load"]) == (4096, 4000)


@needs_torch
def test_refused_pinning_goes_on_and_a_broken_device_does_not(world):
    seen = world("""
def through(status):
    tensor = numbers(1000)
    place = tensor.data_ptr()
    one = copies(device=f"fault:nth=1,op=pin,mode=every,status={status}/{DEVICE}")
    said = refused(lambda: [one.offload([tensor]) for _ in range(2)])
    return said, one.is_pinned, tensor.data_ptr() != place, torch.equal(tensor, numbers(1000))
answer(refuses=through(-4102), broken=through(-4106), host=tidegate.status().host_bytes)
""")
    assert seen["refuses"] == ["nothing", False, True, True]
    assert world.err.count("cannot be pinned") == 1
    said, _, moved, right = seen["broken"]
    assert said.startswith("DeviceFailed") and not moved and right


@needs_torch
def test_whatever_fails_all_tensors_stay_what_and_where_they_were(world):
    """Every copy, every allocation, every change of a tensor fails once, on both ways."""
    seen = world("""
FAULTS = []
real = {"copy": torch.Tensor.copy_, "change": torch_storages._point,
        "storage": hostcopies.Place.storage}
def failing(kind, problem):
    def call(*arguments, **named):
        FAULTS.append(kind)
        if FAULTS.count(kind) == nth:
            raise type(problem)(*problem.args)
        return real[kind](*arguments, **named)
    return call
def arm(which):
    FAULTS.clear()
    torch.Tensor.copy_ = failing("copy", RuntimeError("CUDA error: no\\nmore")) \\
        if which == "copy" else real["copy"]
    torch_storages._point = failing("change", RuntimeError("incompatible")) \\
        if which == "change" else real["change"]
    hostcopies.Place.storage = failing("storage", torch.OutOfMemoryError("no")) \\
        if which == "storage" else real["storage"]
tensors = [numbers(100 + i) for i in range(5)] + [numbers(0)]
one, said, bad, size = copies(), set(), 0, None
for way, kinds in (("offload", ("copy", "change")), ("load", ("copy", "change", "storage"))):
    for kind in kinds:
        for nth in range(1, 8):
            one.load()
            if way == "load":
                one.offload(tensors)
            before = places(tensors)
            arm(kind)
            got = refused(*((one.offload, tensors) if way == "offload" else (one.load,)))
            is_hit = FAULTS.count(kind) >= nth
            arm(None)
            said.add((way, kind, got.split("\\n")[0]) if is_hit else None)
            bad += is_hit and places(tensors) != before
            bad += is_hit == (got == "nothing")
            bad += not all(torch.equal(t, numbers(*t.shape)) for t in tensors)
one.load()
answer(said=sorted(filter(None, said)), bad=bad, free=[slab.is_free for slab in one._slabs])
""")
    assert seen["bad"] == 0 and seen["free"] == [True]
    kinds = {(way, kind): text for way, kind, text in seen["said"]}
    assert kinds["offload", "copy"] == "DeviceFailed: torch cannot copy: CUDA error: no"
    assert kinds["load", "copy"] == kinds["offload", "copy"]
    assert "BadValue: a Tensor cannot be moved" in kinds["offload", "change"]
    assert kinds["load", "storage"].startswith("TidegateWouldNotFit: load model needs")
    assert len(kinds) == 5


@needs_torch
def test_threads_take_turns(world):
    seen = world("""
shared, wrong = copies(), []
def work(number):
    own, tensors = copies(f"t{number}"), [numbers(200 + number) for _ in range(3)]
    for one in (shared, own) * 10:
        one.offload(tensors)
        one.load(tensors)
        if not all(torch.equal(t, numbers(200 + number)) for t in tensors):
            wrong.append(number)
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[thread.start() for thread in threads], [thread.join() for thread in threads]
answer(wrong=wrong, away=len(shared._away))
""")
    assert seen == {"wrong": [], "away": 0}


@needs_torch
def test_a_forked_child_has_none_and_takes_none(world):
    seen = world("""
tensors, one = [numbers(1000)], copies()
one.offload(tensors)
here, there = os.pipe()
if os.fork() == 0:
    said = [refused(one.offload, tensors), refused(one.load), refused(one.prepare, tensors)]
    tensors.clear()
    one.close()                # drops what is the parent's
    own = [numbers(500)]
    two = copies("child", DEVICE)
    two.offload(own)
    os.write(there, json.dumps([said, torch.equal(own[0], numbers(500))]).encode())
    os._exit(0)
os.wait()
child, right = json.loads(os.read(here, 10000))
host = tidegate.status().host_bytes
answer(said=child, child=right, host=host, right=torch.equal(tensors[0], numbers(1000)),
       back=one.load().copied_bytes)
""")
    assert all(said.startswith("Forked: ") for said in seen["said"]) and seen["child"]
    assert seen["right"] and seen["back"] == 4000 and seen["host"] == 4096


@needs_torch
def test_nothing_is_charged_after_a_kill(world, tmp_path):
    held = subprocess.Popen([sys.executable, "-c", BEGIN + """
tensors, one = [numbers(100000)], copies()
one.offload(tensors)
print(tidegate.status().host_bytes, flush=True)
sys.stdin.read()
"""], env=environment(tmp_path, {}), cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            text=True)
    assert int(held.stdout.readline()) == 401408
    held.send_signal(signal.SIGKILL)
    held.wait()
    held.stdout.close()
    held.stdin.close()
    seen = world("""
tensors, one = [numbers(200000)], copies()
one.offload(tensors)                               # all of the budget
answer(host=tidegate.status().host_bytes)
""", TIDEGATE_HOST_BYTES="1MiB")
    assert seen["host"] == 802816


@needs_torch
def test_closed_copies_keep_what_is_still_looked_at(world):
    seen = world("""
tensors, one = [numbers(1000), numbers(2000)], copies()
one.prepare(tensors)
prepared = [one.size_bytes, tidegate.status().host_bytes, "host" in one.offload(tensors).phases]
one.close()
one.close()
said = [refused(call, tensors) for call in (one.offload, one.load, one.prepare, one.like)]
held = tidegate.status().host_bytes
right = torch.equal(tensors[1], numbers(2000))
tensors.clear()
answer(prepared=prepared, said=said, held=held, right=right, after=tidegate.status().host_bytes)
""")
    assert seen["prepared"] == [12032, 12288, True]
    assert all(said == "BadValue: the host copies of model are closed" for said in seen["said"])
    assert (seen["held"], seen["right"], seen["after"]) == (12288, True, 0)


@needs_torch
def test_memory_like_tensors_is_exact_and_the_callers(world):
    seen = world("""
one = copies()
wanted = [numbers(10, 7, dtype=torch.bfloat16).t(), numbers(0), numbers(1000)]
made = one.like(wanted)
for to, of in zip(made, wanted):
    to.copy_(of)
more = one.like(wanted)
more[2].fill_(0)
answer(shapes=[list(tensor.shape) for tensor in made], right=all(map(torch.equal, made, wanted)),
       storages=[tensor.untyped_storage().nbytes() for tensor in made], size=one.size_bytes,
       contiguous=all(tensor.is_contiguous() for tensor in made))
""")
    assert seen == {"shapes": [[7, 10], [0], [1000]], "right": True, "storages": [140, 0, 4000],
                    "size": 2 * (192 + 4032), "contiguous": True}


@needs_torch
def test_a_sharded_model_trains_on(world):
    """FSDP2 over one rank: its parameters and Adam's state are DTensors."""
    seen = world("""
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meet", rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
def train(is_moved):
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(8, 30), torch.nn.Linear(30, 3))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    adam, one, losses = torch.optim.Adam(model.parameters()), copies(), []
    for _ in range(4):
        loss = model(torch.ones(2, 8)).square().sum()
        loss.backward()
        adam.step()
        adam.zero_grad()
        losses.append(loss.item().hex())
        if is_moved:
            state = [value for each in adam.state.values() for value in each.values()]
            one.offload([*model.parameters(), *state])
            model.to("cpu")  # has FSDP look at its parameters again
            one.load()
            model.to("cpu")
    return losses, [type(p).__name__ for p in model.parameters()], one.size_bytes
alone, moved = train(False), train(True)
answer(same=alone[:2] == moved[:2], size=moved[2])
dist.destroy_process_group()
""")
    assert seen["same"]
    assert seen["size"] >= 3 * 4 * (8 * 30 + 30 + 30 * 3 + 3)


@needs_torch
def test_what_is_run_on_a_card_runs(library, tmp_path):
    """Speed is none here; content, sizes and FSDP's losses are what they must be."""
    subprocess.run([sys.executable, ROOT / "bench" / "card" / "offload.py", "--quick", "--rounds",
                    "3", "--device", "host:capacity=64MiB,name=bench", "--results", tmp_path],
                   env=environment(tmp_path, {}), cwd=tmp_path, capture_output=True, check=False)
    written, = tmp_path.glob("offload-*-quick.json")
    rows = {row["name"]: row for row in json.loads(written.read_text())["rows"]}
    for name in ("offload: host memory", "offload: pinned", "offload: fsdp1: losses that differ",
                 "offload: fsdp2: losses that differ",
                 "tidegate: tensors that came back otherwise",
                 "plain: tensors that came back otherwise"):
        assert rows[name]["pass"] is True, name
    assert rows["offload: out, later rounds"]["value"] > 0
