# SPDX-License-Identifier: Apache-2.0
"""Tidegate: GPU memory that flows between the programs that share a card.

    tidegate.reclaim(7 << 30)     # memory back from torch's caches, and a receipt of it
    tidegate.status()             # who holds what of this machine's cards
    tidegate.tag("kv_cache")      # memory that sleeps and wakes
    with tidegate.starting(): …   # peers keep still while an engine sizes itself
    tidegate.HostCopies("adam")   # torch's tensors in exact host memory, at the link's speed
    tidegate.trim()               # what a stock program's cache keeps between live tensors
    tidegate.step()               # the end of a step: does memory grow, and who keeps it?

Importing changes nothing, starts nothing, and needs neither PyTorch nor a GPU."""

from . import preloaded as _preloaded  # follows the mode
from .errors import (BadValue, Busy, DeviceFailed, Forked, HostMemory, LedgerFailed, LibraryMissing,
                     NoDevice, TidegateError, TidegateWouldNotFit, TorchMissing, TorchTooOld,
                     UnknownTag)
from .hostcopies import HostCopies
from .library import VERSION as __version__
from .modes import mode, off, set_mode
from .receipts import Receipt
from .reclaiming import reclaim
from .tags import prepare, repack, sleep, tag, wake
from .tenancy import starting, status
from .trimming import refill, trim
from .watching import step

__all__ = [
    "BadValue", "Busy", "DeviceFailed", "Forked", "HostCopies", "HostMemory", "LedgerFailed",
    "LibraryMissing", "NoDevice", "Receipt", "TidegateError", "TidegateWouldNotFit", "TorchMissing",
    "TorchTooOld", "UnknownTag", "__version__", "mode", "off", "prepare", "reclaim", "refill",
    "repack", "set_mode", "sleep", "starting", "status", "step", "tag", "trim", "wake",
]
