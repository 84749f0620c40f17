# SPDX-License-Identifier: Apache-2.0
"""The toy of torch over memory that is there: its segments come from the program's cudaMalloc,
under the preload, and a tensor's bytes can be written and read. What torch itself does is shown on
a card."""

import ctypes

import toy_torch
from gen.allocator import Allocator, Clock


class RealAllocator(Allocator):
    """The model, with the driver's memory under it."""

    def __init__(self, program):
        super().__init__(Clock())
        self.program = program
        self.recording = False
        self.rounds_up = 0  # as torch can be set to

    def _reserve(self, total):
        block = ctypes.c_void_p()
        if self.program.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(total)) != 0:
            raise RuntimeError(f"CUDA out of memory: {total} bytes")  # torch's is one
        return block.value

    def empty_cache(self, stack=None):
        before = self.segments
        super().empty_cache(stack)
        for segment in before:
            if segment not in self.segments:
                assert self.program.cudaFree(ctypes.c_void_p(segment.addr)) == 0


class World:
    """A program with torch. `log` has what the package has asked torch for, in order."""

    def __init__(self, program):
        self.card = toy_torch.Card()
        self.card.allocator = self.allocator = RealAllocator(program)
        self.torch = toy_torch.make(self.card)
        self.bytes = {}  # what each live block is filled with
        self.raw = {}  # what was allocated without a tensor, by address
        self.fraction = 1.0
        self.log = []
        self.notes = []
        self.before_plug = lambda size: None
        self.amid = lambda: None  # what is asked for is done, the answer on its way
        cuda = self.torch.cuda
        cuda.caching_allocator_alloc = self.raw_alloc
        cuda.caching_allocator_delete = self.raw_delete
        cuda.get_per_process_memory_fraction = lambda index: self.fraction
        cuda.synchronize = lambda index=None: self.log.append("synchronize")
        empty, snapshot = cuda.empty_cache, cuda.memory_snapshot
        cuda.empty_cache = lambda: (self.log.append("empty_cache"), empty())[1]
        cuda.memory_snapshot = lambda include_traces=True: (
            self.log.append("snapshot"), snapshot(include_traces))[1]
        cuda.memory._get_memory_metadata = lambda: self.allocator.metadata
        cuda.memory._set_memory_metadata = self.note
        cuda.mem_get_info = lambda index=0: self.memory()

    def memory(self):
        """As the driver says."""
        from tidegate import devices
        return devices.device("cuda:0").memory()

    def note(self, text):
        self.allocator.metadata = text
        self.notes.append(text)

    def raw_alloc(self, size, device=None, stream=None):
        assert device == 0
        self.log.append("plug")
        self.before_plug(size)
        block = self.allocator.alloc(size + self.allocator.rounds_up, None, stream)
        self.raw[block.addr] = block
        self.amid()
        return block.addr

    def raw_delete(self, address):
        self.log.append("unplug")
        self.amid()
        self.allocator.free(self.raw.pop(address))

    # ---- the program

    def tensor(self, size, byte, stream=0, pool=(0, 0)):
        """Live memory, filled."""
        block = self.allocator.alloc(size, None, stream, pool)
        self.bytes[block.addr] = byte
        ctypes.memset(block.addr, byte, size)
        return block

    def holds(self, *blocks):
        """Whether each has what it was filled with."""
        return all(ctypes.string_at(block.addr, block.requested) ==
                   bytes([self.bytes[block.addr]]) * block.requested for block in blocks)

    def drop(self, *blocks):
        for block in blocks:
            self.allocator.free(block)
