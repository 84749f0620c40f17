# SPDX-License-Identifier: Apache-2.0
"""Records small snapshots of real torch on a card: forms that the larger recordings do not have.

    python3 test/gen/record_real.py OUT

Each file shows six steps of a small training loop that keeps one tensor a step (`outputs`), but for
`steady`, which keeps nothing. Beside them truth.json: what torch itself said was allocated at the
end of each step, and what the loop kept. test/data/real/ holds what it wrote on an H200.
"""
import gc
import json
import lzma
import os
import pickle
import sys
import traceback
from pathlib import Path

import torch

CPP_WRITER = """
#include <torch/csrc/cuda/memory_snapshot.h>
#include <torch/extension.h>
pybind11::bytes pickled() { return pybind11::bytes(torch::cuda::_memory_snapshot_pickled()); }
"""
KEPT_BYTES = 3 << 20
STEPS = 6
outputs = []


def history(**settings):
    torch.cuda.memory._record_memory_history(enabled=None)
    settings.setdefault("max_entries", 100_000)
    settings.setdefault("stacks", "python")
    torch.cuda.memory._record_memory_history(**settings)


class Loop:
    """A model, its optimizer, and what one step does."""

    def __init__(self):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(256, 256) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.allocated = []

    def step(self, keep=True):
        x = torch.randn(512, 256, device="cuda")
        loss = self.model(x).square().mean()
        loss.backward()
        if keep:
            outputs.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device="cuda"))
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def end_step(self):
        torch.cuda.synchronize()
        self.allocated.append(torch.cuda.memory_allocated())


def plain(loop, keep=True):
    for _ in range(STEPS):
        loop.step(keep)
        loop.end_step()
    return torch.cuda.memory._snapshot()


def steady(loop):
    return plain(loop, keep=False)


def cpp_writer(loop):
    """The writer of C++ programs: protocol 2, one batch for each list."""
    from torch.utils.cpp_extension import load_inline
    writer = load_inline("tidegate_cpp_writer", CPP_WRITER, functions=["pickled"])
    plain(loop)
    return writer.pickled()


def all_stacks(loop):
    history(stacks="all")
    return plain(loop)


def pools(loop):
    """The kept tensors in a pool of their own; a graph with its private pool; a second stream."""
    pool, stream = torch.cuda.MemPool(), torch.cuda.Stream()
    static = torch.zeros(256, 256, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        replayed = static @ static
    for _ in range(STEPS):
        with torch.cuda.use_mem_pool(pool):
            outputs.append(torch.empty(KEPT_BYTES, dtype=torch.uint8, device="cuda"))
        with torch.cuda.stream(stream):
            side = torch.ones(1 << 20, device="cuda")
        side.record_stream(torch.cuda.current_stream())
        del side
        graph.replay()
        loop.step(keep=False)
        loop.end_step()
    snapshot = torch.cuda.memory._snapshot()
    del replayed
    return snapshot


def metadata(loop):
    """Each step marked by the user's own words, as `--step-mark 'step *'` reads them."""
    for i in range(STEPS):
        torch._C._cuda_setMemoryMetadata(f"step {i}")
        loop.step()
        loop.end_step()
    torch._C._cuda_setMemoryMetadata("")
    return torch.cuda.memory._snapshot()


def expandable(loop):
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    return plain(loop)


def ring(loop):
    """A history that lost its beginning and ends with an out-of-memory error."""
    history(max_entries=700)
    plain(loop)
    total = torch.cuda.mem_get_info()[1]
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("ring: as planned:", str(error)[:80])
    return torch.cuda.memory._snapshot()


def compiled(loop):
    loop.model = torch.compile(loop.model)
    return plain(loop)


def state_only(loop):
    """Blocks with stacks, and no events."""
    history(enabled="state")
    return plain(loop)


def segments_only(loop):
    """The bare list of torch.cuda.memory_snapshot()."""
    plain(loop)
    return torch.cuda.memory_snapshot()


FORMS = [plain, steady, cpp_writer, all_stacks, pools, metadata, expandable, ring, compiled,
         state_only, segments_only]


def neutral(data):
    """Without this machine's paths. Their lengths stay, since a pickle counts them."""
    for path, name in ((sys.prefix, b"/python"), (os.getcwd(), b"/work")):
        data = data.replace(path.encode(), name.ljust(len(path), b"_")[:len(path)])
    return data


def record(form, out):
    outputs.clear()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._set_allocator_settings("expandable_segments:False")
    history()
    loop = Loop()
    snapshot = form(loop)
    data = snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot)
    packed = lzma.compress(neutral(data))
    (out / f"{form.__name__}.pickle.xz").write_bytes(packed)
    print(form.__name__, len(data), "bytes,", len(packed), "packed; allocated",
          [round(a / 2**20, 2) for a in loop.allocated], flush=True)
    return {"allocated": loop.allocated, "kept_bytes": 0 if form is steady else KEPT_BYTES}


def main():
    out = Path(sys.argv[1])
    truth = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "forms": {}}
    for form in FORMS:
        try:
            truth["forms"][form.__name__] = record(form, out)
        except Exception:  # one form that this torch does not have must not cost the others
            print(form.__name__, "failed:", flush=True)
            traceback.print_exc()
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


main()
