# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions. Each carries one sentence that says what to do, and the status
of the library behind it (0 where Python itself decided). All derive from TidegateError.

The codes are those of tidegate/errors.def, under their names there."""

from __future__ import annotations

import errno
from typing import Dict, Type

CODES: Dict[str, int] = {
    "TG_EFORMAT": -4097,
    "TG_ETRUNCATED": -4098,
    "TG_EUNSAFE": -4099,
    "TG_ELIMIT": -4100,
    "TG_EPATTERN": -4101,
    "TG_EDEVICE": -4102,
    "TG_EDEVICEMEMORY": -4103,
    "TG_EBUSY": -4104,
    "TG_ECAPTURE": -4105,
    "TG_EBROKEN": -4106,
    "TG_ENOFIT": -4107,
    "TG_ENEVERFITS": -4108,
    "TG_ECYCLE": -4109,
    "TG_EHELD": -4110,
    "TG_EPOISONED": -4111,
    "TG_EREPLACED": -4112,
    "TG_EFORKED": -4113,
    "TG_EMOTION": -4114,
    "TG_EFULL": -4115,
    "TG_ELAYOUT": -4116,
    "TG_EHOSTMEMORY": -4117,
    "TG_ECONTENT": -4118,
    "TG_EASLEEP": -4119,
    "TG_ESTARTING": -4120,
    "TG_EGROUP": -4121,
}


class TidegateError(RuntimeError):
    """status: the library's negative code, or 0; text: the sentence; native: errno or the driver's
    own code behind it, or 0. A RuntimeError, as torch's are: who calls a stand-in catches it so."""

    def __init__(self, status: int, text: str, native: int = 0) -> None:
        super().__init__(status, text, native)
        self.status = status
        self.text = text
        self.native = native

    def __str__(self) -> str:
        return self.text


class LibraryMissing(TidegateError):
    """libtidegate.so is not there, or cannot be used."""


class TorchMissing(TidegateError):
    """The call needs PyTorch, and it is not installed or cannot be imported."""


class TorchTooOld(TidegateError):
    """This PyTorch has not what the call needs."""


class NoDevice(TidegateError):
    """There is no such device, or the process has none yet."""


class BadValue(TidegateError, ValueError):
    """An argument that no call can take."""


class UnknownTag(TidegateError, KeyError):
    """A tag that nobody opened."""


class TidegateWouldNotFit(TidegateError):
    """The memory could not be had, and nothing has changed. The sentence is the account: who holds
    it, and what would help. asked_bytes and available_bytes are its two figures."""

    asked_bytes = 0
    available_bytes = 0


class DeviceFailed(TidegateError):
    """The driver refused, or has failed for good."""


class Busy(TidegateError):
    """The device's work, or another operation, has not ended in time. Try again later."""


class LedgerFailed(TidegateError):
    """The node's ledger cannot be used now."""


class Forked(TidegateError):
    """A forked child holds nothing of its parent's: begin anew, or start processes by spawn."""


class HostMemory(TidegateError):
    """Not enough host memory for the copies."""


_KINDS: Dict[int, Type[TidegateError]] = {
    CODES["TG_EDEVICE"]: DeviceFailed,
    CODES["TG_EBROKEN"]: DeviceFailed,
    CODES["TG_EDEVICEMEMORY"]: TidegateWouldNotFit,
    CODES["TG_ENOFIT"]: TidegateWouldNotFit,
    CODES["TG_ENEVERFITS"]: TidegateWouldNotFit,
    CODES["TG_ECYCLE"]: TidegateWouldNotFit,
    CODES["TG_EBUSY"]: Busy,
    CODES["TG_ECAPTURE"]: Busy,
    CODES["TG_ESTARTING"]: Busy,
    -errno.EALREADY: Busy,
    CODES["TG_EHELD"]: LedgerFailed,
    CODES["TG_EPOISONED"]: LedgerFailed,
    CODES["TG_EREPLACED"]: LedgerFailed,
    CODES["TG_EMOTION"]: LedgerFailed,
    CODES["TG_EFULL"]: LedgerFailed,
    CODES["TG_ELAYOUT"]: LedgerFailed,
    CODES["TG_EFORKED"]: Forked,
    CODES["TG_EHOSTMEMORY"]: HostMemory,
    -errno.EINVAL: BadValue,
    -errno.ENODEV: NoDevice,
}


def from_status(status: int, text: str, native: int = 0) -> TidegateError:
    """The exception for what a function of the library returned."""
    return _KINDS.get(status, TidegateError)(status, text, native)
