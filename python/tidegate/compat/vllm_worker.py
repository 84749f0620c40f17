# SPDX-License-Identifier: Apache-2.0
"""vLLM's GPU worker, where it measures the card's free memory: while it starts up, that of nobody
may change; while it sleeps, none may be taken. Peers keep still meanwhile, and what the worker
itself does is as ever.

A start-up is several calls from outside: the mark begins before the worker's first look at the
card, and ends with the last call of the start-up, with one that fails, and at the first sleep or
wake, whichever comes first."""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType
from typing import Any, Callable, Optional

from .. import card, modes, seams, tenancy
from . import engine_process, engine_start, vllm_process

FIRST = "init_worker_distributed_environment"  # the look follows it
STEPS = ("init_device", "load_model", "determine_available_memory", "initialize_from_config")
LAST = "compile_or_warm_up_model"


def _device() -> Optional[str]:
    """The device that this thread computes on; None where that is no card of ours, or none yet."""
    torch = card.torch_if_loaded()
    with contextlib.suppress(Exception):  # whatever torch has become, vLLM's own call goes on
        if torch is not None and torch.cuda.is_initialized() and card.current() is None:
            torch.cuda.synchronize()  # makes the context, as vLLM does next
        where = card.current()
        return None if where is None else f"cuda:{where.index}"
    return None


start = engine_start.Start(vllm_process.ENGINE, _device)


def install(module: ModuleType) -> None:
    """Replaces the worker's functions. What is missing is named, the others are replaced."""
    missing = [name for name in (FIRST,) if not hasattr(module, name)]
    if not missing:
        _replace_function(module, FIRST, start.begins_after)
    arounds = {**dict.fromkeys(STEPS, _step), "load_model": _loading, LAST: start.ends_with,
               "sleep": _sleep}
    for name, around in arounds.items():
        if name in vars(module.Worker):
            key = f"vllm: {module.__name__}.Worker.{name}"
            engine_process.replace_method(key, module.Worker, name, around)
        else:
            missing.append(name)
    if missing:
        seams.warn_once("vllm worker", f"vLLM's worker has no {', '.join(missing)} here: what "
                        "happens there is not marked for peers")


def _replace_function(module: ModuleType, name: str, around: engine_process.Around) -> None:
    key = f"vllm: {module.__name__}.{name}"
    if seams.find(key) is None:
        original = getattr(module, name)
        seams.install_function(key, original, modes.passing(original, around(original)))


# ---- around vLLM's calls ------------------------------------------------------------------------

def _step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(*arguments: Any, **named: Any) -> Any:
        try:
            return original(*arguments, **named)
        except BaseException:
            start.end()
            raise

    return step


def _loading(original: Callable[..., Any]) -> Callable[..., Any]:
    return start.begins_with(_step(original))


def _sleep(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sleep(*arguments: Any, **named: Any) -> Any:
        start.end()
        with contextlib.ExitStack() as mark:
            if _device() is not None:
                with engine_start.harmless(vllm_process.ENGINE.title, "sleep"):
                    mark.enter_context(tenancy.giving(_device()))
            return original(*arguments, **named)

    return sleep
