# SPDX-License-Identifier: Apache-2.0
"""torch_memory_saver's interface over tags that sleep and wake: regions as in its "torch" hook
mode, and under Tidegate's preload what is of its "preload" mode.

    from tidegate.compat.torch_memory_saver import torch_memory_saver

or, for programs that import it by its own name, `install()` before they do. What differs from the
original stands in doc/guide/torch_memory_saver.md. Two settings of one tag there are two tags here,
NAME and NAME.kept (saved to the host), that are paused and resumed together."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import sys
import threading
import types
from typing import Any, Dict, Iterator, List, NamedTuple, Optional

from .. import errors, modes, patience, pools, preloaded, seams, tags

_PLAIN = re.compile(r"(?!tms-)[A-Za-z0-9_-]{1,26}")  # 31 with what is put behind it
_KEPT = ".kept"  # no plain name has a dot, so no two tags of theirs meet in one of ours


class NoPreload(errors.TidegateError, NotImplementedError):
    """What only the original's preloaded library has."""


class _State:
    """What all instances share."""

    def __init__(self) -> None:
        self.names: Dict[str, List[str]] = {}  # their tag: ours
        self.impl: Optional["_TorchMemorySaverImpl"] = None


class _Settings(NamedTuple):
    """Of what a thread allocates."""

    tag: str = "default"
    is_kept: bool = False
    backend: str = "pinned"


class _Threads(threading.local):
    def __init__(self) -> None:
        self.left: Optional[contextlib.ExitStack] = None  # set_interesting_region(False)
        self.scope: Optional[contextlib.ExitStack] = None  # the same, True, outside of regions
        self.settings = _Settings()


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
    """Those that there are; a tag that nobody allocated in has none. Of a whole program, the
    default tag is theirs, too."""
    whole = preloaded.default_tag() if _is_whole() and tag in (None, "default") else None
    first = [] if whole is None else [whole]
    if tag is None:
        return first + [name for names in list(_state.names.values()) for name in names]
    _check_tag(tag)
    return first + list(_state.names.get(tag, ()))


def _is_whole() -> bool:
    """All that the program allocates is to be pausable."""
    return os.environ.get("TMS_INIT_ENABLE", "") in ("1", "true", "TRUE", "yes", "YES")


def _check_environment() -> None:
    """Who counts on the whole program being pausable is not to believe that it is paused."""
    if _is_whole() and preloaded.default_tag() is None:
        raise NoPreload(0, "TMS_INIT_ENABLE is set, and nothing was allocated in a region or a "
                        "scope: what takes a whole program here is tidegate run --default-tag NAME")


def _check_backup(cpu: bool, disk: bool, backend: Optional[str]) -> None:
    if disk:
        raise NotImplementedError("enable_disk_backup: Tidegate saves to host memory, not to disk: "
                                  "pass enable_cpu_backup=True instead")
    if backend not in (None, "pinned", "mmap"):
        raise errors.BadValue(0, f"cpu_backup_backend={backend!r}: \"pinned\" or \"mmap\"")
    if backend is not None and not cpu:
        raise errors.BadValue(0, "cpu_backup_backend needs enable_cpu_backup=True")


def _text(value: Any) -> str:
    """Of what goes through ctypes."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


class _Symbols:
    """The functions of the original's library that others call from Python. Outside of regions they
    are of use under the preload: what this thread takes from the CUDA runtime is the tag's then."""

    def tms_get_interesting_region(self) -> bool:
        """Whether what this thread allocates now can be paused."""
        return pools.is_tagged() or _threads.scope is not None

    def tms_set_interesting_region(self, is_on: bool) -> None:
        """False: ordinary memory until True, or the end of the region."""
        if pools.is_inside():
            _change_region(is_on, pools.is_tagged())
        else:
            _change_scope(is_on)

    def tms_set_current_tag(self, tag: Any) -> None:
        """The tag of this thread outside of regions. Inside its region has one."""
        _check_tag(_text(tag))
        _configure(tag=_text(tag))

    def tms_get_current_tag(self) -> bytes:
        """That of the region, else what was set."""
        return _threads.settings.tag.encode("utf-8", "surrogateescape")

    def tms_set_enable_cpu_backup(self, is_on: bool) -> None:
        """As tms_set_current_tag."""
        _configure(is_kept=bool(is_on))

    def tms_get_enable_cpu_backup(self) -> bool:
        """As tms_get_current_tag."""
        return _threads.settings.is_kept

    def tms_set_cpu_backup_backend(self, backend: Any) -> None:
        """Accepted: where a copy lies is Tidegate's choice."""
        _check_backup(True, False, _text(backend))
        _configure(backend=_text(backend))

    def tms_get_cpu_backup_backend(self) -> bytes:
        """As tms_get_current_tag."""
        return _threads.settings.backend.encode()

    def tms_set_enable_disk_backup(self, is_on: bool) -> None:
        """Not there."""
        _check_backup(False, bool(is_on), None)

    def tms_get_enable_disk_backup(self) -> bool:
        """False."""
        return False

    def tms_set_disk_backup_dir(self, path: Any) -> None:
        """Not there."""
        torch_memory_saver.set_disk_backup_dir(path)

    def set_memory_margin_bytes(self, value: int) -> None:
        """As the property."""
        torch_memory_saver.memory_margin_bytes = value

    def tms_set_retain_cpu_backup(self, is_on: bool) -> None:
        """As the property."""
        torch_memory_saver.retain_cpu_backup = bool(is_on)

    def tms_get_retain_cpu_backup(self) -> bool:
        """False."""
        return torch_memory_saver.retain_cpu_backup

    def tms_pause(self, tag: Any = None) -> int:
        """0; raises where the method does."""
        torch_memory_saver.pause(_text(tag))
        return 0

    def tms_resume(self, tag: Any = None) -> int:
        """0; raises where the method does."""
        torch_memory_saver.resume(_text(tag))
        return 0

    def tms_get_cpu_backup_pointer(self, address: int, size_bytes: int) -> Optional[int]:
        """Where the copy of these bytes lies while their tag is paused; None while it is not."""
        tag = pools.tag_at(address)
        if tag is None:
            raise errors.BadValue(0, f"{address:#x} was not allocated in a region")
        if tag.info().state != "asleep":
            return None
        return pools.host_address(address, size_bytes)

    def __getattr__(self, name: str) -> Any:
        raise NoPreload(0, f"{name} is of torch_memory_saver's own library, which is not loaded: "
                        "use the methods of torch_memory_saver.torch_memory_saver")


