# SPDX-License-Identifier: Apache-2.0
"""Our sleep-mode backend, for a vLLM that lets one be chosen by name (sleep_mode_backend=
"tidegate"). Imported by vLLM's factory alone, where that vLLM has it."""

from __future__ import annotations

import functools
from typing import Any

from .. import card, library
from .vllm_allocator import Allocator


def __getattr__(name: str) -> Any:
    """The class itself, which derives from vLLM's."""
    if name != "TidegateBackend":
        raise AttributeError(name)
    return _backend()


@functools.lru_cache(maxsize=None)
def _backend() -> type:
    from vllm.device_allocator.sleep_mode_backend import SleepModeBackend

    return type("TidegateBackend", (_Backend, SleepModeBackend), {"__module__": __name__})


class _Backend:
    """suspend and resume are all or nothing: after a failure the state is what it was."""

    _state: str

    def suspend(self, level: int = 1) -> None:
        """Level 1 saves the weights to the host, any other drops all."""
        Allocator.get_instance().sleep(("weights",) if level == 1 else ())
        self._state = "SUSPENDED"

    def resume(self, tags: list[str] | None = None) -> None:
        """Wakes these tags, None: all. Running again when none sleeps."""
        allocator = Allocator.get_instance()
        before, self._state = self._state, "RESUMING"
        try:
            allocator.wake_up(tags)
        except BaseException:
            self._state = before
            raise
        self._state = "SUSPENDED" if allocator.sleeps else "RUNNING"

    def discard(self, tags: list[str]) -> None:
        """Drops the content of these tags and lets their memory go."""
        Allocator.get_instance().discard(tags)

    @classmethod
    def is_supported(cls) -> bool:
        return card.torch_if_loaded() is not None and library.is_usable()

    @classmethod
    def preserves_nccl(cls) -> bool:
        return True

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_nccl(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        return True

    @classmethod
    def supports_durable_storage(cls) -> bool:
        return False
