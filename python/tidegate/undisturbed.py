# SPDX-License-Identifier: Apache-2.0
"""Work that Ctrl-C cannot come into.

Python raises it in the main thread alone, between any two of its steps: between what a function of
another library has done and the note of that, too. So such work is done by another thread, which
ends with it; the caller waits, and Ctrl-C is raised there."""

from __future__ import annotations

import threading
from typing import Callable, List

from .locks import ForkSafeLock


class Undisturbed:
    """One piece of work after the other. What a caller has left by Ctrl-C ends early, and before
    the next begins."""

    def __init__(self) -> None:
        self._lock = ForkSafeLock()
        self._current: List[BaseException] = []  # what the work that goes on has raised

    def run(self, work: Callable[[Callable[[], bool]], None]) -> None:
        """Calls work(goes_on) and waits for its end; what it raises is raised. It may end early
        where goes_on() is false."""
        raised: List[BaseException] = []
        end = threading.Lock()
        end.acquire()

        def whole() -> None:
            try:
                with self._lock:
                    if self._current is raised:
                        work(lambda: self._current is raised)
            except BaseException as problem:
                raised.append(problem)
            finally:
                end.release()

        self._current = raised
        try:
            threading.Thread(target=whole, name="tidegate", daemon=True).start()
            end.acquire()
        except BaseException:
            self._current = []
            raise
        if raised:
            raise raised[0]
