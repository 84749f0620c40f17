# SPDX-License-Identifier: Apache-2.0
"""Tensors in host memory of exactly their size, at the speed of the link.

    copies = tidegate.HostCopies("optimizer")
    copies.offload(tensors)   # their bytes leave the card; they are CPU tensors now
    copies.load()             # they are the card's again, with what they hold then

offload copies everything into one mapping, waits once, and only then points each tensor to its
bytes there (its `.data`, as verl's and FSDP's own functions do). The tensors are the same objects;
those that share memory go on sharing it, as far as they are named. They can be read, written and
saved meanwhile. The mapping is made by the first offload (`prepare` makes it before), is pinned,
stands in the node's ledger, and is kept for later rounds until `close`.

All or nothing: after a failure every tensor is where it was, with what it held. What happens to
tensors between is seen: load brings what a tensor holds then, whoever gave it other memory,
another type or another shape. Where bytes of an earlier round are still looked at when the next
offload comes (a state_dict that somebody kept), they stay as they are, and new memory is taken.

In a forked child nothing works, and bytes of offloaded tensors are not there: touching them ends
the child. Threads take turns. What was pinned for one card serves that card alone."""

from __future__ import annotations

import contextlib
import os
import re
import time
import weakref
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple

from . import devices, errors, hostmem, library, seams, shortage, tenancy, torch_storages
from .locks import ForkSafeLock
from .receipts import Item, Receipt
from .torch_storages import ALIGN, Change, Group

_forks = 0


class Place:
    """Where the tensors are when they are not offloaded: a card, or ordinary memory of this machine
    that stands for one."""

    def __init__(self, torch: Any, uri: str) -> None:
        self.torch = torch
        self.device = devices.device(uri)
        number = re.fullmatch(r"cuda:(\d+)", uri)
        self.is_card = number is not None
        self.where = torch.device(uri if number else "cpu")
        self.tenant = tenancy.tenant(self.device)

    def wait(self) -> None:
        """For all of the card's work."""
        if self.is_card:
            self.torch.cuda.synchronize(self.where)

    def allocated(self) -> Optional[int]:
        """What torch has allocated there; None where nobody counts."""
        return int(self.torch.cuda.memory_allocated(self.where)) if self.is_card else None

    def storage(self, size_bytes: int) -> Any:
        return self.torch.empty(size_bytes, dtype=self.torch.uint8,
                                device=self.where).untyped_storage()


class Slab:
    """A mapping, and whether anything still looks into it."""

    def __init__(self, mapping: hostmem.Mapping) -> None:
        self.mapping = mapping
        self._view: Optional[weakref.ref] = None

    def begin(self) -> Any:
        """A view for one round. The slab is in use as long as it, or a tensor on it, lives."""
        view = self.mapping.view()
        self._view = weakref.ref(view)
        return view

    def end(self) -> None:
        """Nothing has come of the round: whoever keeps its exception keeps no memory."""
        self._view = None

    @property
    def is_free(self) -> bool:
        return self._view is None or self._view() is None


