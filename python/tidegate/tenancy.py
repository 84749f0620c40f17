# SPDX-License-Identifier: Apache-2.0
"""This process in the node's ledger, and what the ledger says of all.

A process joins when something first needs it to: a tag, a seam, a start-up mark; importing does
not. It is named by $TIDEGATE_NAME ("trainer" by default), $TIDEGATE_ROLE and its rank. One tenant
for each device, on a GPU the process's own (tidegate/process.h): a preload may have joined already,
and then its name stays. A forked child has none of its parent's. When the ledger cannot be used the
process goes on alone, and says so once."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from ctypes import POINTER, byref, c_uint8, c_uint32, c_uint64, c_void_p, cast
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from . import abi, card, devices, errors, identity, library, modes, seams, status_table
from .locks import ForkSafeLock

# What the driver charges to a process beyond what its allocators hold. Asking takes ms, and the
# figure changes seldom: contexts and libraries grow at the first use of a kernel.
OUTSIDE = "context and libraries"
OUTSIDE_KEPT_SECONDS = 10.0

_WAKES_SECONDS = 2.0  # for which a peer's wake between its reservation and its memory is waited for
_LOOK_SECONDS = 0.002

_lock = ForkSafeLock()


# ---- what readers see ---------------------------------------------------------------------------

@dataclass(frozen=True)
class TagStatus:
    """Bytes of one tag of a tenant. returnable_bytes: of what it occupies, what it could give back
    now; asleep_bytes would be occupied if it woke."""

    name: str
    occupied_bytes: int
    returnable_bytes: int
    reserved_bytes: int
    asleep_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class TenantStatus:
    """One process on one device. rank None: none; waits_for: tag and bytes, or None; mode "none":
    it has not said; asked_bytes: peers have asked it for so many, and it has not looked yet."""

    name: str
    role: str
    rank: Optional[int]
    pid: int
    id: int
    device: bytes  # the uuid
    mode: str
    seams: str
    is_starting: bool
    is_dead: bool
    asked_bytes: int
    waits_for: Optional[Tuple[str, int]]
    seconds_old: float
    tags: Tuple[TagStatus, ...]

    @property
    def occupied_bytes(self) -> int:
        return sum(tag.occupied_bytes for tag in self.tags)

    @property
    def title(self) -> str:
        return self.name if self.rank is None else f"{self.name} rank {self.rank}"


@dataclass(frozen=True)
class DeviceStatus:
    """One device as the driver last said to one of its tenants. seconds_old None: never."""

    uuid: bytes
    name: str
    total_bytes: int
    free_bytes: int
    unattributed_bytes: int
    seconds_old: Optional[float]


@dataclass(frozen=True)
class Status:
    """Everything in the node's ledger: devices, and the processes that use Tidegate on them."""

    devices: Tuple[DeviceStatus, ...]
    tenants: Tuple[TenantStatus, ...]
    host_bytes: int

    def on(self, uuid: bytes) -> List[TenantStatus]:
        """The tenants of one device."""
        return [tenant for tenant in self.tenants if tenant.device == uuid]

    def __str__(self) -> str:
        return status_table.table(self)


def _tag(view: Any) -> TagStatus:
    return TagStatus(library.text(view.name), view.occupied_bytes, view.returnable_bytes,
                     view.reserved_bytes, view.asleep_bytes, view.host_bytes)


def _seconds_since(view: Any, then_ns: int) -> float:
    return max(0, view.now_ns - then_ns) / 1e9


def _tenant(view: Any, tenant: Any) -> TenantStatus:
    waits = (library.text(tenant.wait_tag), tenant.wait_bytes) if tenant.is_waiting else None
    return TenantStatus(
        library.text(tenant.name), library.text(tenant.role),
        None if tenant.rank < 0 else tenant.rank, tenant.pid, tenant.id,
        bytes(view.devices[min(tenant.device, abi.LEDGER_DEVICES - 1)].uuid),
        abi.MODES[tenant.mode] if tenant.mode < len(abi.MODES) else abi.MODES[0],
        library.text(tenant.seams), bool(tenant.is_starting), bool(tenant.is_dead),
        tenant.asked_bytes, waits, _seconds_since(view, tenant.updated_ns),
        tuple(map(_tag, tenant.tags[:min(tenant.tag_count, abi.TENANT_TAGS)])))


def _device(view: Any, device: Any) -> DeviceStatus:
    age = None if device.measured_ns == 0 else _seconds_since(view, device.measured_ns)
    return DeviceStatus(bytes(device.uuid), library.text(device.name), device.total_bytes,
                        device.free_bytes, device.unattributed_bytes, age)


def _read_from(ledger: Any) -> abi.tg_node_view:
    view = abi.tg_node_view()
    library.call("tg_ledger_read", ledger, byref(view))
    return view


def read() -> Optional[abi.tg_node_view]:
    """The ledger's view as the library gives it; None when this node has no ledger."""
    ledger = c_void_p()
    try:
        library.call("tg_ledger_open_reader", None, byref(ledger))
    except errors.TidegateError as problem:
        if problem.status == -errno.ENOENT:  # nobody has made one
            return None
        raise
    try:
        return _read_from(ledger)
    finally:
        library.call("tg_ledger_close", ledger)


