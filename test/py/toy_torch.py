# SPDX-License-Identifier: Apache-2.0
"""A toy of torch with a card: tensors over the allocator model of test/gen, the counters, history
and snapshots that go with it, and a driver with a capacity. It has no more than what the package
asks for, and proves wiring only: what torch itself does is shown on a card."""

import contextlib
import itertools
import sys
import types

from gen.allocator import MIB, Allocator, Block, Clock, Segment

GIB = 1 << 30

_bases = itertools.count(0x7F1500000000, 1 << 42)


class ToyAllocator(Allocator):
    """The model, with torch's rule for expandable segments: whole handles in free space go back."""

    def empty_cache(self, stack=None):
        for segment in list(self.segments):
            for block in list(segment.blocks):
                if block.state == "active_pending_free":
                    self.complete(block)
        super().empty_cache(stack)

    def _unmap_tail(self, segment, frames):
        """All whole handles of a segment, also in its middle: it falls into several ranges."""
        handle = (20 if segment.large else 2) * MIB
        ranges, blocks = [], []
        for block in segment.blocks:
            end = block.addr + block.size
            first = segment.addr + -(-(block.addr - segment.addr) // handle) * handle
            last = segment.addr + (end - segment.addr) // handle * handle
            if block.state != "inactive" or first >= last:
                blocks.append(block)
                continue
            if block.addr < first:
                blocks.append(Block(block.addr, first - block.addr, segment))
            if blocks:
                ranges.append(blocks)
            blocks = [Block(last, end - last, segment)] if last < end else []
        if blocks:
            ranges.append(blocks)
        self._retile(segment, ranges)

    def _retile(self, segment, ranges):
        # The first range stays in the object, which the caller's list holds; the others are new.
        key = (segment.stream, segment.pool, segment.large)
        total = 0
        for number, blocks in enumerate(ranges):
            size = sum(block.size for block in blocks)
            home = segment
            if number > 0:
                home = Segment(blocks[0].addr, size, key, True, segment.frames)
                self.extra.append(home)
            home.addr, home.blocks = blocks[0].addr, blocks
            for block in blocks:
                block.segment = home
            home.total, total = size, total + size
        if not ranges:
            segment.total = 0

    extra = ()


class TensorBase:
    """What torch._C.TensorBase is: an address, and whether it is the card's."""

    _block = None

    @property
    def is_cuda(self):
        return self._block is not None

    def data_ptr(self):
        return self._block.addr


class Tensor(TensorBase):
    """Memory of the card, given back when nobody holds it."""

    card = None

    def __init__(self, card, size_bytes):
        self.card = card
        self._block = card.alloc(size_bytes)

    def __del__(self):
        if self.card is not None:
            self.card.free(self._block)


class Card:
    """One device: the driver's memory, torch's allocator on it, and other processes."""

    def __init__(self, capacity=8 * GIB, expandable=False):
        self.capacity = capacity
        # Addresses are used once: what another test leaves behind is not taken for this card's.
        self.allocator = ToyAllocator(Clock(), expandable=expandable, base=next(_bases))
        self.allocator.recording = False
        self.history = None
        self.outside = 0  # what libraries and other processes hold
        self.calls = []
        self.observers = []  # of errors, as torch has them

    def tensor(self, size_bytes):
        return Tensor(self, size_bytes)

    def alloc(self, size_bytes):
        stack = None if self.history is None else python_stack(sys._getframe(1))
        return self.allocator.alloc(size_bytes, stack)

    def run_out(self, size_bytes):
        """What torch does when the driver has no more: observers first, then its exception."""
        free, total = self.memory()
        for observer in self.observers:
            observer(0, size_bytes, total, free)
        raise MemoryError(f"CUDA out of memory. Tried to allocate {size_bytes} bytes")

    def free(self, block):
        self.allocator.free(block)

    def empty_cache(self):
        self.calls.append("empty_cache")
        self.allocator.extra = []
        self.allocator.empty_cache()
        self.allocator.segments = sorted(self.allocator.segments + self.allocator.extra)

    def memory(self):
        return self.capacity - self.allocator.reserved() - self.outside, self.capacity

    def record(self, enabled="all", context="all", stacks="all", max_entries=sys.maxsize):
        self.calls.append(("record", enabled))
        self.history = enabled
        self.allocator.recording = enabled == "all"
        if enabled is None:
            self.allocator.clear_history()

    def snapshot(self):
        self.calls.append("snapshot")
        return {"segments": self.allocator.export_segments(),
                "device_traces": [list(self.allocator.events)]}

    def stats(self, device):
        assert device == 0
        segments = self.allocator.export_segments()
        live = sum(one["allocated_size"] for one in segments)
        active = sum(one["active_size"] for one in segments)
        split = sum(block["size"] for one in segments for block in one["blocks"]
                    if block["state"] == "inactive" and len(one["blocks"]) > 1
                    and not one["is_expandable"])
        return {name: {"all": {"current": value}} for name, value in (
            ("allocated_bytes", live), ("reserved_bytes", self.allocator.reserved()),
            ("active_bytes", active), ("inactive_split_bytes", split))}


def python_stack(frame):
    """The frames above, innermost first, as torch records them; without the toy's own."""
    stack = []
    while frame is not None:
        if frame.f_code.co_filename != __file__:
            stack.append({"name": frame.f_code.co_name,
                          "filename": frame.f_code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return stack


def make(card):
    """A module to put in sys.modules as torch."""
    torch = types.ModuleType("torch")
    torch.__version__ = "2.11.0+cu130"
    torch.version = types.SimpleNamespace(hip=None, cuda="13.0")
    torch.Tensor = Tensor
    torch._C = types.SimpleNamespace(
        TensorBase=TensorBase, _cuda_memoryStats=card.stats, _cuda_getDevice=lambda: 0,
        _cuda_isHistoryEnabled=lambda: card.history is not None,
        _cuda_hasPrimaryContext=lambda device: True,
        _cuda_attach_out_of_memory_observer=card.observers.append,
        DisableTorchFunctionSubclass=contextlib.nullcontext)
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 0, device_count=lambda: 1,
        empty_cache=card.empty_cache,
        _is_in_bad_fork=lambda: False, is_current_stream_capturing=lambda: False,
        ipc_collect=lambda: None, synchronize=lambda: None,
        mem_get_info=lambda device=0: card.memory(),
        memory_snapshot=lambda include_traces=True: card.snapshot()["segments"],
        cudart=lambda: types.SimpleNamespace(cudaMemGetInfo=lambda device: card.memory()),
        memory=types.SimpleNamespace(_snapshot=card.snapshot, _record_memory_history=card.record))
    return torch