class HostCopies:
    """Host memory for a set of tensors, such as a model's or an optimizer's. name: a tag's, for
    `tidegate.status()`. device: the card that the tensors come from, "cuda:1"; None: that of the
    first tensor. With the URI of a host device ("host:capacity=1GiB") ordinary CPU tensors stand
    for those of a card.

    Raises BadValue, NoDevice, LibraryMissing, TorchMissing."""

    def __init__(self, name: str, *, device: Optional[str] = None) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,31}", name):
            raise errors.BadValue(0, f"{name!r} is no name: up to 31 letters, digits, '_', '-', "
                                  "'.'")
        library.functions()
        self.name = name
        self._lock = ForkSafeLock()
        self._forks = _forks
        self._slabs: List[Slab] = []
        self._away: Dict[int, Any] = {}  # what load() brings back, by id
        self._is_closed = False
        self._place: Optional[Place] = None
        if device is not None:
            self._place = Place(_torch(), device)

    # ---- what users call

    def offload(self, tensors: Iterable[Any], *, hold: bool = True) -> Receipt:
        """Moves the tensors' bytes to the host. What is there already is left alone. Waits for the
        card's work; the caller sees to it that no other thread uses the tensors. hold=False: load
        will be given the tensors again, so they are not kept here.

        Raises HostMemory (the node's budget: nothing was taken), BadValue (a tensor without plain
        bytes, or of another card), DeviceFailed, Forked."""
        with self._lock:
            return self._offload(tensors, hold)

    def load(self, tensors: Optional[Iterable[Any]] = None) -> Receipt:
        """Moves tensors to the card: these, or None: all that offload has moved. What is there
        already is left alone.

        Raises TidegateWouldNotFit with the account of who holds the card (every tensor is on the
        host as before), BadValue, DeviceFailed, Forked."""
        with self._lock:
            torch = self._begin()
            wanted = (list(self._away.values()) if tensors is None else
                      torch_storages.listed(torch, tensors))
            receipt = self._load(wanted)
            for tensor in wanted:
                self._away.pop(id(tensor), None)
            return receipt

    def prepare(self, tensors: Iterable[Any]) -> None:
        """Takes the memory that offload of these will need, so that the first is as fast as later
        ones. Raises as offload."""
        with self._lock:
            torch = self._begin()
            groups, _ = torch_storages.grouped(self._there(torch, tensors))
            if groups:
                self._slab(sum(_room(group.size_bytes) for group in groups))

    def like(self, tensors: Iterable[Any]) -> List[Any]:
        """A contiguous CPU tensor for each, of its type and shape, in exact and pinned memory that
        is the caller's until he drops it. What they hold is undefined. Raises as offload."""
        with self._lock:
            torch = self._begin()
            wanted = torch_storages.listed(torch, tensors)
            if self._place is None and wanted:
                self._place = _place_of(torch, wanted)
            sizes = [tensor.numel() * tensor.element_size() for tensor in wanted]
            if sum(sizes) == 0:
                return [torch.empty(tensor.shape, dtype=tensor.dtype) for tensor in wanted]
            view, made, at = self._slab(sum(map(_room, sizes))).begin(), [], 0
            for tensor, size in zip(wanted, sizes):
                made.append(_piece(torch, view, at, size, tensor.dtype).view(tensor.shape))
                at += _room(size)
            return made

    def copy(self, pairs: Iterable[Tuple[Any, Any]]) -> None:
        """From the second into the first of each pair, which `like` has made, and waits for it all.
        Raises BadValue, DeviceFailed, Forked."""
        with self._lock:
            torch, place = self._begin(), self._place
            pairs = list(pairs) if isinstance(pairs, Iterable) else [pairs]
            if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
                raise errors.BadValue(0, "copy takes pairs of tensors: (to, from)")
            torch_storages.listed(torch, [tensor for pair in pairs for tensor in pair])
            with torch.no_grad(), _device_errors(place):
                for to, of in pairs:
                    to.copy_(of.data, non_blocking=True)
                if place is not None:
                    place.wait()

    def holds(self, tensor: Any) -> bool:
        """Whether the tensor looks into memory of these copies."""
        return self._is_ours(torch_storages.local_of(tensor))

    @property
    def size_bytes(self) -> int:
        """Host memory that this has now, in use or kept for the next round."""
        return sum(slab.mapping.size_bytes for slab in self._slabs)

    @property
    def is_pinned(self) -> bool:
        """Whether copies run at the link's speed: the device has taken all of it."""
        return all(slab.mapping.is_pinned for slab in self._slabs)

    def close(self) -> None:
        """Gives the host memory back; of tensors that are still offloaded when nobody holds them
        any more. Twice is once."""
        with self._lock:
            self._is_closed = True
            self._slabs.clear()
            self._away.clear()

    # ---- out

    def _begin(self) -> Any:
        if self._forks != _forks:
            raise errors.Forked(0, f"the host copies of {self.name} are the parent's: make new "
                                "ones, or start processes by spawn")
        if self._is_closed:
            raise errors.BadValue(0, f"the host copies of {self.name} are closed")
        return _torch()

    def _there(self, torch: Any, tensors: Iterable[Any]) -> List[Any]:
        """Those that are not on the host. The first one says which card it is."""
        found = torch_storages.checked(torch, tensors)
        if self._place is None:
            self._place = _place_of(torch, found)
        return [tensor for tensor in found if self._is_there(tensor)]

    def _is_there(self, tensor: Any) -> bool:
        place, local = self._place, torch_storages.local_of(tensor)
        if place is None:
            return False
        if local.device != place.where and local.device.type != "cpu":
            raise errors.BadValue(0, f"a tensor on {local.device}: the host copies of {self.name} "
                                  f"are pinned for {place.where}. Make others for each card")
        return local.device == place.where and not self._is_ours(local)

    def _is_ours(self, local: Any) -> bool:
        """Whether it looks into a slab."""
        if local.device.type != "cpu":
            return False
        address = local.untyped_storage().data_ptr()
        return any(slab.mapping.has(address) for slab in self._slabs)

    def _offload(self, tensors: Iterable[Any], hold: bool) -> Receipt:
        begun = time.monotonic()
        torch = self._begin()
        moving = self._there(torch, tensors)
        groups, empty = torch_storages.grouped(moving)
        size = sum(group.size_bytes for group in groups)
        place, phases = self._place, {}
        if place is None or not moving:
            return self._receipt("offload", size, begun, {})
        before = place.allocated()
        changes = [_emptied(torch, tensor, "cpu") for tensor in empty]
        with self._held(moving if hold else []), torch.no_grad(), _device_errors(place):
            place.wait()
            phases["drain"] = time.monotonic() - begun
            if groups:
                self._copy_out(groups, changes, phases)
            else:
                torch_storages.apply(changes)
        changes.clear()
        groups.clear()
        gained = size if before is None else before - (place.allocated() or 0)
        return self._receipt("offload", size, begun, phases, gained)

    @contextlib.contextmanager
    def _held(self, moving: List[Any]) -> Iterator[None]:
        """load() will bring them; after a failure those that were moved all the same, by a Ctrl-C
        that came behind it."""
        self._away.update((id(tensor), tensor) for tensor in moving)
        try:
            yield
        except BaseException:
            for tensor in moving:
                if self._is_there(tensor):
                    self._away.pop(id(tensor), None)
            raise

    def _copy_out(self, groups: List[Group], changes: List[Change],
                  phases: Dict[str, float]) -> None:
        place, begun = self._place, time.monotonic()
        assert place is not None
        slab = self._slab(sum(_room(group.size_bytes) for group in groups))
        phases["host"] = time.monotonic() - begun
        try:
            changes += _copied_out(place, groups, slab.begin())
            phases["copy"] = time.monotonic() - begun - phases["host"]
            torch_storages.apply(changes)
        except BaseException:
            slab.end()
            raise

    def _slab(self, size_bytes: int) -> Slab:
        """The smallest free one that is large enough; else a new one, of exactly the size, in the
        place of all that are free."""
        fitting = [slab for slab in self._slabs
                   if slab.is_free and slab.mapping.size_bytes >= size_bytes]
        if fitting:
            return min(fitting, key=lambda slab: slab.mapping.size_bytes)
        place = self._place
        assert place is not None
        self._slabs = [slab for slab in self._slabs if not slab.is_free]
        mapping = hostmem.Mapping(place.tenant, self.name, size_bytes)
        try:
            mapping.pin(place.device)
        except errors.DeviceFailed as problem:
            if hostmem.is_broken(problem):
                raise
            seams.warn_once("unpinned", f"host copies of {self.name} cannot be pinned ({problem}): "
                            "they are used as they are, copies take several times as long")
        slab = Slab(mapping)
        self._slabs.append(slab)
        return slab

    # ---- in

    def _load(self, tensors: List[Any]) -> Receipt:
        begun = time.monotonic()
        torch = self._begin()
        found = torch_storages.checked(torch, tensors)
        place, phases = self._place, {}
        if place is None:
            place = self._place = _place_of(torch, found)
        moving = [] if place is None else [tensor for tensor in found
                                           if not self._is_there(tensor)]
        groups, empty = torch_storages.grouped(moving)
        size = sum(group.size_bytes for group in groups)
        if place is None or not moving:
            return self._receipt("load", size, begun, {})
        storages: List[Any] = []
        changes = [_emptied(torch, tensor, place.where) for tensor in empty]
        try:
            with torch.no_grad(), _device_errors(place):
                storages = self._storages(place, groups, size)
                phases["map"] = time.monotonic() - begun
                changes += _copied_in(place, groups, storages)
                phases["copy"] = time.monotonic() - begun - phases["map"]
                torch_storages.apply(changes)
        finally:  # whoever keeps the exception keeps no memory of the card
            storages.clear()
            changes.clear()
        return self._receipt("load", size, begun, phases, size)

    def _storages(self, place: Place, groups: List[Group], size: int) -> List[Any]:
        """Memory on the card for each group, all or none."""
        out_of_memory = getattr(place.torch, "OutOfMemoryError", place.torch.cuda.OutOfMemoryError)
        try:
            return [place.storage(group.size_bytes) for group in groups]
        except out_of_memory as problem:
            available = place.device.memory()[0]
            refused = errors.TidegateWouldNotFit(errors.CODES["TG_EDEVICEMEMORY"], str(problem))
            raise shortage.would_not_fit(
                refused, f"load {self.name}", place.device.uuid, size, available,
                "All its tensors are on the host as before.") from None

    def _receipt(self, operation: str, size: int, begun: float, phases: Dict[str, float],
                 gained: int = 0) -> Receipt:
        stays = (Item("still held by other tensors", size - gained),) if gained < size else ()
        return Receipt("done", size, gained, passes=1, seconds=time.monotonic() - begun,
                       stays=stays, operation=operation, tags=(Item(self.name, size),),
                       copied_bytes=size, phases=phases)