def status() -> Status:
    """Who holds what of this machine's devices, asleep, waiting. Reads the ledger, joins nothing;
    with nobody there both lists are empty. Raises LibraryMissing, LedgerFailed."""
    view = read()
    if view is None:
        return Status((), (), 0)
    return Status(tuple(_device(view, device) for device in view.devices[:view.device_count]),
                  tuple(_tenant(view, tenant) for tenant in view.tenants[:view.tenant_count]),
                  view.host_bytes)


# ---- this process -------------------------------------------------------------------------------

def _say_alone(problem: errors.TidegateError) -> None:
    seams.warn_once("ledger", f"goes on without the ledger: {problem}")


def _join(device: devices.Device, ledger: c_void_p, handle: c_void_p) -> None:
    """On a device that is nobody's but this package's."""
    library.call("tg_ledger_open", None, byref(ledger))
    uuid = (c_uint8 * 16)(*device.uuid)
    rank = identity.rank()
    params = abi.tg_tenant_params(
        name=identity.name().encode(), role=identity.role().encode() or None,
        rank=-1 if rank is None else rank, uuid=cast(uuid, POINTER(c_uint8)),
        device_name=device.name.encode(), gauge=device.gauge())
    try:
        library.call("tg_ledger_join", ledger, byref(params), byref(handle))
    except errors.TidegateError:
        library.call("tg_ledger_close", ledger)
        raise


def _share(index: int, ledger: c_void_p, handle: c_void_p) -> None:
    """The process's own on a GPU, whoever has asked for it first."""
    try:
        library.call("tg_process_introduce", identity.name().encode(),
                     identity.role().encode() or None)
    except errors.Busy as problem:
        seams.warn_once("name", f"{problem}. TIDEGATE_NAME names it from the start")
    library.call("tg_process_tenant", index, byref(handle))
    try:
        library.call("tg_ledger_open_reader", None, byref(ledger))
    except errors.TidegateError as problem:
        _say_alone(problem)
        raise


class Tenant:
    """This process on one device, for the life of the process. Nothing here raises but `ask` and
    `measure`: what a process says of itself is a store in its own slot."""

    def __init__(self, device: devices.Device) -> None:
        ledger, handle = c_void_p(), c_void_p()
        if device.index is None:
            _join(device, ledger, handle)
        else:
            _share(device.index, ledger, handle)
        self.device, self.ledger, self.handle = device, ledger, handle
        self.id: int = library.call("tg_tenant_id", handle)
        self._seams = ""
        self._marks: Dict[object, int] = {}  # which mark is of what: abi.START_…
        self.note_mode()

    def declare(self, tag: str, occupied_bytes: int, returnable_bytes: int = 0) -> None:
        """Memory that another allocator of this process holds, in absolute figures."""
        library.call("tg_tenant_declare", self.handle, tag.encode(), occupied_bytes,
                     returnable_bytes)

    def measure(self) -> None:
        """Has the driver asked, so that readers see its figure of after a declare. Raises
        LedgerFailed."""
        library.call("tg_tenant_measure", self.handle)

    def note(self, seams_text: str) -> None:
        """What adapters have hooked, for people: "verl 0.9.1: 4 of 4"; and the mode, as it is."""
        self._seams = seams_text
        self.note_mode()

    def begin(self, mark: object, kind: int) -> None:
        """Marks a start-up (abi.START_UP), or that memory is given back and measured
        (abi.START_GIVING: nobody wakes on the device meanwhile), until the end of this mark. Of
        several a start-up counts most."""
        with _lock:
            self._marks[mark] = kind
            self.note_mode()

    def end(self, mark: object) -> None:
        """Ends a mark; nothing of one that has ended, or that never began."""
        with _lock:
            self._marks.pop(mark, None)
            self.note_mode()

    def let_wakes_end(self) -> None:
        """Waits until what others have reserved is taken, at most two seconds. Without a word where
        the ledger cannot be read: then nobody knows."""
        deadline = time.monotonic() + _WAKES_SECONDS
        with contextlib.suppress(errors.TidegateError):
            while self._has_wakes() and time.monotonic() < deadline:
                time.sleep(_LOOK_SECONDS)

    def _has_wakes(self) -> bool:
        view = _read_from(self.ledger)
        others = [_tenant(view, row) for row in view.tenants[:view.tenant_count]]
        return any(tag.reserved_bytes > 0 for other in others for tag in other.tags
                   if other.device == self.device.uuid and not other.is_dead
                   and not is_self(other))

    def note_mode(self) -> None:
        """The mode as it is now, with all else that was noted."""
        said = self._seams.encode("ascii", "replace")[:abi.TENANT_SEAMS_BYTES - 1]
        kinds = self._marks.values()
        start = (abi.START_UP if abi.START_UP in kinds else
                 abi.START_GIVING if abi.START_GIVING in kinds else abi.START_NONE)
        note = abi.tg_tenant_note(abi.MODES.index(modes.mode()), start, said)
        library.call("tg_tenant_note", self.handle, byref(note))

    def ask(self, size_bytes: int) -> int:
        """Asks the others on the device for memory that they could return; how many were asked."""
        count = c_uint32()
        library.call("tg_tenant_ask", self.handle, size_bytes, byref(count))
        return count.value

    def starting_peer(self, seconds: float = 0.0) -> str:
        """Waits up to so long until no other tenant of the device is starting up. The sentence
        about one that still is, else ""; also where the ledger cannot be used: then nobody says."""
        try:
            library.call("tg_tenant_check_quiet", self.handle, int(seconds * 1000))
        except errors.Busy as problem:
            return problem.text
        except errors.TidegateError:
            pass
        return ""

    def asked(self) -> int:
        """Bytes that peers have asked for since the last call."""
        return int(library.call("tg_tenant_asked", self.handle))

    def target(self, tags: Optional[str] = None) -> Tuple[int, int]:
        """(asleep, short): what others have asleep there under these tags (names with commas; None:
        all), and by how much the driver's free memory is short of it. Raises LedgerFailed."""
        asleep, short = c_uint64(), c_uint64()
        library.call("tg_reclaim_target", byref(_read_from(self.ledger)), self.device.uuid,
                     None if tags is None else tags.encode(), self.id, byref(asleep), byref(short))
        return asleep.value, short.value


