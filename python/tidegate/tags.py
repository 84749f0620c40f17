# SPDX-License-Identifier: Apache-2.0
"""Tags: named sets of blocks of device memory that sleep and wake as a whole, all or nothing.

    cache = tidegate.tag("kv_cache")
    block = cache.alloc(1 << 30)         # torch.as_tensor(block, device="cuda") shares it
    tidegate.sleep("kv_cache")           # the memory is the driver's; touching it faults
    tidegate.wake("kv_cache", timeout=20)

A process has tags on the card that it computes on, or on the devices that they name. A call moves
those of all its devices, all or nothing, and a name means the tags of that name on each. On a GPU
they are in the process's own memory (tidegate/process.h), with whatever else is there: the default
tag of a program under the preload sleeps and wakes among them. Blocks keep their addresses. What a
tag holds, and that it sleeps, stands in the node's ledger."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import time
import weakref
from ctypes import byref, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, Union

from . import (abi, card, checks, devices, errors, library, moving, preloaded, tenancy,
               torch_sources)
from .locks import ForkSafeLock
from .receipts import Item, Receipt

Names = Union[None, str, Iterable[str]]
BACKUPS = {"none": abi.BACKUP_NONE, "host": abi.BACKUP_HOST}

_lock = ForkSafeLock()


@dataclass(frozen=True)
class TagInfo:
    """state: "awake", "asleep", … size_bytes: as asked for; device_bytes: chunks of the driver."""

    state: str
    block_count: int
    size_bytes: int
    device_bytes: int
    host_bytes: int
    limbo_bytes: int


class Memory:
    """What this process has on one device through the library."""

    def __init__(self, device: devices.Device) -> None:
        self.device = device
        self.tenant = tenancy.tenant(device)
        self.handle = c_void_p()
        self._tags: Dict[str, "Tag"] = {}
        if device.index is None:
            library.call("tg_memory_open", device.handle,
                         None if self.tenant is None else self.tenant.handle, byref(self.handle))
        else:
            library.call("tg_process_memory", device.index, byref(self.handle))
            preloaded.open_usual(device.index)  # before somebody else takes its name
        self._told_outside = -math.inf
        self.tell_outside()

    @property
    def tags(self) -> Dict[str, "Tag"]:
        """All by name, whoever has opened them."""
        ask = library.functions()["tg_memory_tag"]
        if ask(self.handle, len(self._tags)) is not None:
            with _lock:
                while (handle := ask(self.handle, len(self._tags))) is not None:
                    tag = Tag(self, c_void_p(handle))
                    self._tags[tag.name] = tag
        return self._tags

    def tell_outside(self) -> None:
        """Declares what the driver charges to this process beyond torch's segments and its tags, so
        that it is nobody's riddle to others. Asking takes the driver ms and the figure changes
        seldom: at most every ten seconds."""
        now = time.monotonic()
        if self.tenant is None or now - self._told_outside < tenancy.OUTSIDE_KEPT_SECONDS:
            return
        self._told_outside = now
        charged, where = self.device.process_bytes(), card.current()
        if charged is not None:
            reserved = 0 if where is None else torch_sources.figures(where).reserved
            if where is not None:  # what both count is counted once
                reserved -= torch_sources.in_default_tag(where, reserved)
            self.tenant.declare(tenancy.OUTSIDE, max(0, charged - reserved - self.bytes()))

    def bytes(self) -> int:
        """What its tags occupy on the device."""
        return sum(tag.info().device_bytes for tag in list(self.tags.values()))


_memories: Dict[str, Memory] = {}  # by the device's URI


class Block:
    """Device memory of a tag, until `free` or until nobody refers to it. On a card it can be given
    to whatever reads __cuda_array_interface__, which keeps it alive; on the host device `view` is
    its bytes."""

    def __init__(self, tag: "Tag", address: int, size_bytes: int) -> None:
        self.tag = tag
        self.address = address
        self.size_bytes = size_bytes
        self._free = weakref.finalize(self, _free_quietly, tag.memory, address)
        self._free.atexit = False  # type: ignore[misc] # the driver takes all

    def free(self) -> None:
        """Gives it up, in every state of its tag. Twice is once."""
        if self._free.detach() is not None:
            library.call("tg_memory_free", self.tag.memory.handle, self.address, None)

    def view(self) -> memoryview:
        """The bytes of a block on the host device, which the view keeps alive. They can be touched
        while the tag is awake."""
        self._check_there()
        if not self.tag.memory.device.uri.startswith("host:"):
            raise errors.BadValue(0, "a block on a card has no bytes that the host could read: use "
                                  "torch.as_tensor(block, device=\"cuda\")")
        seen: Any = (ctypes.c_uint8 * self.size_bytes).from_address(self.address)
        seen.block = self
        return memoryview(seen).cast("B")

    def _check_there(self) -> None:
        if self.tag.memory not in _memories.values():
            raise errors.Forked(errors.CODES["TG_EFORKED"], "this block is its parent's: a forked "
                                "child has no memory of it, and makes tags of its own")
        if not self._free.alive:
            raise errors.BadValue(0, f"this block of {self.tag.name} has been freed, and has no "
                                  "memory: alloc() makes another")

    @property
    def __cuda_array_interface__(self) -> Dict[str, Any]:
        self._check_there()
        return {"shape": (self.size_bytes,), "typestr": "|u1", "version": 3, "strides": None,
                "data": (self.address, False)}


def _free_quietly(memory: Memory, address: int) -> None:
    """In a forked child the library refuses, and frees nothing of the parent's."""
    library.functions()["tg_memory_free"](memory.handle, address, None)