# ---- what is done with tensors ------------------------------------------------------------------

def _torch() -> Any:
    try:
        import torch
    except ImportError as problem:
        raise errors.TorchMissing(0, f"PyTorch cannot be imported here ({problem}): pip install "
                                  "torch") from None
    return torch


def _place_of(torch: Any, tensors: Iterable[Any]) -> Optional[Place]:
    """The card of the first tensor that is on one."""
    for tensor in tensors:
        where = torch_storages.local_of(tensor).device
        if where.type == "cuda":
            return Place(torch, f"cuda:{where.index}")
        if where.type != "cpu":
            raise errors.NoDevice(0, f"a tensor on {where}: Tidegate acts on NVIDIA's cards alone")
    return None


def _room(size_bytes: int) -> int:
    return (size_bytes + ALIGN - 1) // ALIGN * ALIGN


def _piece(torch: Any, view: Any, at: int, size_bytes: int, dtype: Any) -> Any:
    """Some bytes of a view, as a tensor with a storage of its own: saving it saves these alone."""
    if size_bytes == 0:
        return torch.empty(0, dtype=dtype)
    made = torch.frombuffer(view, dtype=torch.uint8, count=size_bytes, offset=at)
    return made.view(dtype)


def _copied_out(place: Place, groups: List[Group], view: Any) -> List[Change]:
    torch, changes, at = place.torch, [], 0
    try:
        for group in groups:
            there = _piece(torch, view, at, group.size_bytes, torch.uint8)
            there.copy_(group.bytes(torch), non_blocking=True)
            changes += torch_storages.changes_to(torch, group, there.untyped_storage())
            at += _room(group.size_bytes)
    finally:
        place.wait()  # also before the view is given up
    return changes


