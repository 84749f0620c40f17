# SPDX-License-Identifier: Apache-2.0
"""torch's allocations in tags: what a thread allocates inside a region belongs to the region's tag,
and sleeps and wakes with it at the same addresses.

    with pools.region("weights", backup="host"):
        model = build()
    tidegate.sleep("weights")

torch's caching allocator goes on caching and splitting; what it takes from the driver there comes
from the tag instead, through a MemPool over the library's pair of functions. Where torch's own
rules bite, this is what is done:

* A pool takes one thread at a time, so a tag has as many as threads are in it at once.
* Of two pools in one thread torch uses the outer one, so the outer is left meanwhile.
* A pool that lives is never emptied, so `trim` lets go of it and makes a new one. Live blocks keep
  theirs, and torch.cuda.empty_cache() gives it back when they are gone.
* Expandable segments and pluggable allocators do not go together: they are off inside.
* A pool that dies with the interpreter would call into torch when half of that is gone: those left
  at exit are left to the system."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
from typing import Any, Dict, Iterator, List, Optional, Tuple

from . import card, errors, library, tags, torch_sources
from .locks import ForkSafeLock

_lock = ForkSafeLock()
_allocator: Any = None  # torch calls it whenever a segment comes or goes, so it is kept for good
_by_name: Dict[str, "_Pools"] = {}
_kept_outside: List[Any] = []


class _Pools:
    """The MemPools of one tag on one card: those that no thread is in."""

    def __init__(self, tag: tags.Tag, index: int) -> None:
        self.tag = tag
        self.index = index
        self.idle: List[Any] = []
        self.has_retired = False  # a pool was let go of while something lived in it


class _Route:
    """Where a thread's allocations go: into a MemPool, until `end`. is_tags: into a tag's."""

    def __init__(self, pool: Any, torch: Any, index: int, is_tags: bool) -> None:
        self.is_tags = is_tags
        self.pool = pool
        self._torch = torch
        self._index = index
        self._way = contextlib.ExitStack()

    def begin(self) -> None:
        """Twice is once, as with end."""
        self.end()
        self._way.enter_context(self._torch.cuda.use_mem_pool(self.pool, device=self._index))

    def end(self) -> None:
        self._way.close()


class _Threads(threading.local):
    """The routes that this thread is in, innermost last."""

    def __init__(self) -> None:
        self.routes: List[_Route] = []


_threads = _Threads()


def _card() -> card.Card:
    """The current card; CUDA is started where it was not."""
    found = card.require()
    if found is None:
        import torch
        torch.cuda.synchronize()  # starts CUDA, and makes the context that the library shares
        found = card.require()
    if found is None:
        raise errors.NoDevice(0, "torch has no card to allocate from")
    if not hasattr(found.torch.cuda, "use_mem_pool"):
        raise errors.TorchTooOld(0, f"PyTorch {found.torch.__version__} has no "
                                 "torch.cuda.use_mem_pool: 2.5 and newer do")
    return found


# ---- pools --------------------------------------------------------------------------------------

def _new_pool(torch: Any) -> Any:
    global _allocator
    with _lock:
        if _allocator is None:
            _allocator = torch.cuda.memory.CUDAPluggableAllocator(
                library.path(), "tg_torch_alloc", "tg_torch_free")
    return torch.cuda.MemPool(_allocator.allocator())


def _take_pool(pools: _Pools, torch: Any) -> Any:
    with _lock:
        if pools.idle:
            return pools.idle.pop()
    return _new_pool(torch)


def _pools(tag: tags.Tag, index: int) -> _Pools:
    with _lock:
        return _by_name.setdefault(tag.name, _Pools(tag, index))


# ---- expandable segments ------------------------------------------------------------------------

def _settings(torch: Any, pool: Any) -> Dict[str, Any]:
    """The allocator's settings. Only a snapshot tells them; one of this pool alone is small."""
    for which in ((*pool.id, False), tuple(pool.id)):  # without the history, where torch can
        try:
            return torch._C._cuda_memorySnapshot(which).get("allocator_settings", {})
        except (TypeError, RuntimeError, AttributeError):
            continue
    return {}


