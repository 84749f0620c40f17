# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep-mode allocator over tags: the interface of vllm.device_allocator.cumem.

Differences where vLLM's own loses data or its process:
  * a sleep or a wake is all or nothing. Where memory is lacking, the wake raises with the account
    of who holds it, everything stays asleep, and a later one succeeds;
  * both can be repeated, and named in any order; tags that nobody opened are passed over;
  * which tags are saved is said at each sleep; host memory is exact, and kept for the next one.

`pointer_to_data` and `allocator_and_pools` are views: what is put into them changes nothing."""

from __future__ import annotations

import contextlib
import gc
import types
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from .. import card, errors, library, patience, pools, tags
from ..locks import ForkSafeLock
from ..receipts import Receipt
from . import vllm_observing

DEFAULT_TAG = "default"
WEIGHTS = "weights"

_lock = ForkSafeLock()


def why_not() -> str:
    """Why this process cannot use it; "" where it can. Raises LibraryMissing."""
    library.functions()
    where = card.current()
    if where is None:
        return "this process computes on no NVIDIA card"
    if where.device() is None:
        return "the library does not open this card"
    if not hasattr(where.torch.cuda, "use_mem_pool"):
        return f"PyTorch {where.torch.__version__} has no torch.cuda.use_mem_pool"
    return ""


def _named(argument: str, said: Any) -> List[str]:
    """The tags that a caller means, read once: a generator has nothing to say a second time."""
    names = (said.split(",") if isinstance(said, str) else
             list(said) if isinstance(said, Iterable) else [said])
    if not all(isinstance(name, str) for name in names):
        raise errors.BadValue(0, f"{argument}={said!r}: a tag, or a list of tags")
    return names


class AllocationData(NamedTuple):
    """One allocation, as vLLM's own tells it. handle: (device, bytes, address, 0): no handle of the
    driver's is one's to use."""

    handle: Tuple[int, int, int, int]
    tag: str
    is_mapped: bool

    @property
    def cpu_backup_tensor(self) -> Any:
        """The content while its tag sleeps, as a tensor that must not be written; else None."""
        if self.is_mapped:
            return None
        import torch
        try:
            view = pools.host_view(self.handle[2], self.handle[1])
        except errors.TidegateError:  # dropped
            return None
        return torch.frombuffer(view, dtype=torch.uint8)


class Allocator:
    """One for each process: `get_instance`."""

    instance: Optional["Allocator"] = None
    default_tag: str = DEFAULT_TAG

    @staticmethod
    def get_instance() -> "Allocator":
        """The process's allocator."""
        with _lock:
            if Allocator.instance is None:
                Allocator.instance = Allocator()
            return Allocator.instance

    def __init__(self) -> None:
        self.current_tag: str = DEFAULT_TAG
        self.tags: Dict[str, tags.Tag] = {}  # those that were allocated in through us
        self.last: Optional[Receipt] = None  # of the last sleep or wake

    # ---- vLLM's calls

    @contextlib.contextmanager
    def use_memory_pool(self, tag: Optional[str] = None) -> Iterator[None]:
        """What torch allocates inside, in this thread, belongs to the tag ("default"). What is free
        again at the end goes back to the driver."""
        name = DEFAULT_TAG if tag is None else tag
        # Nobody exports or registers weights; a cache may be registered with a network card.
        with pools.region(name, backup="host", keep_host=True, packed=name == WEIGHTS) as opened:
            outer, self.current_tag = self.current_tag, name
            self.tags[name] = opened
            try:
                yield
            finally:
                self.current_tag = outer
        pools.trim([name])

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Puts everything to sleep. The content of these tags (None: "default") is saved to the
        host, that of all others dropped. Raises TidegateError, a RuntimeError; nothing has changed
        then."""
        saved = (DEFAULT_TAG,) if offload_tags is None else offload_tags
        if not isinstance(saved, (str, tuple)):
            raise errors.BadValue(0, f"offload_tags={offload_tags!r}: a tag, or a tuple of tags")
        kept, names = _named("offload_tags", saved), self._names()
        vllm_observing.measured(vllm_observing.SLEEP, kept, lambda: self._put_to_sleep(
            names, [name for name in names if name not in kept]))

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wakes these tags (None: all): what was saved is there, the rest is zero. Waits for memory
        that others hold. Raises TidegateWouldNotFit, a RuntimeError, with the account; all of them
        sleep as before then."""
        wanted = [] if tags is None else _named("tags", tags)
        names = [name for name in self._names() if tags is None or name in wanted]
        vllm_observing.measured(vllm_observing.WAKE, wanted, lambda: self._wake(names))

    def discard(self, tags: list[str]) -> None:
        """Drops the content of these tags: they sleep with nothing, the others stay awake."""
        dropped = _named("tags", tags)
        names = [name for name in self._names() if name in dropped]
        vllm_observing.measured(vllm_observing.SLEEP, (), lambda: self._put_to_sleep(names, names))

    def get_current_usage(self) -> int:
        """Bytes in use, asleep or not. What torch only caches in our pools is given back."""
        names = self._names()
        if names:
            pools.trim(names)
        return sum(self.tags[name].info().size_bytes for name in names)

    # ---- what others read of it

    @property
    def pointer_to_data(self) -> Mapping[int, AllocationData]:
        """The allocations now, by address."""
        where = card.current()
        found: Dict[int, AllocationData] = {}
        for segment in [] if where is None else where.torch.cuda.memory_snapshot():
            tag = pools.tag_at(segment["address"])
            if tag is None or tag.name not in self.tags:
                continue
            handle = (segment["device"], segment["total_size"], segment["address"], 0)
            found[segment["address"]] = AllocationData(handle, tag.name,
                                                       tag.info().state != "asleep")
        return types.MappingProxyType(found)

    @property
    def allocator_and_pools(self) -> Mapping[str, Any]:
        """(pool, allocator) of torch by tag."""
        return types.MappingProxyType({name: pools.of(name) for name in self._names()})

    # ---- ours

    @property
    def is_used(self) -> bool:
        """Whether somebody's memory is here."""
        return any(tag.info().block_count > 0 for tag in self.tags.values())

    @property
    def sleeps(self) -> bool:
        """Whether any of it sleeps."""
        return any(tag.info().state == "asleep" for tag in self.tags.values())

    def _names(self) -> List[str]:
        return list(self.tags)

    def _put_to_sleep(self, names: List[str], drop: List[str]) -> None:
        gc.collect()  # what is dead need not be saved
        _empty_cache()
        if names:
            self.last = tags.sleep(names, drop=drop, timeout=patience.MOST_SECONDS)

    def _wake(self, names: List[str]) -> None:
        infos = [self.tags[name].info() for name in names]
        needed = sum(info.size_bytes for info in infos if info.state == "asleep")
        where = card.current()
        if where is not None and where.driver_memory()[0] < needed:
            _empty_cache()
        if names:
            self.last = tags.wake(names, timeout=patience.wait_seconds())


def _empty_cache() -> None:
    torch = card.torch_if_loaded()
    if torch is not None:
        torch.cuda.empty_cache()
