# SPDX-License-Identifier: Apache-2.0
"""Locks of this package. A child forked while another thread holds one would wait for it for ever,
so each is made anew in a child."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType
from typing import Optional, Type

_all: "weakref.WeakSet[ForkSafeLock]" = weakref.WeakSet()


class ForkSafeLock:
    """A lock that its own thread may take again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def acquire(self, timeout: float = -1) -> bool:
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self._lock.release()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