def _set_expandable(torch: Any, is_on: bool) -> None:
    setting = f"expandable_segments:{is_on}"
    change = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    if change is None:
        change = torch.cuda.memory._set_allocator_settings
    change(setting)


@contextlib.contextmanager
def _without_expandable(torch: Any, pool: Any) -> Iterator[None]:
    """At the outermost entry of a thread: inside it is settled."""
    is_on = not _threads.routes and bool(_settings(torch, pool).get("expandable_segments"))
    if is_on:
        _set_expandable(torch, False)
    try:
        yield
    finally:
        if is_on:
            _set_expandable(torch, True)


# ---- routes -------------------------------------------------------------------------------------

def _leave(routes: List[_Route], route: _Route, outer: Optional[_Route]) -> None:
    """Twice is once. In a child that was forked inside, `routes` is empty: it is in none."""
    if route in routes:
        routes.remove(route)
    route.end()
    if outer is not None and outer in routes:
        outer.begin()


@contextlib.contextmanager
def _routed(route: _Route) -> Iterator[None]:
    routes = _threads.routes
    outer = routes[-1] if routes else None
    try:
        try:
            if outer is not None:
                outer.end()
            route.begin()
            routes.append(route)
            yield
        finally:
            _leave(routes, route, outer)
    finally:
        _leave(routes, route, outer)  # where Ctrl-C came in the place of the first


@contextlib.contextmanager
def _scoped(tag: tags.Tag) -> Iterator[None]:
    library.call("tg_scope_push", tag.handle)
    try:
        yield
    finally:
        library.call("tg_scope_pop")


def _check_awake(tag: tags.Tag) -> None:
    """torch's cached blocks of a sleeping tag would be handed out, and fault at the first use."""
    state = tag.info().state
    if state != "awake":
        raise errors.from_status(errors.CODES["TG_EASLEEP"], f"tag {tag.name} is {state}: wake it "
                                 "before something is allocated in it")


@contextlib.contextmanager
def region(name: str, *, backup: str = "none", keep_host: bool = False,
           packed: Optional[bool] = None) -> Iterator[tags.Tag]:
    """What torch allocates in this thread on the current card inside it belongs to the tag.
    Regions nest: the innermost has it. Threads that are started inside (autograd's too) are
    outside. Between sleep and wake of the tag nobody enters it, or is inside.

    backup, keep_host, packed: as of tidegate.tag. packed None: with a backup, where many small
    blocks are usual; not without, since a cache of keys and values may be registered with a network
    card.

    Raises as tidegate.tag does; TorchTooOld; TidegateError with TG_EASLEEP while the tag is not
    awake. Where the memory cannot be had, torch raises its out-of-memory error."""
    where = _card()
    tag = tags.tag(name, backup=backup, device=f"cuda:{where.index}", keep_host=keep_host,
                   packed=backup == "host" if packed is None else packed)
    _check_awake(tag)
    pools = _pools(tag, where.index)
    pool = _take_pool(pools, where.torch)
    try:
        with _without_expandable(where.torch, pool), _scoped(tag), \
                _routed(_Route(pool, where.torch, where.index, True)):
            yield tag
    finally:
        with _lock:
            pools.idle.append(pool)


@contextlib.contextmanager
def _left() -> Iterator[None]:
    """Out of this thread's innermost route, whose pool a capture would use in place of its own."""
    outer = _threads.routes[-1] if _threads.routes else None
    if outer is not None:
        outer.end()
    try:
        yield
    finally:
        if outer is not None and outer in _threads.routes:
            outer.begin()


@contextlib.contextmanager
def scope(name: str, *, backup: str = "none", keep_host: bool = False) -> Iterator[tags.Tag]:
    """What this thread takes from the CUDA runtime on the current card inside it belongs to the
    tag, also what torch takes for a graph's pool: under the preload. Without it nothing does. Else
    as region, and raises as it does."""
    where = _card()
    tag = tags.tag(name, backup=backup, device=f"cuda:{where.index}", keep_host=keep_host)
    _check_awake(tag)
    with _scoped(tag), _left():
        yield tag