def _change_region(is_on: bool, is_tagged: bool) -> None:
    if is_on:
        _return()
    elif is_tagged:
        stack = contextlib.ExitStack()
        stack.enter_context(pools.outside(dispose=False))
        _threads.left = stack


def _change_scope(is_on: bool) -> None:
    if is_on:
        _check_scope()
    stack, _threads.scope = _threads.scope, None
    if stack is not None:
        stack.close()
    if is_on:
        stack = contextlib.ExitStack()
        stack.enter_context(_scope(_threads.settings.tag, _threads.settings.is_kept))
        _threads.scope = stack


def _check_scope() -> None:
    """Raises where the scope cannot begin, while the thread is in the one that it was in."""
    if not preloaded.acts():
        raise errors.BadValue(0, "this thread is in no region: enter region() instead of "
                              "tms_set_interesting_region(True), or start the program with "
                              "tidegate run --preload")
    with _scope(_threads.settings.tag, _threads.settings.is_kept):
        pass


def _configure(**changes: Any) -> None:
    if pools.is_inside():
        raise errors.BadValue(0, "inside region() the tag and its backup are the region's")
    before = _threads.settings
    _threads.settings = before._replace(**changes)
    try:
        if _threads.scope is not None:
            _change_scope(True)
    except BaseException:
        _threads.settings = before
        raise


@contextlib.contextmanager
def _scope(tag: str, is_kept: bool) -> Iterator[None]:
    with pools.scope(_own_name(tag, is_kept), backup="host" if is_kept else "none",
                     keep_host=is_kept) as own:
        _note(tag, own.name)
        yield


def _note(tag: str, own_name: str) -> None:
    """From now on there is a tag of theirs."""
    _state.impl = _state.impl or _TorchMemorySaverImpl()
    names = _state.names.setdefault(tag, [])
    if own_name not in names:
        names.append(own_name)


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
        outer_settings = _threads.settings
        try:
            with pools.region(name, backup="host" if enable_cpu_backup else "none",
                              keep_host=enable_cpu_backup):
                _note(tag, name)
                _threads.settings = _Settings(tag, enable_cpu_backup,
                                              cpu_backup_backend or "pinned")
                try:
                    yield
                finally:
                    _return()
        finally:
            _threads.left, _threads.settings = outer_left, outer_settings

    def cuda_graph(self, cuda_graph: Any, pool: Any = None, stream: Any = None,
                   capture_error_mode: str = "global", tag: str = "default",
                   enable_cpu_backup: bool = False,
                   cpu_backup_backend: Optional[str] = None) -> Any:
        """As torch.cuda.graph, and what the capture allocates belongs to the tag: it can be paused,
        and must be resumed before a replay. Without a backup its content is lost. Under the
        preload; raises NoPreload elsewhere."""
        _check_backup(enable_cpu_backup, False, cpu_backup_backend)
        _check_tag(tag)
        if not preloaded.acts():
            raise NoPreload(0, "cuda_graph: a graph's memory can be paused under the preload: "
                            "start the program with tidegate run --preload, or capture with "
                            "torch.cuda.graph, whose memory stays")
        return self._captured(tag, enable_cpu_backup, {
            "cuda_graph": cuda_graph, "pool": pool, "stream": stream,
            "capture_error_mode": capture_error_mode})

    @contextlib.contextmanager
    def _captured(self, tag: str, is_kept: bool, how: Dict[str, Any]) -> Iterator[None]:
        import torch
        with _scope(tag, is_kept), torch.cuda.graph(**how):
            yield

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
        if not names:
            _check_environment()
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

    hook_mode = property(None, _set_hook_mode)  # a region is served in the torch mode's way in both

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
    """Programs that are started inside have Tidegate's preload before the CUDA runtime, in front of
    what LD_PRELOAD holds: in mode on. Else nothing is to be set."""
    before = os.environ.get("LD_PRELOAD")
    found = preloaded.path() if modes.mode() == modes.ON else None
    listed = (before or "").replace(":", " ").split()
    if found is None or any(name.endswith(os.path.basename(found)) for name in listed):
        yield
        return
    os.environ["LD_PRELOAD"] = ":".join([found, before] if before else [found])
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = before


def get_binary_path_from_package(stem: str) -> pathlib.Path:
    """Of the object to preload; others are not there. utils.get_binary_path_from_package."""
    found = preloaded.path()
    if found is None or not stem.startswith("torch_memory_saver_hook_mode_preload"):
        raise NoPreload(0, f"there is no {stem}*.so here: the object to preload is "
                        "libtidegate-preload.so, which tidegate run --preload names, and hook_mode "
                        "= \"torch\" needs none")
    return pathlib.Path(found)


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
    _threads.left = _threads.scope = None


os.register_at_fork(after_in_child=_forget)
