# SPDX-License-Identifier: Apache-2.0
"""Puts our functions in place of vLLM's, where a mode asks for it: its allocator, its worker's
measuring, or what measures its own. Imported only then."""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any, Callable, List, Tuple

from .. import arrivals, card, modes, seams
from ..locks import ForkSafeLock
from . import vllm_allocator, vllm_observing, vllm_process, vllm_worker

ALLOCATORS = "vllm.device_allocator"
CUMEM = "vllm.device_allocator.cumem"
BACKENDS = "vllm.device_allocator.sleep_mode_backend"
WORKER = "vllm.v1.worker.gpu_worker"
NAME = "tidegate"  # of our sleep-mode backend

_GET = f"vllm: {ALLOCATORS}.get_mem_allocator_instance"
_GET_CLASS = f"vllm: {CUMEM}.CuMemAllocator.get_instance"


class _Choice:
    """Whose allocator this process uses: settled at the first call, for tensors lie in it."""

    def __init__(self) -> None:
        self.is_settled = False
        self.is_ours = False
        self.is_expected = False


_choice = _Choice()
_lock = ForkSafeLock()


# ---- installing ---------------------------------------------------------------------------------

def begin() -> None:
    """Installs what is loaded, and watches for the rest until the mode becomes off."""
    arrived: List[Tuple[str, Callable[[ModuleType], None]]] = [(WORKER, vllm_worker.install)]
    if modes.mode() == modes.ON:
        arrived += [(ALLOCATORS, _install_function), (CUMEM, _install_class),
                    (BACKENDS, _install_backend)]
    else:
        arrived.append((CUMEM, vllm_observing.install))
    for name, install in arrived:
        arrivals.expect(name, functools.partial(vllm_process.ENGINE.guarded, install))
    if not _choice.is_expected:
        _choice.is_expected = True
        modes.when_changed(_changed)


def _install_function(module: ModuleType) -> None:
    if seams.find(_GET) is None:
        original = module.get_mem_allocator_instance
        seams.install_function(_GET, original, _instead_of(original))


def _install_class(module: ModuleType) -> None:
    """For callers that go to the class, as older versions do."""
    if seams.find(_GET_CLASS) is None:
        original = module.CuMemAllocator.get_instance
        seams.install_attribute(_GET_CLASS, module.CuMemAllocator, "get_instance",
                                staticmethod(_instead_of(original)))


def _install_backend(module: ModuleType) -> None:
    """Where this vLLM chooses among sleep-mode backends, ours is one of them, by name."""
    factory = module.SleepModeBackendFactory
    try:
        factory.register_backend(NAME, "tidegate.compat.vllm_backend", "TidegateBackend")
    except ValueError:  # registered before
        pass


def _instead_of(original: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(original)
    def get_instance() -> Any:
        where = None if _choice.is_settled else card.current()
        if where is not None and modes.mode() == modes.ON:
            _settle(where)
        if _choice.is_ours and (modes.mode() == modes.ON or ours().is_used):
            return ours()
        return original()

    return get_instance


# ---- choosing -----------------------------------------------------------------------------------

def ours() -> vllm_allocator.Allocator:
    """The allocator that stands in for vLLM's."""
    return vllm_allocator.Allocator.get_instance()


def _settle(where: card.Card) -> None:
    """Once. Other threads wait for it: two that got different allocators would lose what lies in
    one of them."""
    with _lock:
        if _choice.is_settled:
            return
        why_not = _why_not()
        _choice.is_ours = not why_not
        _choice.is_settled = True
    if why_not:
        vllm_process.announce(f"sleep and wake stay vLLM's own: {why_not}")
        return
    vllm_process.announce("sleep and wake are Tidegate's")
    vllm_process.ENGINE.note(where, "our allocator")


def _why_not() -> str:
    """"" where ours can serve."""
    own = getattr(sys.modules.get(CUMEM), "CuMemAllocator", None)
    if getattr(getattr(own, "instance", None), "pointer_to_data", None):
        return "memory lies in it already"
    try:
        return vllm_allocator.why_not()
    except Exception as problem:  # whatever it is, vLLM's own serves
        return str(problem)


def _changed() -> None:
    """After off the seams are out. But memory that lies in our tags can be woken by us alone: then
    we stay, for as long as it lives."""
    if modes.mode() != modes.OFF:
        begin()
        return
    arrivals.forget()
    if _choice.is_ours and ours().is_used:
        for name, install in ((ALLOCATORS, _install_function), (CUMEM, _install_class)):
            if name in sys.modules:
                install(sys.modules[name])
        seams.warn_once("vllm stays", "off, but vLLM's memory lies in Tidegate's tags: its sleep "
                        "and wake stay Tidegate's until it is freed")
