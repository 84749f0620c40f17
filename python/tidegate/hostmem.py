# SPDX-License-Identifier: Apache-2.0
"""Host memory of tidegate/hostmem.h for Python: exact, charged in the node's ledger, pinned once.

What looks into a mapping keeps it: it is given back when neither its owner nor a view of it is
left. A forked child has no mapping of its parent's; what it drops is not given back twice."""

from __future__ import annotations

import ctypes
import errno
import weakref
from ctypes import byref, c_uint8, c_void_p
from typing import Any, Optional

from . import abi, devices, errors, library, tenancy


class View(ctypes.Array):
    """Bytes of a mapping, as whatever reads buffers takes them."""

    _type_ = c_uint8
    _length_ = 0  # each view is of a class with its own
    mapping: "Mapping"


class Mapping:
    """One mapping. tenant None: nobody is charged, the budget is asked all the same. Raises
    HostMemory."""

    def __init__(self, tenant: Optional[tenancy.Tenant], tag: str, size_bytes: int) -> None:
        handle, info = c_void_p(), abi.tg_hostmem_info()
        _call("tg_hostmem_alloc", None if tenant is None else tenant.handle, tag.encode(),
              size_bytes, byref(handle))
        library.call("tg_hostmem_info", handle, byref(info))
        self._handle = handle
        self.address: int = info.bytes
        self.size_bytes: int = info.size_bytes
        self.is_pinned = False
        # The tenant is lent to the library until then.
        self._free = weakref.finalize(self, _free, handle, tenant)
        self._free.atexit = False  # type: ignore[misc] # the kernel takes all

    def pin(self, device: devices.Device) -> None:
        """Has the kernel give every page, by several threads at the device's NUMA node, and
        registers them with the device. Raises HostMemory, and DeviceFailed: it is as any other
        memory then."""
        _call("tg_hostmem_pin", self._handle, device.handle)
        self.is_pinned = True

    def view(self) -> Any:
        """All of its bytes. The view, and what is made of it, keeps the mapping."""
        kind: Any = type("View", (View,), {"_length_": self.size_bytes})
        made = kind.from_address(self.address)
        made.mapping = self
        return made

    def has(self, address: int) -> bool:
        return self.address <= address < self.address + self.size_bytes


def _call(name: str, *arguments: Any) -> None:
    """What the kernel has not got is the same to a caller as what the budget refuses."""
    try:
        library.call(name, *arguments)
    except errors.TidegateError as problem:
        if problem.status == -errno.ENOMEM:
            raise errors.HostMemory(problem.status, problem.text, problem.native) from None
        raise


def _free(handle: c_void_p, tenant: Optional[tenancy.Tenant]) -> None:
    library.functions()["tg_hostmem_free"](handle)


def is_broken(problem: errors.TidegateError) -> bool:
    """Whether a device has failed for good, rather than refused one thing."""
    return problem.status == errors.CODES["TG_EBROKEN"]
