# SPDX-License-Identifier: Apache-2.0
"""Locks of this package. A child forked while another thread holds one would wait for it for ever,
so each is made anew in a child.

Taking and leaving one is a single call of the interpreter's own: in a method written in Python,
Ctrl-C could come between the lock and the word that it is held."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_all: "weakref.WeakSet[Any]" = weakref.WeakSet()
_RLock: Any = type(threading.RLock())


class ForkSafeLock(_RLock):  # type: ignore[misc] # its type is Any, as typeshed has it final
    """A lock that its own thread may take again."""

    def __init__(self) -> None:
        super().__init__()
        _all.add(self)

    def is_mine(self) -> bool:
        """Whether the calling thread holds it."""
        return bool(self._is_owned())

    def renew(self) -> None:
        """Free again, whoever held it."""
        self._at_fork_reinit()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


os.register_at_fork(after_in_child=_renew_all)
