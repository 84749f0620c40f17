# SPDX-License-Identifier: Apache-2.0
"""Devices of the library, opened once in a process and kept: by URI, as tidegate/device.h has them.
Those of GPUs are the process's own (tidegate/process.h), which a preload uses as well.

A forked child has none of its parent's: it opens its own."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Dict, Optional, Tuple

from . import abi, checks, errors, library
from .locks import ForkSafeLock

MEANING = "\"cuda:0\", or \"host:capacity=1GiB\" for memory of this machine that stands for one"

_lock = ForkSafeLock()
_opened: Dict[str, "Device"] = {}


def _number(uri: str) -> Optional[int]:
    """Of the GPU, if the process has a device of its own for it."""
    found = re.fullmatch(r"cuda:(0|[1-9][0-9]?)", uri)
    number = abi.LEDGER_DEVICES if found is None else int(found.group(1))
    return number if number < abi.LEDGER_DEVICES else None


class Device:
    """One open device; lent for the life of the process. index: of the GPU whose device is the
    process's own; None: of what was opened here."""

    def __init__(self, uri: str) -> None:
        handle, self.index = c_void_p(), _number(uri)
        if self.index is None:
            library.call("tg_device_open", checks.text_bytes("device", uri, MEANING), byref(handle))
            self.index = _number(library.call("tg_device_uri", handle).decode())
            if self.index is not None:  # "auto" has found a GPU
                library.call("tg_device_close", handle)
        if self.index is not None:
            library.call("tg_process_device", self.index, byref(handle))
        self.handle = handle
        self.uri: str = library.call("tg_device_uri", handle).decode()
        self.ops: Any = library.call("tg_device_ops", handle).contents
        info = abi.tg_device_info()
        self._check(self.ops.info(handle, byref(info)))
        self.uuid = bytes(info.uuid)
        self.name = library.text(info.name)

    @staticmethod
    def _check(status: int) -> None:
        if status < 0:
            raise library.last_error(status)

    def memory(self) -> Tuple[int, int]:
        """(free, total) bytes, as the driver says of all programs together."""
        free, total = c_uint64(), c_uint64()
        self._check(self.ops.memory(self.handle, byref(free), byref(total)))
        return free.value, total.value

    def wait_for_work(self, timeout_ms: int) -> None:
        """Until what this process has given the device so far has ended. Raises Busy."""
        fence = abi.tg_fence()
        self._check(self.ops.fence(self.handle, None, byref(fence)))
        self._check(self.ops.wait(self.handle, byref(fence), timeout_ms))

    def process_bytes(self) -> Optional[int]:
        """What the driver charges to this process there; None where it does not tell."""
        own = c_uint64()
        return own.value if self.ops.process(self.handle, byref(own)) == 0 else None

    def gauge(self) -> abi.tg_gauge:
        """For a tenant of the ledger: the device's own function, which needs no Python."""
        return abi.tg_gauge(ctypes.cast(self.ops.memory, abi.gauge_fn), self.handle)


def device(uri: str) -> Device:
    """The device of this URI, opened the first time. Raises what opening raises: BadValue for a URI
    that is none, NoDevice, LibraryMissing."""
    if not isinstance(uri, str) or not uri:
        raise errors.BadValue(0, f"device={uri!r}: {MEANING}")
    with _lock:
        if uri not in _opened:
            _opened[uri] = Device(uri)
        return _opened[uri]


os.register_at_fork(after_in_child=_opened.clear)