class Tag:
    """One tag of this process; made by `tag`."""

    def __init__(self, memory: Memory, handle: c_void_p) -> None:
        self.memory = memory
        self.name: str = library.call("tg_tag_name", handle).decode()
        self.handle = handle
        # Whether a wake brings its content back, where that is known: who opens it here says so.
        self.is_saved = self.name == preloaded.default_tag()

    def alloc(self, size_bytes: int) -> Block:
        """A new block, zeroed unless the tag has fill=False. Never waits for other programs. Raises
        TidegateWouldNotFit, BadValue; TidegateError with TG_EASLEEP while the tag sleeps."""
        checks.check_bytes("size_bytes", size_bytes, "bytes of the block")
        address = c_void_p()
        try:
            library.call("tg_tag_alloc", self.handle, c_uint64(size_bytes), byref(address))
        except errors.TidegateWouldNotFit as problem:
            raise moving.told(problem, self.memory, f"a block of {self.name}", size_bytes,
                        "Nothing has changed.") from None
        assert address.value is not None
        return Block(self, address.value, size_bytes)

    def info(self) -> TagInfo:
        """Its state and its bytes now."""
        info = abi.tg_tag_info()
        library.call("tg_tag_info", self.handle, byref(info))
        return TagInfo(abi.TAG_STATES[info.state], info.block_count, info.size_bytes,
                       info.device_bytes, info.host_bytes, info.limbo_bytes)


def _usual_uri() -> str:
    """Of the current card, if the process has tags there or nowhere; else of the one device where
    it has them."""
    there = _all()
    where = card.current() if there else card.require()
    if where is not None and (not there or f"cuda:{where.index}" in _memories):
        return f"cuda:{where.index}"
    if len(there) == 1:
        return there[0].device.uri
    if there:
        uris = " and ".join(one.device.uri for one in there)
        raise errors.BadValue(0, f"this process has tags on {uris}: name one of them by device=")
    raise errors.NoDevice(0, "torch has not started CUDA in this process: create the tag after the "
                          "first use of the card, or name the device: device=\"cuda:0\", or "
                          "\"host:capacity=1GiB\" without a card")


def _open_memory(uri: Optional[str]) -> Memory:
    """The process's memory on a device, opened the first time. None: on the usual one."""
    with _lock:
        device = devices.device(_usual_uri() if uri is None else uri)
        if device.uri not in _memories:
            _memories[device.uri] = Memory(device)
        return _memories[device.uri]


def tag(name: str, *, backup: str = "none", device: Optional[str] = None, packed: bool = False,
        fill: bool = True, keep_host: bool = False, checked: bool = False) -> Tag:
    """The tag of this name; made the first time, later with the same settings the same.

    backup: what sleep does with the content: "none" drops it (zero after the wake), "host" saves.
    device: where its memory is: "cuda:0", or "host:capacity=1GiB" for memory of this machine that
    stands for a card; None: the current card, or the one device where the process has tags. packed:
    no block is exported or registered, so small blocks share chunks. fill=False: nothing is zeroed.
    keep_host: host copies outlive the wake, the next sleep is faster. checked: a checksum is
    verified by wake.

    Raises BadValue, NoDevice, TorchMissing, LibraryMissing."""
    if not isinstance(backup, str) or backup not in BACKUPS:
        raise errors.BadValue(0, f"backup={backup!r}: \"none\" or \"host\"")
    if not isinstance(name, str):
        raise errors.BadValue(0, f"{name!r} is no name of a tag: letters, digits, '_', '-', '.'")
    library.functions()
    memory = _open_memory(device)
    params = abi.tg_tag_params(BACKUPS[backup], bool(packed), not fill, bool(keep_host),
                               bool(checked))
    called = checks.text_bytes("name", name, "letters, digits, '_', '-' and '.'")
    try:
        library.call("tg_tag_open", memory.handle, called, byref(params), byref(c_void_p()))
    except errors.TidegateError as problem:
        if problem.status == -errno.EEXIST and name == preloaded.default_tag():
            kept = ", keep_host=True" if preloaded.keeps_host() else ""
            raise errors.BadValue(problem.status, f"{name} is this program's default tag, and has "
                                  f"settings of its own: tidegate.tag({name!r}, backup=\"host\", "
                                  f"fill=False{kept}) is it") from None
        raise
    found = memory.tags[name]
    found.is_saved = backup == "host"
    return found


