# SPDX-License-Identifier: Apache-2.0
"""Puts ours in place of SGLang's, where a mode asks for it: the saver behind its adapter, the
scheduler's release and resume, or what measures its own. Imported only then."""

from __future__ import annotations

import contextlib
import functools
import sys
from types import ModuleType
from typing import Any, Callable, Iterator, List, Tuple

from .. import arrivals, library, modes, seams
from . import engine_process, sglang_process, sglang_scheduler, sglang_start, torch_memory_saver

ADAPTER = "sglang.srt.utils.torch_memory_saver_adapter"
MIXIN = "sglang.srt.managers.scheduler_update_weights_mixin"
SCHEDULER = "sglang.srt.managers.scheduler"
RUNNER = "sglang.srt.model_executor.model_runner"

_told_when_changed = False


class Saver:
    """What SGLang's adapter calls: our stand-in for torch_memory_saver, and where that has not what
    SGLang asks for, what SGLang would do without a saver."""

    enabled = True

    def region(self, tag: str, enable_cpu_backup: bool = False) -> Any:
        return torch_memory_saver.torch_memory_saver.region(tag, enable_cpu_backup)

    def disable(self) -> Any:
        return torch_memory_saver.torch_memory_saver.disable()

    def pause(self, tag: str) -> None:
        torch_memory_saver.torch_memory_saver.pause(tag)

    def resume(self, tag: str) -> None:
        torch_memory_saver.torch_memory_saver.resume(tag)

    @contextlib.contextmanager
    def cuda_graph(self, tag: str = "", **named: Any) -> Iterator[None]:
        """An ordinary graph: its memory stays."""
        import torch
        seams.warn_once("sglang cuda_graph", "SGLang's graphs keep their memory while it is "
                        f"released: {tag or 'cuda_graph'} does not sleep yet")
        named.pop("enable_cpu_backup", None)
        with torch.cuda.graph(**named):
            yield


class Package:
    """What the adapter calls of the package itself."""

    # SGLang's regions are pools of torch's, which need nothing preloaded.
    configure_subprocess = staticmethod(contextlib.nullcontext)


# Not names of the module: what is bound to ours in one is put back when the mode becomes off.
_ours = {"_memory_saver": Saver(), "torch_memory_saver": Package()}


def begin() -> None:
    """Installs what is loaded, and watches for the rest until the mode becomes off."""
    global _told_when_changed
    wanted: List[Tuple[str, Callable[[ModuleType], None]]] = [
        (ADAPTER, _install_adapter), (RUNNER, sglang_start.install)]
    if modes.mode() == modes.ON:
        library.functions()  # without it SGLang's own serves, in every process alike
        wanted += [(MIXIN, sglang_scheduler.install), (SCHEDULER, sglang_scheduler.install_loop)]
    for name, install in wanted:
        arrivals.expect(name, functools.partial(sglang_process.ENGINE.guarded, install))
    if not _told_when_changed:
        _told_when_changed = True
        modes.when_changed(_changed)


def _install_adapter(module: ModuleType) -> None:
    if modes.mode() == modes.ON:
        _install_saver(module)
    real = module._TorchMemorySaverAdapterReal
    for name in ("region", "pause", "resume"):
        around = _announcing if name == "region" else sglang_process.measuring
        engine_process.replace_method(f"sglang: {module.__name__}.{name}", real, name, around)


def _install_saver(module: ModuleType) -> None:
    """The names that the adapter asks at each call; they are not there without the real package,
    and then it refuses to be made."""
    for name, ours in _ours.items():
        if not hasattr(module, name):
            setattr(module, name, None)
        _install(module, module, name, ours)

    def create(enable: bool) -> Any:
        return (module._TorchMemorySaverAdapterReal() if enable
                else module._TorchMemorySaverAdapterNoop())

    base = module.TorchMemorySaverAdapter
    _install(module, base, "create", staticmethod(modes.passing(base.create, create)))


def _install(module: ModuleType, owner: Any, name: str, ours: Any) -> None:
    key = f"sglang: {module.__name__}.{name}"
    if seams.find(key) is None:
        seams.install_attribute(key, owner, name, ours)


def _announcing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def region(*arguments: Any, **named: Any) -> Any:
        sglang_process.announce()
        return original(*arguments, **named)

    return region


def _changed() -> None:
    """After off the seams are out. But memory that lies in our tags can be woken by us alone: then
    our saver stays, for as long as it lives."""
    if modes.mode() != modes.OFF:
        begin()
        return
    arrivals.forget()
    module = sys.modules.get(ADAPTER)
    if module is not None and torch_memory_saver.is_used():
        _install_saver(module)
        seams.warn_once("sglang stays", "off, but SGLang's memory lies in Tidegate's tags: its "
                        "release and resume stay Tidegate's until it is freed")