def _copied_in(place: Place, groups: List[Group], storages: List[Any]) -> List[Change]:
    torch, changes = place.torch, []
    try:
        for group, storage in zip(groups, storages):
            there = torch_storages.on_storage(torch, storage, torch.uint8, 0,
                                              (group.size_bytes,), (1,))
            there.copy_(group.bytes(torch), non_blocking=True)
            changes += torch_storages.changes_to(torch, group, storage)
    finally:
        place.wait()
    return changes


def _emptied(torch: Any, tensor: Any, where: Any) -> Change:
    """A tensor without elements goes along."""
    local = torch_storages.local_of(tensor)
    return Change(tensor, local.data, torch.empty_like(local, device=where))


class _device_errors:
    """What torch says of the device, as the package's own exception. After Ctrl-C, which may have
    come in the place of a wait, no copy is under way either."""

    def __init__(self, place: Optional[Place]) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, problem: Any, trace: Any) -> None:
        if problem is not None and not isinstance(problem, Exception) and self._place is not None:
            self._place.wait()
        if isinstance(problem, RuntimeError) and not isinstance(problem, errors.TidegateError):
            text = str(problem).split("\n")[0]
            raise errors.DeviceFailed(errors.CODES["TG_EDEVICE"],
                                      f"torch cannot copy: {text}") from problem


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)
