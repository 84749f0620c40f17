# SPDX-License-Identifier: Apache-2.0
"""This process in the node's ledger, and what the ledger says of all.

A process joins when something first needs it to: a tag, a seam, a start-up mark; importing does
not. It is named by $TIDEGATE_NAME ("trainer" by default), $TIDEGATE_ROLE and its rank. One tenant
for each device; a forked child has none of its parent's. When the ledger cannot be used the process
goes on alone, and says so once."""

from __future__ import annotations

import os
from ctypes import POINTER, byref, c_uint8, c_void_p, cast
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from . import abi, devices, errors, identity, library, seams
from .locks import ForkSafeLock

_lock = ForkSafeLock()


# ---- what readers see ---------------------------------------------------------------------------

@dataclass(frozen=True)
class TagStatus:
    """Bytes of one tag of a tenant. asleep_bytes would be occupied if it woke."""

    name: str
    occupied_bytes: int
    reserved_bytes: int
    asleep_bytes: int
    host_bytes: int


@dataclass(frozen=True)
class TenantStatus:
    """One process on one device. rank None: none; waits_for: tag and bytes, or None."""

    name: str
    role: str
    rank: Optional[int]
    pid: int
    device: bytes  # the uuid
    is_dead: bool
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


def _tag(view: Any) -> TagStatus:
    return TagStatus(library.text(view.name), view.occupied_bytes, view.reserved_bytes,
                     view.asleep_bytes, view.host_bytes)


def _seconds_since(view: Any, then_ns: int) -> float:
    return max(0, view.now_ns - then_ns) / 1e9


def _tenant(view: Any, tenant: Any) -> TenantStatus:
    waits = (library.text(tenant.wait_tag), tenant.wait_bytes) if tenant.is_waiting else None
    return TenantStatus(
        library.text(tenant.name), library.text(tenant.role),
        None if tenant.rank < 0 else tenant.rank, tenant.pid,
        bytes(view.devices[min(tenant.device, abi.LEDGER_DEVICES - 1)].uuid),
        bool(tenant.is_dead), waits, _seconds_since(view, tenant.updated_ns),
        tuple(map(_tag, tenant.tags[:min(tenant.tag_count, abi.TENANT_TAGS)])))


def _device(view: Any, device: Any) -> DeviceStatus:
    age = None if device.measured_ns == 0 else _seconds_since(view, device.measured_ns)
    return DeviceStatus(bytes(device.uuid), library.text(device.name), device.total_bytes,
                        device.free_bytes, device.unattributed_bytes, age)


def read() -> Optional[abi.tg_node_view]:
    """The ledger's view as the library gives it; None when this node has no ledger."""
    ledger = c_void_p()
    try:
        library.call("tg_ledger_open_reader", None, byref(ledger))
    except errors.TidegateError as problem:
        if problem.status == -2:  # ENOENT: nobody has made one
            return None
        raise
    try:
        view = abi.tg_node_view()
        library.call("tg_ledger_read", ledger, byref(view))
        return view
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

class Tenant:
    """This process on one device. Lives as long as the process."""

    def __init__(self, device: devices.Device) -> None:
        self.device = device
        ledger, handle = c_void_p(), c_void_p()
        library.call("tg_ledger_open", None, byref(ledger))
        self._uuid = (c_uint8 * 16)(*device.uuid)  # the call reads it, nobody keeps it
        rank = identity.rank()
        params = abi.tg_tenant_params(
            name=identity.name().encode(), role=identity.role().encode() or None,
            rank=-1 if rank is None else rank, uuid=cast(self._uuid, POINTER(c_uint8)),
            device_name=device.name.encode(), gauge=device.gauge())
        try:
            library.call("tg_ledger_join", ledger, byref(params), byref(handle))
        except errors.TidegateError:
            library.call("tg_ledger_close", ledger)
            raise
        self.ledger, self.handle = ledger, handle


_tenants: Dict[bytes, Optional[Tenant]] = {}


def tenant(device: devices.Device) -> Optional[Tenant]:
    """This process as a tenant of the device, joined the first time. None when the ledger cannot be
    used: then the process is alone, which was said once."""
    with _lock:
        if device.uuid not in _tenants:
            try:
                _tenants[device.uuid] = Tenant(device)
            except errors.TidegateError as problem:
                seams.warn_once("ledger", f"goes on without the ledger: {problem}")
                _tenants[device.uuid] = None
        return _tenants[device.uuid]


def is_joined(uuid: Optional[bytes]) -> bool:
    return uuid is not None and _tenants.get(uuid) is not None


def _view(uuid: bytes) -> Optional[Any]:
    """What the ledger says now: by the tenant's own if this process has joined."""
    joined = _tenants.get(uuid)
    if joined is None:
        return read()
    view = abi.tg_node_view()
    library.call("tg_ledger_read", joined.ledger, byref(view))
    return view


def others(uuid: Optional[bytes]) -> List[Tuple[str, int]]:
    """What each other tenant of a device occupies, by its title. Empty where nobody says."""
    try:
        view = None if uuid is None else _view(uuid)
    except errors.TidegateError:
        return []
    if view is None:
        return []
    tenants = [_tenant(view, row) for row in view.tenants[:view.tenant_count]]
    return [(tenant.title, tenant.occupied_bytes) for tenant in tenants
            if tenant.device == uuid and not is_self(tenant)]


def is_self(tenant: TenantStatus) -> bool:
    """Whether a row of the ledger is this process."""
    return (tenant.pid == os.getpid() and tenant.name == identity.name()
            and tenant.rank == identity.rank() and is_joined(tenant.device))


os.register_at_fork(after_in_child=_tenants.clear)
