# SPDX-License-Identifier: Apache-2.0
"""The card that this process computes on with PyTorch: the current device of the calling thread, as
torch tells it. In a thread that has never chosen one that is device 0, whatever the main thread
uses: call from a thread that has.

Nothing here starts CUDA. Before torch has started it, in a forked child of a process that has, and
on what is no NVIDIA card (ROCm, NPU, CPU), there is no card."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from typing import Any, Dict, Optional, Tuple

from . import devices, errors, library

OLDEST_TORCH = (2, 0)
_DRIVER_FILES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg", "/dev/nvmap")
_cards: Dict[int, "Card"] = {}


class Card:
    """One card of this process; index: torch's, within CUDA_VISIBLE_DEVICES."""

    def __init__(self, index: int, torch: Any) -> None:
        self.index = index
        self.torch = torch
        self._device: Optional[devices.Device] = None
        self._is_refused = False

    @property
    def title(self) -> str:
        """"GPU 3", by the number that nvidia-smi has for it where CUDA_VISIBLE_DEVICES tells it."""
        visible = [one.strip() for one in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        is_known = self.index < len(visible) and visible[self.index].isdigit()
        return f"GPU {visible[self.index] if is_known else self.index}"

    def driver_memory(self) -> Tuple[int, int]:
        """(free, total) bytes of the whole card. About 10 µs."""
        free, total = self.torch.cuda.mem_get_info(self.index)
        return int(free), int(total)

    def device(self) -> Optional[devices.Device]:
        """The library's device for it; None where the library does not open it. Opened the first
        time, which takes some ms."""
        if self._device is None and not self._is_refused:
            try:
                self._device = devices.device(f"cuda:{self.index}")
            except errors.TidegateError:
                self._is_refused = True
        return self._device

    def process_bytes(self) -> Optional[int]:
        """What the driver charges to this process on the card, context and libraries included; None
        where it does not tell. Some ms."""
        device = self.device()
        return None if device is None else device.process_bytes()

    @property
    def uuid(self) -> Optional[bytes]:
        device = self.device()
        return None if device is None else device.uuid


def torch_if_loaded() -> Any:
    """The module torch if this process has imported it, else None. Imports nothing."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "cuda") else None  # half imported: not yet


def current() -> Optional[Card]:
    """The card of the calling thread; None where there is none, or none yet. Two µs."""
    torch = torch_if_loaded()
    if torch is None or not torch.cuda.is_initialized() or _other_vendor(torch) is not None:
        return None
    index = int(torch.cuda.current_device())
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    if has_context is not None and not has_context(index):
        return None  # asking the driver about it would make a context
    return at(index, torch)


def at(index: int, torch: Any) -> Card:
    """The card of this number, on which torch has started."""
    card = _cards.get(index)
    if card is None or card.torch is not torch:
        card = _cards[index] = Card(index, torch)
    return card


def _other_vendor(torch: Any) -> Optional[str]:
    """What this torch is built for, if not for NVIDIA's cards."""
    version = torch.version
    if getattr(version, "hip", None):
        return "ROCm"
    return None if getattr(version, "cuda", None) else "the CPU"


def _check_age(torch: Any) -> None:
    told = re.match(r"(\d+)\.(\d+)", str(torch.__version__))
    if told is not None and tuple(map(int, told.groups())) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise errors.TorchTooOld(0, f"this is PyTorch {torch.__version__}, whose allocator does "
                                 f"not tell what is needed: {oldest} or newer does")


def _is_installed() -> bool:
    """Whether torch could be imported. What stands in for it, as tests and tools for documents have
    it, has no specification to find, and is none."""
    try:
        return importlib.util.find_spec("torch") is not None
    except ValueError:
        return False


def require() -> Optional[Card]:
    """The card for a call that the user wrote. None: torch could use one, and has not yet, so
    nothing is held. Raises TorchMissing, TorchTooOld or NoDevice where there can be none."""
    torch = torch_if_loaded()
    if torch is None:
        if not _is_installed():
            raise errors.TorchMissing(0, "PyTorch is not installed in this environment "
                                      f"({sys.prefix}): pip install torch")
        return None
    _check_age(torch)
    card = current()
    if card is not None:
        return card
    vendor = _other_vendor(torch)
    if vendor is not None:
        raise errors.NoDevice(0, f"this PyTorch ({torch.__version__}) is built for {vendor}: "
                              "Tidegate acts on NVIDIA's cards alone. Guard the call, or leave it "
                              "to a seam, which steps aside by itself")
    if torch.cuda._is_in_bad_fork():
        raise errors.Forked(0, "this is a forked child of a process that uses CUDA, and can use no "
                            "card: start it by spawn")
    if not torch.cuda.is_initialized() and not any(map(os.path.exists, _DRIVER_FILES)):
        raise errors.NoDevice(0, "there is no NVIDIA card on this machine (no driver's files in "
                              "/dev): nothing can be given back. In a container, pass the cards "
                              "in: --gpus all")
    return None


def is_usable() -> bool:
    """For seams, which are silent: whether there is a card now and a library to act with."""
    return current() is not None and library.is_usable()


os.register_at_fork(after_in_child=_cards.clear)
