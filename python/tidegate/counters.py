# SPDX-License-Identifier: Apache-2.0
"""What is asked of torch's allocator on this process's device: counters, the driver's free memory,
snapshots, and its history. All in one place, since half of it are names that torch may change.

`find` answers None until the program itself has imported torch and started CUDA: nothing here does
either. Other errors are torch's own and pass through."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, ContextManager, Dict, List, NamedTuple, Optional, Tuple

from . import torch_sources

LIVE = "active_allocated"


class Measure(NamedTuple):
    """One moment, in bytes. Free and total are the driver's, of the whole device."""

    allocated: int
    reserved: int
    driver_free: int
    driver_total: int

    @property
    def driver_used(self) -> int:
        return self.driver_total - self.driver_free


class Counters:
    """torch's allocator on one device."""

    def __init__(self, torch: Any, device: int) -> None:
        self.torch = torch
        self.device = device
        self.stats = torch._C._cuda_memoryStats
        self._memory_info = torch.cuda.cudart().cudaMemGetInfo

    def read(self) -> Tuple[int, int]:
        """(allocated, reserved) bytes: one call of torch."""
        now = self.stats(self.device)
        allocated = (now["allocated_bytes"]["all"]["current"]
                     - torch_sources.plugged_bytes(self.device))
        return allocated, now["reserved_bytes"]["all"]["current"]

    def driver(self) -> Tuple[int, int]:
        """(free, total) bytes of the device."""
        free, total = self._memory_info(self.device)
        return free, total

    def measure(self) -> Measure:
        """Both at once."""
        return Measure(*self.read(), *self.driver())

    def snapshot(self) -> Dict[str, Any]:
        """The allocator's segments, blocks and history, as torch dumps them."""
        taken: Dict[str, Any] = self.torch.cuda.memory._snapshot()
        return taken

    def segments(self, snapshot: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Those of this device."""
        return torch_sources.without_plugs(self.device, [
            one for one in snapshot["segments"] if one.get("device", 0) == self.device])

    # ---- history

    def is_history_on(self) -> bool:
        """Whether somebody records it. Where this torch cannot tell, what it recorded does."""
        ask = getattr(self.torch._C, "_cuda_isHistoryEnabled", None)
        return bool(ask()) if ask is not None else has_history(self.snapshot())

    def begin_history(self) -> None:
        """Records a stack for each block that lives: the least that torch offers."""
        self.torch.cuda.memory._record_memory_history("state", context="state", stacks="python")

    def end_history(self) -> None:
        """Records no more; what blocks have of stacks they keep."""
        self.torch.cuda.memory._record_memory_history(None)

    # ---- tensors

    def tensor_types(self) -> Tuple[type, ...]:
        """The classes whose objects are tensors or their storages."""
        storage = getattr(self.torch, "UntypedStorage", None)
        return (self.torch.Tensor,) if storage is None else (self.torch.Tensor, storage)

    def without_overrides(self) -> ContextManager[Any]:
        """Inside it, `address_of` runs no code of classes derived from Tensor."""
        disable = getattr(self.torch._C, "DisableTorchFunctionSubclass", None)
        return contextlib.nullcontext() if disable is None else disable()

    def address_of(self, tensor: Any) -> Optional[int]:
        """Where a tensor's data lies; None for one without."""
        kind = self.torch._C.TensorBase
        try:
            if issubclass(type(tensor), kind):
                return int(kind.data_ptr(tensor)) if kind.is_cuda.__get__(tensor) else None
            return int(self.torch.UntypedStorage.data_ptr(tensor))
        except Exception:  # sparse, meta, fake: torch has an error for each
            return None


def find() -> Optional[Counters]:
    """The counters of this process's device, once the program has started CUDA."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    try:
        if torch.version.hip is not None or not torch.cuda.is_initialized():
            return None
        return Counters(torch, _device_in_use(torch))
    except AttributeError:  # half imported, or built without CUDA
        return None


def _device_in_use(torch: Any) -> int:
    """The device that holds most of torch's memory. In a thread that has never chosen one, such as
    that of an event loop, the current one is 0 whatever the program uses."""
    current = int(torch._C._cuda_getDevice())
    count = torch.cuda.device_count()
    if count == 1:
        return current

    def reserved(device: int) -> Tuple[int, bool]:
        return Counters(torch, device).read()[1], device == current

    return max((device for device in range(count) if torch._C._cuda_hasPrimaryContext(device)),
               key=reserved, default=current)


def has_history(snapshot: Dict[str, Any]) -> bool:
    """Whether events or stacks were recorded. What `begin_history` asks for keeps one event."""
    if any(len(trace) > 1 for trace in snapshot.get("device_traces", ())):
        return True
    return any(block.get("frames") for segment in snapshot["segments"]
               for block in segment["blocks"])


def returnable_bytes(segments: List[Dict[str, Any]]) -> int:
    """What one `empty_cache` gives back of these segments. It waits for the streams first, so what
    the program has freed counts as free."""
    return sum(torch_sources.returnable(dict(segment, blocks=_settled(segment["blocks"])))
               for segment in segments)


def _settled(blocks: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The blocks once all streams are done: what is not live is free, and neighbours are one."""
    settled: List[Dict[str, Any]] = []
    for block in blocks:
        if block["state"] == LIVE:
            settled.append(block)
        elif settled and settled[-1]["state"] == "inactive":
            settled[-1]["size"] += block["size"]
        else:
            settled.append({"state": "inactive", "size": block["size"]})
    return settled
