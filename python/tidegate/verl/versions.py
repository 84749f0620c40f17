# SPDX-License-Identifier: Apache-2.0
"""Where verl's memory passes between trainer and rollout engine, for each version: one table.

A row names a function by module and attribute, from the version that has it to the one that no
longer has it, and what calls it becomes (its seam). Rows of one seam are alternatives: a process
loads the modules of its role. `tidegate.verl` replaces what it finds, and says what it misses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional, Tuple

Version = Tuple[int, ...]

HAND_OVER = "hand-over"  # torch's cache is given back
ALLOCATOR = "allocator settings"  # expandable segments on and off
RESUME = "resume"  # the trainer asks the engine to wake tags
STEP = "step"  # weights are handed to the engine, once a step
SERVER = "server"  # the engine's server falls asleep and wakes
OFFLOAD = "offload"  # models and optimizers go to host memory and come back
ASKED = (OFFLOAD,)  # seams that only a user's own word brings

OLDEST: Version = (0, 6, 1)
NEWEST_TRIED: Version = (0, 9, 1)
ENTRY_POINTS_SINCE: Version = (0, 9)
PLATFORM_SINCE: Version = (0, 9)
OFFLOADS_SINCE: Version = (0, 7, 1)  # Megatron's functions took other arguments before
PLATFORM_MODULE = "verl.plugin.platform.platform_cuda"


@dataclass(frozen=True)
class Target:
    """until None: the newest has it. together: why trainer and engine share the process, so that
    this seam only looks, or ""."""

    seam: str
    module: str
    attribute: str
    since: Version = OLDEST
    until: Optional[Version] = None
    together: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.attribute}"

    @property
    def engine(self) -> str:
        """Of which engine its module is, "" where of none."""
        named = re.search(r"\.(sglang|vllm)_rollout\.", self.module)
        return "" if named is None else named.group(1)


_ONE_PROCESS = "vLLM runs in the trainer's process"
_SGLANG = "verl.workers.rollout.sglang_rollout."
_VLLM = "verl.workers.rollout.vllm_rollout."
_WORKER = "ActorRolloutRefWorker."

_MOVERS = {
    "fsdp_utils": ("offload_fsdp_model_to_cpu", "load_fsdp_model_to_gpu",
                   "offload_fsdp_optimizer", "load_fsdp_optimizer"),
    "megatron_utils": ("offload_megatron_model_to_cpu", "load_megatron_model_to_gpu",
                       "offload_megatron_optimizer", "load_megatron_optimizer"),
}

TARGETS: Tuple[Target, ...] = (
    Target(HAND_OVER, "verl.utils.memory_utils", "aggressive_empty_cache"),
    Target(HAND_OVER, PLATFORM_MODULE, "PlatformCUDA.device_module", since=PLATFORM_SINCE),
    Target(ALLOCATOR, PLATFORM_MODULE, "PlatformCUDA.set_allocator_settings",
           since=PLATFORM_SINCE),
    Target(ALLOCATOR, "verl.utils.device", "set_expandable_segments", until=PLATFORM_SINCE),
    Target(RESUME, _SGLANG + "sglang_rollout", "ServerAdapter.resume"),
    Target(RESUME, _SGLANG + "sglang_rollout", "SGLangRollout.resume", until=(0, 7)),
    Target(RESUME, _VLLM + "vllm_rollout_spmd", "vLLMRollout.resume", until=(0, 7),
           together=_ONE_PROCESS),
    Target(RESUME, _VLLM + "vllm_rollout_spmd", "vLLMAsyncRollout.resume", until=(0, 7),
           together=_ONE_PROCESS),
    Target(RESUME, _VLLM + "vllm_rollout", "vLLMAsyncRollout.resume", since=(0, 7),
           until=(0, 7, 1), together=_ONE_PROCESS),
    Target(RESUME, _VLLM + "vllm_rollout", "ServerAdapter.resume", since=(0, 7, 1)),
    Target(STEP, "verl.workers.fsdp_workers", _WORKER + "rollout_mode", until=(0, 8)),
    Target(STEP, "verl.workers.megatron_workers", _WORKER + "rollout_mode", until=(0, 8)),
    Target(STEP, "verl.workers.engine_workers", _WORKER + "wake_up", since=(0, 7),
           until=(0, 7, 1)),
    Target(STEP, "verl.workers.engine_workers", _WORKER + "update_weights", since=(0, 7, 1)),
    Target(SERVER, _SGLANG + "async_sglang_server", "SGLangHttpServer.sleep", since=(0, 7, 1)),
    Target(SERVER, _SGLANG + "async_sglang_server", "SGLangHttpServer.wake_up",
           since=(0, 7, 1)),
    Target(SERVER, _VLLM + "vllm_async_server", "vLLMHttpServerBase.sleep", until=(0, 7, 1)),
    Target(SERVER, _VLLM + "vllm_async_server", "vLLMHttpServerBase.wake_up", until=(0, 7, 1)),
    Target(SERVER, _VLLM + "vllm_async_server", "vLLMHttpServer.sleep", since=(0, 7, 1)),
    Target(SERVER, _VLLM + "vllm_async_server", "vLLMHttpServer.wake_up", since=(0, 7, 1)),
    *(Target(OFFLOAD, "verl.utils." + module, name, since=OFFLOADS_SINCE)
      for module, names in _MOVERS.items() for name in names),
)


def parse(text: str) -> Version:
    """"0.9.1" and "0.10.0.dev" as numbers; what is no number ends it."""
    parts = []
    for part in text.split("."):
        digits = re.match(r"[0-9]+", part)
        if digits is None:
            break
        parts.append(int(digits.group()))
    return tuple(parts)


def targets(version: Version, asked: Tuple[str, ...] = ()) -> Tuple[Target, ...]:
    """What this version of verl should have, none for one older than the oldest. asked: which of
    the seams in ASKED are wanted, too."""
    if version < OLDEST:
        return ()
    return tuple(target for target in TARGETS
                 if (target.seam not in ASKED or target.seam in asked)
                 and target.since <= version and (target.until is None or version < target.until))