@contextlib.contextmanager
def outside(dispose: bool = True) -> Iterator[None]:
    """Ordinary memory inside a region: of the driver's own, which can be shared with other
    processes, and does not sleep. Outside of regions nothing changes. It has a pool of its own,
    which is let go of at the end; with dispose=False it is kept, and used again."""
    if not _threads.routes:
        yield
        return
    where = _card()
    with _lock:
        pool = _kept_outside.pop() if _kept_outside and not dispose else None
    if pool is None:
        pool = where.torch.cuda.MemPool()
    try:
        with _routed(_Route(pool, where.torch, where.index, False)):
            yield
    finally:
        if not dispose:
            with _lock:
                _kept_outside.append(pool)


def of(name: str) -> Tuple[Any, Any]:
    """(a pool of the tag, its allocator), torch's own objects, to look at; None where there is none
    that no thread is in."""
    with _lock:
        pools = _by_name.get(name)
        return (pools.idle[-1] if pools is not None and pools.idle else None), _allocator


def is_inside() -> bool:
    """Whether this thread is in a region."""
    return bool(_threads.routes)


def is_tagged() -> bool:
    """Whether what this thread allocates now belongs to a tag."""
    return is_inside() and _threads.routes[-1].is_tags


# ---- giving back --------------------------------------------------------------------------------

def _has_free_segment(pool: Any) -> bool:
    try:
        segments = pool.snapshot(include_traces=False)
    except TypeError:  # older: always with them
        segments = pool.snapshot()
    return any(segment["active_size"] == 0 for segment in segments)


def _let_go(pools: _Pools, torch: Any) -> None:
    """Drops the idle pools in which a whole segment is free: that gives the segment back."""
    with _lock:
        idle, pools.idle = pools.idle, []
    kept = []
    while idle:
        pool = idle.pop()
        # A graph that was captured in it replays there.
        if pool.use_count() == 1 and _has_free_segment(pool):
            pools.has_retired = True
        else:
            kept.append(pool)
        del pool
    with _lock:
        pools.idle += kept


def trim(names: tags.Names = None) -> int:
    """What the pools of these tags (None: all) hold with nothing live in it goes back to the tags,
    and their memory to the driver; the bytes that did. In every state of the tags. 0 while the
    stream is captured. Pools that a thread is in are left alone. Raises UnknownTag."""
    where = card.current()
    named = tags.chosen(names)
    chosen = [pools for name, pools in list(_by_name.items()) if name in named]
    if where is None or not chosen or torch_sources.is_capturing(where):
        return 0
    before = sum(pools.tag.info().size_bytes for pools in chosen)
    for pools in chosen:
        if pools.has_retired and pools.tag.info().block_count > 0:
            where.torch.cuda.empty_cache()  # the only way to what has come free since
        _let_go(pools, where.torch)
        pools.has_retired = pools.has_retired and pools.tag.info().block_count > 0
    return before - sum(pools.tag.info().size_bytes for pools in chosen)


# ---- looking ------------------------------------------------------------------------------------

def tag_at(address: int) -> Optional[tags.Tag]:
    """The tag in whose memory an address lies, such as tensor.data_ptr(); None: in none."""
    found = tags.place(address)
    return None if found is None else found.tag


host_view = tags.host_view
host_address = tags.host_address


def _bytes_on(index: int) -> int:
    """What torch has in tags on a card, asleep or not: to it nothing has changed."""
    return sum(pools.tag.info().size_bytes for pools in list(_by_name.values())
               if pools.index == index)


torch_sources.leave_to_tags(_bytes_on, lambda address: tag_at(address) is not None)


# ---- the end of the process ---------------------------------------------------------------------

def _leave_to_the_system() -> None:
    idle = [pool for pools in list(_by_name.values()) for pool in pools.idle]
    for pool in [*idle, *_kept_outside, *(route.pool for route in _threads.routes)]:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))


def _forget() -> None:
    """A forked child has no card; the pools are its parent's, and never touched there."""
    _leave_to_the_system()
    _by_name.clear()
    _threads.routes.clear()


atexit.register(_leave_to_the_system)
os.register_at_fork(after_in_child=_forget)
