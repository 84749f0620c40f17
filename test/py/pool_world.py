# SPDX-License-Identifier: Apache-2.0
"""torch's pools over the driver that stands in: MemPools whose segments come from a pluggable pair
of functions, loaded as torch loads them. It has torch's rules that matter here: a pool's segments
stay with it while it lives, of two pools in one thread the outer one is used, a pool takes one
thread at a time, and a NULL is torch's out-of-memory error. It proves wiring only."""

import contextlib
import ctypes
import sys
import threading
import types

import fake_torch
from tidegate import devices

MIB = 1 << 20
SEGMENT = 2 * MIB


class OutOfMemoryError(RuntimeError):
    """torch's."""


class Pluggable:
    """torch.cuda.memory.CUDAPluggableAllocator."""

    def __init__(self, path, alloc, free):
        functions = ctypes.CDLL(path)
        self.take, self.give = functions[alloc], functions[free]
        self.take.restype = ctypes.c_void_p
        self.take.argtypes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self.give.restype = None
        self.give.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)

    def allocator(self):
        return self


class Segment:
    """What a pool took from its allocator; it does not keep the pool."""

    def __init__(self, address, size, allocator):
        self.address, self.size, self.allocator, self.is_live = address, size, allocator, True

    def give(self):
        self.allocator.give(self.address, self.size, 0, None)


orphans = []  # segments of pools that are gone, live when those went


class MemPool:
    """One tensor a segment."""

    made = 0

    def __init__(self, allocator=None):
        MemPool.made += 1
        self.id, self.allocator, self.segments = (0, MemPool.made), allocator, []
        self.thread = None
        self.graphs = 0

    def use_count(self):
        return 1 + self.graphs

    def snapshot(self, include_traces=True):
        return [{"address": s.address, "total_size": s.size,
                 "active_size": s.size if s.is_live else 0} for s in self.segments]

    def __del__(self):
        for segment in self.segments:
            if segment.is_live:
                orphans.append(segment)
            else:
                segment.give()


_threads = threading.local()
expandable = [False]
settings = []  # in the order in which they were set


class Tensor:
    """Memory from the pool that the thread uses; 0 as an address: torch's ordinary memory."""

    def __init__(self, size):
        pool = (getattr(_threads, "pools", []) or [None])[0]  # the outer one wins
        self.segment = None
        if pool is None or pool.allocator is None:
            return
        if expandable[0]:
            raise AssertionError("expandable segments and a pluggable allocator")
        size = -(-size // SEGMENT) * SEGMENT
        for segment in pool.segments:
            if not segment.is_live and segment.size == size:
                segment.is_live, self.segment = True, segment
                return
        address = pool.allocator.take(size, 0, None)
        if not address:
            raise OutOfMemoryError(f"tried to allocate {size} bytes")
        self.segment = Segment(address, size, pool.allocator)
        pool.segments.append(self.segment)

    def data_ptr(self):
        return 0 if self.segment is None else self.segment.address

    def __del__(self):
        if self.segment is not None:
            self.segment.is_live = False


@contextlib.contextmanager
def use_mem_pool(pool, device=None):
    if pool.thread not in (None, threading.get_ident()):
        raise RuntimeError("the pool is used by another thread")
    if any(pool is other for other in getattr(_threads, "pools", [])):
        raise RuntimeError("already recording to this pool")
    pool.thread = threading.get_ident()
    _threads.pools = [*getattr(_threads, "pools", []), pool]
    try:
        yield
    finally:
        _threads.pools = [other for other in _threads.pools if other is not pool]
        pool.thread = None


def empty_cache():
    for segment in [s for s in orphans if not s.is_live]:
        orphans.remove(segment)
        segment.give()


def set_settings(text):
    settings.append(text)
    expandable[0] = text == "expandable_segments:True"


def begin():
    """The fake torch with pools, in sys.modules."""
    torch = fake_torch.make()
    cuda = torch.cuda
    cuda.memory = types.SimpleNamespace(CUDAPluggableAllocator=Pluggable)
    cuda.MemPool, cuda.use_mem_pool, cuda.empty_cache = MemPool, use_mem_pool, empty_cache
    cuda.synchronize = lambda *_: None
    cuda.is_current_stream_capturing = lambda: False
    cuda.mem_get_info = lambda index: devices.device("cuda:0").memory()
    torch._C._accelerator_setAllocatorSettings = set_settings
    torch._C._cuda_memorySnapshot = lambda which: {
        "segments": [], "allocator_settings": {"expandable_segments": expandable[0]}}
    sys.modules["torch"] = torch
    return torch