def _all() -> List[Memory]:
    """The process's memories: also where nobody but the preload has asked for one. GPUs in
    the same order in every process: two that wait on several do not wait for each other."""
    for number in preloaded.gpus():
        if f"cuda:{number}" not in _memories:
            _open_memory(f"cuda:{number}")
    return sorted(_memories.values(), key=lambda one: (
        abi.LEDGER_DEVICES if one.device.index is None else one.device.index))


def _split(names: Names) -> List[Any]:
    """Each that was named, to be looked at more than once: an iterator cannot."""
    if isinstance(names, str):
        return names.split(",")
    return list(names) if isinstance(names, Iterable) else [names]


def _names(memories: List[Memory], names: Names) -> List[str]:
    """What the caller named, each a tag that is there on some device. None: all."""
    there = {name for memory in memories for name in memory.tags}
    if names is None:
        return sorted(there)
    wanted = _split(names)
    for name in wanted:
        if not isinstance(name, str):
            raise errors.BadValue(0, f"{name!r} is no name of a tag: one name, several with commas "
                                  "or as a list, or None for all")
        if name not in there:
            known = ", ".join(sorted(there)) or "none yet"
            raise errors.UnknownTag(0, f"there is no tag {name!r} in this process; there are: "
                                    f"{known}")
    return wanted


def _parts(operation: str, names: Names, drop: Names = ()) -> List[moving.Part]:
    """What is to be moved, by its memory; none where the process has none, and none was named but
    the default tag, in which there is nothing then."""
    library.functions()
    memories = _all()
    named = None if names is None else _split(names)
    if not memories and named is not None and named != [preloaded.default_tag()]:
        raise errors.UnknownTag(0, f"this process has no tags, so none to {operation}: "
                                "tidegate.tag(name) makes one")
    if not memories:
        return []
    wanted, dropped = _names(memories, named), _names(memories, drop)
    stray = [name for name in dropped if name not in wanted]
    if stray and len(memories) > 1:
        raise errors.BadValue(0, f"drop names {stray[0]!r}, which is not among the tags to "
                              f"{operation}")
    parts = []
    for memory in memories:
        there = [name for name in wanted if name in memory.tags]
        if there or named is None or len(memories) == 1:
            parts.append(moving.Part(memory, there, named is None, tuple(
                name for name in dropped if name in memory.tags)))
    return parts


def _move(operation: str, names: Names, timeout: Optional[float], drop: Names = ()) -> Receipt:
    checks.check_seconds("timeout", timeout)
    parts = _parts(operation, names, drop)
    return moving.move(operation, parts, timeout) if parts else Receipt("done", 0,
                                                                        operation=operation)


def sleep(tags: Names = None, *, drop: Names = (), timeout: Optional[float] = 10.0) -> Receipt:
    """Puts tags to sleep: one name, several with commas or as a list, None: all. What sleeps is
    left alone. drop: those of them (None: all of this process) whose content is not saved this
    time, whatever their backup. timeout: seconds for the device's work so far; None: no limit. The
    caller promises that until it returns nobody gives the device work that touches their blocks.

    Raises UnknownTag, Busy, HostMemory, DeviceFailed, BadValue for a tag in drop that is not put to
    sleep; nothing has changed then. With tags on several devices what slept already is woken again;
    the sentence says what a peer that was faster, or a device that fails after others have dropped
    content, leaves otherwise."""
    return _move("sleep", tags, timeout, drop)


def prepare(tags: Names = None) -> Receipt:
    """Makes, touches and pins the host memory that the next sleep of these tags (None: all) copies
    into, so that a first sleep is as fast as a later one. Tags that sleep or have no backup are
    passed over; twice is once. Blocks that are allocated later get theirs at the sleep. The wake
    after that sleep gives it back, unless the tag has keep_host.

    Raises UnknownTag, HostMemory, DeviceFailed, BadValue; nothing has changed then, but that of
    several devices those before keep what they have made."""
    return _move("prepare", tags, None)


def wake(tags: Names = None, *, timeout: Optional[float] = 20.0) -> Receipt:
    """Wakes tags (None: exactly what sleeps), waiting for memory that others hold up to `timeout`
    seconds (None: no limit). Raises TidegateWouldNotFit with the account of who holds it,
    UnknownTag, Busy, DeviceFailed; all tags sleep as before then."""
    return _move("wake", tags, timeout)