_tenants: Dict[bytes, Optional[Tenant]] = {}
_told: List[Callable[[], None]] = []  # who wants to know that this process has joined


def when_joined(tell: Callable[[], None]) -> None:
    """tell is called after this process has joined the ledger of a device. It must not raise."""
    _told.append(tell)


def tenant(device: devices.Device) -> Optional[Tenant]:
    """This process as a tenant of the device, joined the first time. None when the ledger cannot be
    used: then the process is alone, which was said once."""
    with _lock:
        if device.uuid in _tenants:
            return _tenants[device.uuid]
        try:
            mine: Optional[Tenant] = Tenant(device)
        except errors.TidegateError as problem:
            mine = None
            if device.index is None:  # else the library has said it
                _say_alone(problem)
        _tenants[device.uuid] = mine
    if mine is not None:
        for tell in _told:
            tell()
    return mine


def is_joined(uuid: Optional[bytes]) -> bool:
    return uuid is not None and _tenants.get(uuid) is not None


def _view(uuid: bytes) -> Optional[Any]:
    """What the ledger says now: by the tenant's own if this process has joined."""
    joined = _tenants.get(uuid)
    if joined is None:
        return read()
    return _read_from(joined.ledger)


def others(uuid: Optional[bytes]) -> List[TenantStatus]:
    """The other tenants of a device, also those that died. Empty where nobody says."""
    try:
        view = None if uuid is None else _view(uuid)
    except errors.TidegateError:
        return []
    if view is None:
        return []
    tenants = [_tenant(view, row) for row in view.tenants[:view.tenant_count]]
    return [tenant for tenant in tenants if tenant.device == uuid and not is_self(tenant)]


def is_self(tenant: TenantStatus) -> bool:
    """Whether a row of the ledger is this process."""
    mine = _tenants.get(tenant.device)
    return mine is not None and mine.id == tenant.id


def _named(device: Optional[str]) -> Optional[Tenant]:
    """This process on the device of this URI; None: on the current card."""
    library.functions()
    if device is None:
        where = card.require()
        if where is None:
            raise errors.NoDevice(0, "torch has not started CUDA in this process: name the device "
                                  "that starts up, as in starting(\"cuda:0\")")
        device = f"cuda:{where.index}"
    return tenant(devices.device(device))


@contextlib.contextmanager
def _marked(device: Optional[str], kind: int) -> Iterator[Optional[Tenant]]:
    """This process on the device, with a mark of this kind."""
    mine = _named(device)
    if mine is None:
        yield None
        return
    mark = object()
    try:
        mine.begin(mark, kind)
        yield mine
    finally:
        try:
            mine.end(mark)
        finally:  # Ctrl-C may have come into that: peers would stand still for the process's life
            mine.end(mark)


@contextlib.contextmanager
def starting(device: Optional[str] = None) -> Iterator[None]:
    """Around a start-up that sizes itself by the device's free memory, such as an engine's: peers
    neither wake nor sleep meanwhile. device: "cuda:0", …; None: the current card. Without a usable
    ledger it does nothing. Raises NoDevice, TorchMissing, BadValue, LibraryMissing."""
    with _marked(device, abi.START_UP):
        yield


@contextlib.contextmanager
def giving(device: Optional[str] = None) -> Iterator[None]:
    """Around giving memory back and measuring what came: free memory must not fall meanwhile, so
    peers' wakes that are under way are waited for, and none begins; they may sleep. Else as
    starting."""
    with _marked(device, abi.START_GIVING) as mine:
        if mine is not None:
            mine.let_wakes_end()
        yield


def _note_mode() -> None:
    for mine in list(_tenants.values()):
        if mine is not None:
            mine.note_mode()


modes.when_changed(_note_mode)
os.register_at_fork(after_in_child=_tenants.clear)
