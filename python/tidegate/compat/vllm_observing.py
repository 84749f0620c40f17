# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleeps and wakes, measured and written down: whoever does them, vLLM's own allocator or
ours. A line of JSON for each; on stderr the first of a kind, and those that take or give otherwise
than the last."""

from __future__ import annotations

import functools
import time
from types import ModuleType
from typing import Any, Callable, Dict, List, Sequence, TypeVar

from .. import figures, observing, seams
from . import engine_process, vllm_process

SLEEP = "vllm sleep"
WAKE = "vllm wake_up"
_WORTH_SAYING = 0.1  # a change by this share

_Result = TypeVar("_Result")
_said: Dict[str, int] = {}


def install(module: ModuleType) -> None:
    """Around vLLM's own, which does what it always does."""
    for name, around in (("sleep", _around_sleep), ("wake_up", _around_wake)):
        key = f"vllm: {module.__name__}.CuMemAllocator.{name}"
        engine_process.replace_method(key, module.CuMemAllocator, name, around)


def _around_sleep(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sleep(self: Any, offload_tags: Any = None) -> Any:
        saved = ("default",) if offload_tags is None else offload_tags
        return measured(SLEEP, _names(saved), lambda: original(self, offload_tags))

    return sleep


def _around_wake(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wake_up(self: Any, tags: Any = None) -> Any:
        return measured(WAKE, _names(tags), lambda: original(self, tags))

    return wake_up


def _names(said: Any) -> Sequence[str]:
    """What is written down of an argument that is vLLM's to judge. A generator is left alone."""
    if isinstance(said, str):
        return (said,)
    return [str(name) for name in said] if isinstance(said, (list, tuple, set, frozenset)) else ()


def measured(kind: str, names: Sequence[str], call: Callable[[], _Result]) -> _Result:
    """Runs one sleep or wake, and records it. What it raises is raised."""
    vllm_process.announce("its sleeps and wakes are measured")
    before, began = observing.measure(), time.perf_counter()
    result = call()
    seconds = time.perf_counter() - began
    one = observing.record_handover(kind, names, before, observing.measure(), seconds, None,
                                    is_said=False)
    if one is not None and _is_new(kind, names, one.driver_bytes):
        seams.announce(_line(kind, list(names), one.driver_bytes, seconds))
    return result


def _is_new(kind: str, names: Sequence[str], driver_bytes: int) -> bool:
    key = f"{kind} {' '.join(names)}"
    last = _said.get(key)
    if last is not None and abs(driver_bytes - last) <= _WORTH_SAYING * max(abs(last), 1 << 30):
        return False
    _said[key] = driver_bytes
    return True


def _line(kind: str, names: List[str], driver_bytes: int, seconds: float) -> str:
    if kind == SLEEP:
        what = f"saving {', '.join(names)}" if names else "saving nothing"
        return (f"{kind} {what}: the driver got {figures.size(driver_bytes)} in "
                f"{figures.seconds(seconds)}")
    return (f"{kind} {', '.join(names) or 'all'}: took {figures.size(-driver_bytes)} in "
            f"{figures.seconds(seconds)}")
