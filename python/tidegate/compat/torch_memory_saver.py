# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's interface, in its "torch" hook mode, over tags that sleep and wake.

    from tidegate.compat.torch_memory_saver import torch_memory_saver

or, for programs that import it by its own name, `install()` before they do. What differs from the
original stands in doc/guide/torch_memory_saver.md. Two settings of one tag there are two tags here,
NAME and NAME.kept (saved to the host), that are paused and resumed together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import threading
import types
from typing import Any, Dict, Iterator, List, Optional

from .. import errors, patience, pools, seams, tags

_PLAIN = re.compile(r"(?!tms-)[A-Za-z0-9_-]{1,26}")  # 31 with what is put behind it
_KEPT = ".kept"  # no plain name has a dot, so no two tags of theirs meet in one of ours


class NoPreload(errors.TidegateError, NotImplementedError):
    """What only the original's preloaded library has."""


class _State:
    """What all instances share."""

    def __init__(self) -> None:
        self.names: Dict[str, List[str]] = {}  # their tag: ours
        self.impl: Optional["_TorchMemorySaverImpl"] = None


class _Threads(threading.local):
    def __init__(self) -> None:
        self.left: Optional[contextlib.ExitStack] = None  # set_interesting_region(False)


_state = _State()
_threads = _Threads()


def _check_tag(tag: Any) -> None:
    if not isinstance(tag, str):
        raise errors.BadValue(0, f"tag={tag!r}: a string")


def _own_name(tag: str, is_kept: bool) -> str:
    """The name of our tag. What is no name here becomes one of its digest."""
    _check_tag(tag)
    if _PLAIN.fullmatch(tag) is None:
        tag = "tms-" + hashlib.sha256(tag.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return tag + _KEPT if is_kept else tag


def _own_names(tag: Optional[str]) -> List[str]:
    """Those that there are; a tag that nobody allocated in has none."""
    if tag is None:
        return [name for names in list(_state.names.values()) for name in names]
    _check_tag(tag)
    return list(_state.names.get(tag, ()))


def _check_backup(cpu: bool, disk: bool, backend: Optional[str]) -> None:
    if disk:
        raise NotImplementedError("enable_disk_backup: Tidegate saves to host memory, not to disk: "
                                  "pass enable_cpu_backup=True instead")
    if backend not in (None, "pinned", "mmap"):
        raise errors.BadValue(0, f"cpu_backup_backend={backend!r}: \"pinned\" or \"mmap\"")
    if backend is not None and not cpu:
        raise errors.BadValue(0, "cpu_backup_backend needs enable_cpu_backup=True")


class _Symbols:
    """The functions of the original's library that others call from Python."""

    def tms_get_interesting_region(self) -> bool:
        """Whether what this thread allocates now can be paused."""
        return pools.is_tagged()

    def tms_set_interesting_region(self, is_on: bool) -> None:
        """False: ordinary memory until True, or the end of the region."""
        if is_on and not pools.is_inside():
            raise errors.BadValue(0, "this thread is in no region: enter region() instead of "
                                  "tms_set_interesting_region(True)")
        if is_on:
            _return()
        elif self.tms_get_interesting_region():
            stack = contextlib.ExitStack()
            stack.enter_context(pools.outside(dispose=False))
            _threads.left = stack

    def __getattr__(self, name: str) -> Any:
        raise NoPreload(0, f"{name} is of torch_memory_saver's own library, which is not loaded: "
                        "use the methods of torch_memory_saver.torch_memory_saver")


def _return() -> None:
    stack, _threads.left = _threads.left, None
    if stack is not None:
        stack.close()


class _TorchMemorySaverImpl:
    """There from the first region on."""

    def __init__(self) -> None:
        self._binary_wrapper = types.SimpleNamespace(cdll=_Symbols())


class TorchMemorySaver:
    """All instances share one state."""

    @property
    def _impl(self) -> Optional[_TorchMemorySaverImpl]:
        return _state.impl

    @contextlib.contextmanager
    def region(self, tag: str = "default", enable_cpu_backup: bool = False,
               enable_disk_backup: bool = False,
               cpu_backup_backend: Optional[str] = None) -> Iterator[None]:
        """What torch allocates inside, in this thread, belongs to the tag."""
        _check_backup(enable_cpu_backup, enable_disk_backup, cpu_backup_backend)
        name = _own_name(tag, enable_cpu_backup)
        outer_left, _threads.left = _threads.left, None
        try:
            with pools.region(name, backup="host" if enable_cpu_backup else "none",
                              keep_host=enable_cpu_backup):
                _state.impl = _state.impl or _TorchMemorySaverImpl()
                names = _state.names.setdefault(tag, [])
                if name not in names:
                    names.append(name)
                try:
                    yield
                finally:
                    _return()
        finally:
            _threads.left = outer_left

    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None,
                   capture_error_mode: str = "global", tag: str = "default",
                   enable_cpu_backup: bool = False,
                   cpu_backup_backend: Optional[str] = None) -> Any:
        """Not there: a graph's pool does not sleep yet."""
        raise NotImplementedError("cuda_graph: a graph's memory does not sleep yet: capture with "
                                  "torch.cuda.graph, whose memory stays")

    @contextlib.contextmanager
    def disable(self, dispose_mem_pool_after_use: bool = True) -> Iterator[None]:
        """Ordinary memory inside a region. Outside of regions it is that already."""
        outer_left, _threads.left = _threads.left, None
        try:
            with pools.outside(dispose=dispose_mem_pool_after_use):
                yield
        finally:
            _threads.left = outer_left

    def pause(self, tag: Optional[str] = None) -> None:
        """Puts a tag (None: all) to sleep; what sleeps is left alone. Raises TidegateError; nothing
        has changed then."""
        names = _own_names(tag)
        if names:
            pools.trim(names)  # what is free need not be saved
            tags.sleep(names, timeout=patience.MOST_SECONDS)

    def resume(self, tag: Optional[str] = None) -> None:
        """Wakes a tag (None: all), waiting for memory that others hold; what is awake is left
        alone. Raises TidegateWouldNotFit with the account of who holds it; all sleeps then."""
        names = _own_names(tag)
        if names:
            tags.wake(names, timeout=patience.wait_seconds())

    @property
    def enabled(self) -> bool:
        """True."""
        return True

    def _set_hook_mode(self, mode: str) -> None:
        if mode not in ("preload", "torch"):
            raise errors.BadValue(0, f"hook_mode={mode!r}: \"preload\" or \"torch\"")
        if _state.impl is not None:
            raise errors.BadValue(0, "hook_mode is set before the first region")

    hook_mode = property(None, _set_hook_mode)  # both are served in the torch mode's way

    @property
    def memory_margin_bytes(self) -> int:
        """Can only be set, as in the original."""
        raise NotImplementedError("memory_margin_bytes can only be set")

    @memory_margin_bytes.setter
    def memory_margin_bytes(self, value: int) -> None:
        if value:
            seams.warn_once("memory_margin_bytes", f"memory_margin_bytes={value!r} keeps nothing "
                            "free: it is accepted and not used")

    @property
    def retain_cpu_backup(self) -> bool:
        """False: a host copy can be read while its tag sleeps."""
        return False

    @retain_cpu_backup.setter
    def retain_cpu_backup(self, value: bool) -> None:
        if value:
            raise NotImplementedError("retain_cpu_backup: host copies can be read while the tag is "
                                      "paused: call get_cpu_backup before resume")

    def get_cpu_backup(self, x: Any, zero_copy: bool = False) -> Any:
        """The content of a tensor whose tag is paused, on the CPU; None while it is not. With
        zero_copy it must not be written, and ends with the pause."""
        if not hasattr(x, "is_contiguous") or not x.is_contiguous():
            raise errors.BadValue(0, "get_cpu_backup takes a contiguous tensor")
        tag = pools.tag_at(x.data_ptr())
        if tag is None:
            raise errors.BadValue(0, "this tensor was not allocated in a region")
        if tag.info().state != "asleep":
            return None
        import torch
        view = pools.host_view(x.data_ptr(), x.numel() * x.element_size())
        copy = torch.frombuffer(view, dtype=torch.uint8).view(x.dtype).view(x.shape)
        return copy if zero_copy else copy.clone()

    def set_disk_backup_dir(self, path: Any) -> None:
        """Not there."""
        _check_backup(False, True, None)


