# SPDX-License-Identifier: Apache-2.0
"""Single snapshots that hold some of everything, for the reader's differential test."""

import random

from . import forms, kinds
from .allocator import MIB, Clock
from .program import Program, Shape
from .stacks import Stacks


def _program(seed, **shape):
    rng = random.Random(seed)
    program = Program(Shape(micro_batches=2, layers=2, bucket=True, streams=True, tiny=4,
                            flush=True, **shape),
                      Clock(1_796_105_584_000_000 + rng.randrange(1 << 20)))
    program.site(kinds.linear(rng, False), 14)
    program.build()
    return program


def rich(seed=1, **shape):
    """Two streams, a private pool, pending frees, notes on blocks, compile contexts, texts beyond
    ASCII, an out-of-memory event, a snapshot marker."""
    program = _program(seed, **shape)
    alloc = program.alloc
    program.step(0)
    alloc.context = "torch_compile_0/0_forward"
    alloc.metadata = "Schritt 1: größer, \u8a13\u7df4"
    program.step(1)
    alloc.context, alloc.metadata = "N/A", ""
    alloc.mark_snapshot()
    keep = alloc.alloc(3 * MIB + 1, [program.stacks.frame("λ", "/home/u/übung %1\n.py", 1 << 20)])
    alloc.annotate(keep, "kept: 'x'")
    alloc.alloc(700, None)
    alloc.free(alloc.alloc(3 * MIB, (), stream=9), None, complete=False)
    alloc.oom(1 << 40, 12345, program.sites[0].stack)
    alloc.metadata = ""
    program.step(2)
    program.annotations.append({"stage": "START", "name": "nccl:all_reduce", "device": -1,
                                "time_us": program.clock.read()})
    return program.snapshot()


def two_devices(seed=2):
    """Device 0 without history, devices 1 and 2 with one; segments of both in one list."""
    first = _program(seed, device=1)
    second = _program(seed + 1, device=2, expandable=True)
    for t in range(2):
        first.step(t)
        second.step(t)
    out = first.snapshot(3)
    other = second.snapshot(3)
    out["device_traces"][2] = other["device_traces"][2]
    out["segments"] = sorted(out["segments"] + other["segments"], key=lambda s: s["address"])
    out["external_annotations"] += other["external_annotations"]
    return out


def lost_beginning(seed=3):
    """A ring of which only the last third is left: frees without their allocs."""
    program = _program(seed)
    for t in range(3):
        program.step(t)
    program.alloc.events = program.alloc.events[-len(program.alloc.events) // 3:]
    return program.snapshot()


def no_history(seed=4):
    """History was never on: no events, no frames."""
    program = _program(seed)
    program.clear()
    out = program.snapshot()
    for segment in out["segments"]:
        segment["frames"] = []
        for block in segment["blocks"]:
            block["frames"] = []
    return out


def newest(seed=5):
    """Frames with the keys that torch.fx adds."""
    stacks = Stacks(extra={"fx_node_op": "call_function", "fx_node_name": "mm_1",
                           "fx_original_trace": "File \"x.py\", line 3\n  y = a @ b\n",
                           "fx_node_info": {"op": "mm", "args": [1, 2.5, None]}})
    program = Program(Shape(micro_batches=2, layers=2), Clock(), stacks)
    program.site(kinds.linear(random.Random(seed), False), 14)
    program.build()
    program.step(0)
    return program.snapshot()


def empty():
    """A process that never used the card."""
    return {"segments": [], "device_traces": [[]], "allocator_settings": {},
            "external_annotations": []}


def everything():
    """(name, snapshot in the shape of 2.11 and its pool ids) of all samples."""
    yield "rich", rich()
    yield "expandable", rich(7, expandable=True)
    yield "native", rich(8, native=True)
    yield "two_devices", two_devices()
    yield "lost_beginning", lost_beginning()
    yield "no_history", no_history()
    yield "newest", newest()
    yield "empty", empty()


def all_forms(seed=2026):
    """(file name, bytes): one sample in every version's shape, by every writer; and odd shapes."""
    snapshot = rich(seed)
    for version in forms.VERSIONS:
        shaped = forms.shape(snapshot, version)
        for writer, write in forms.WRITERS.items():
            yield f"{version}-{writer}.pickle", write(shaped)
    for writer in ("py2", "py4", "cpp"):
        yield f"list-{writer}.pickle", forms.WRITERS[writer](forms.bare_list(snapshot))
    plain = forms.no_tuples(forms.shape(snapshot, "head"))
    yield "from-json-py4.pickle", forms.WRITERS["py4"](plain)
    for name, sample in everything():
        for writer in ("py2", "py5", "cpp"):
            yield f"{name}-{writer}.pickle", forms.WRITERS[writer](forms.shape(sample, "head"))
