# SPDX-License-Identifier: Apache-2.0
"""Tidegate: GPU memory that flows between the programs that share a card.

Importing changes nothing, starts nothing, and needs neither PyTorch nor a GPU."""

from .errors import (BadValue, Busy, DeviceFailed, Forked, HostMemory, LedgerFailed, LibraryMissing,
                     NoDevice, TidegateError, TidegateWouldNotFit, TorchMissing, TorchTooOld,
                     UnknownTag)
from .modes import mode, off, set_mode
from .receipts import Receipt

__version__ = "0.1.0"

__all__ = [
    "BadValue", "Busy", "DeviceFailed", "Forked", "HostMemory", "LedgerFailed", "LibraryMissing",
    "NoDevice", "Receipt", "TidegateError", "TidegateWouldNotFit", "TorchMissing", "TorchTooOld",
    "UnknownTag", "mode", "off", "set_mode",
]