def state(tag: str) -> str:
    """"awake", "asleep", …; "" for a tag that nobody allocated in."""
    found = [one.info().state for one in tags.opened(_own_names(tag))]
    return found[0] if found else ""


def is_used() -> bool:
    """Whether anybody's memory lies in a tag of ours."""
    return any(tag.info().block_count > 0 for tag in tags.opened(_own_names(None)))


torch_memory_saver = TorchMemorySaver()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Nothing is preloaded, so nothing is to be set."""
    yield


def get_binary_path_from_package(stem: str) -> Any:
    """Not there: utils.get_binary_path_from_package."""
    raise NoPreload(0, f"there is no {stem}*.so: Tidegate preloads nothing; leave LD_PRELOAD as it "
                    "is, and use hook_mode = \"torch\"")


utils = types.ModuleType("torch_memory_saver.utils")
utils.get_binary_path_from_package = get_binary_path_from_package  # type: ignore[attr-defined]


def install() -> None:
    """From now on `import torch_memory_saver` means this module. Twice is once. Raises BadValue
    where the original is imported already: memory may be in it."""
    here = sys.modules[__name__]
    if sys.modules.get("torch_memory_saver", here) is not here:
        raise errors.BadValue(0, "torch_memory_saver is imported already: install() comes first")
    sys.modules["torch_memory_saver"] = here
    sys.modules["torch_memory_saver.utils"] = utils


def _forget() -> None:
    """A forked child has none of its parent's tags."""
    _state.names.clear()
    _threads.left = None


os.register_at_fork(after_in_child=_forget)