def repack(tags: Names = None, *, timeout: Optional[float] = 10.0) -> Receipt:
    """Gives back what awake packed tags (None: all) have of large chunks without using it: what is
    live there is moved to smaller ones, at the same addresses, where at most four times the bytes
    are moved that are gained. timeout: seconds for the device's work so far; None: no limit. The
    caller promises that until it returns nobody gives the device any work. gained_bytes: what was
    given back; copied_bytes: what was moved.

    Raises UnknownTag, Busy, DeviceFailed; each chunk is moved whole or not at all."""
    return _move("repack", tags, timeout)


def memory_on(index: int) -> Optional[Memory]:
    """What this process has on a GPU; None: nothing."""
    return next((memory for memory in _all() if memory.device.index == index), None)


def trim_ranges(memory: Memory, ranges: List[Tuple[int, int]], timeout: Optional[float]) -> Receipt:
    """Gives back the granules in these ranges (address, size) of blocks: tg_memory_trim."""
    table = (abi.tg_range * len(ranges))(*(abi.tg_range(*one) for one in ranges))
    receipt = abi.tg_receipt()
    library.call("tg_memory_trim", memory.handle, table, len(ranges), moving.wait_ms(timeout),
                 byref(receipt))
    return moving.receipt_of("trim", receipt)


def refill_ranges(memory: Memory, timeout: Optional[float]) -> Receipt:
    """Takes back all of them, or none: tg_memory_refill."""
    receipt = abi.tg_receipt()
    try:
        library.call("tg_memory_refill", memory.handle, moving.wait_ms(timeout), byref(receipt))
    except errors.TidegateWouldNotFit as problem:
        raise moving.told(problem, memory, "a refill", receipt.asked_bytes,
                    "All that was trimmed stays so.") from None
    return moving.receipt_of("refill", receipt)


def has_trimmed(memory: Memory) -> bool:
    """Whether anything is to be refilled."""
    info = abi.tg_tag_info()
    for one in list(memory.tags.values()):
        library.call("tg_tag_info", one.handle, byref(info))
        if info.trimmed_bytes > 0:
            return True
    return False


def chosen(names: Names) -> List[str]:
    """The tags of this process that are named (None: all). Raises UnknownTag, BadValue."""
    memories = _all()
    if not memories and names is None:
        return []
    if not memories:
        raise errors.UnknownTag(0, "this process has no tags: tidegate.tag(name) makes one")
    return _names(memories, names)


def opened(names: Names) -> List[Tag]:
    """The same as tags, on each device that has them; none where the process has none."""
    memories = _all()
    return [memory.tags[name] for name in (_names(memories, names) if memories else ())
            for memory in memories if name in memory.tags]


class Place(NamedTuple):
    """What lies at an address: a block of a tag, from `address` on."""

    tag: Tag
    address: int
    size_bytes: int


def place(address: int) -> Optional[Place]:
    """The block of this process's tags in which an address lies; None: in none."""
    handle, block, size = c_void_p(), c_void_p(), c_uint64()
    for memory in _all():
        try:
            library.call("tg_memory_find", memory.handle, address, byref(handle), byref(block),
                         byref(size))
        except errors.BadValue:
            continue
        for tag in list(memory.tags.values()):
            if tag.handle.value == handle.value:
                return Place(tag, block.value or 0, size.value)
    return None


def host_address(address: int, size_bytes: int) -> int:
    """Where the bytes of host_view lie, which says the rest."""
    checks.check_bytes("size_bytes", size_bytes, "bytes to read")
    found = place(address)
    if found is None or address + size_bytes > found.address + found.size_bytes:
        raise errors.BadValue(0, f"{size_bytes} bytes at {address:#x} lie in no block of this "
                              "process's tags")
    copy, size = c_void_p(), c_uint64()
    library.call("tg_memory_hostcopy", found.tag.memory.handle, found.address, byref(copy),
                 byref(size))
    return (copy.value or 0) + address - found.address


def host_view(address: int, size_bytes: int) -> memoryview:
    """The host copy of size_bytes at an address in a sleeping block, not copied: it is lent until
    the tag wakes or the block is freed, and reading it later ends the process.

    Raises BadValue (no block holds these bytes); TidegateError where there is no copy now: the tag
    is awake, or has no backup."""
    first = host_address(address, size_bytes)
    return memoryview((ctypes.c_uint8 * size_bytes).from_address(first)).cast("B").toreadonly()


def own(uuid: Optional[bytes]) -> List[Item]:
    """What each of this process's tags occupies on a device."""
    return [Item(name, tag.info().device_bytes) for memory in _all() if memory.device.uuid == uuid
            for name, tag in sorted(memory.tags.items())]


def own_bytes(uuid: Optional[bytes]) -> int:
    """All of them together."""
    return sum(item.size_bytes for item in own(uuid))


os.register_at_fork(after_in_child=_memories.clear)
