# SPDX-License-Identifier: Apache-2.0
"""The mark of an engine's start-up: it sizes itself by the card's free memory, so peers neither
wake nor sleep from its first look at the card to the end."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, Callable, Iterator, Optional

from .. import errors, seams, tenancy
from . import engine_process


@contextlib.contextmanager
def harmless(title: str, what: str) -> Iterator[None]:
    """A mark that cannot be made is no reason for the engine to stop."""
    try:
        yield
    except errors.TidegateError as problem:
        seams.warn_once(f"{title.lower()} {what}",
                        f"peers do not learn of {title}'s {what}: {problem}")


class Start:
    """The mark of this process's start-up. device: the one it computes on, None while there is
    none yet."""

    def __init__(self, engine: engine_process.Engine,
                 device: Callable[[], Optional[str]]) -> None:
        self._engine = engine
        self._device = device
        self._mark: Optional[contextlib.ExitStack] = None

    def begin(self) -> None:
        """Once; before there is a device, or where the mark fails, it is no beginning."""
        device = None if self._mark is not None else self._device()
        if device is None:
            return
        mark = contextlib.ExitStack()
        self._engine.stand()
        with harmless(self._engine.title, "start"):
            mark.enter_context(tenancy.starting(device))
            self._mark = mark

    def end(self) -> None:
        """Also where it has not begun."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()

    def begins_after(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What the engine's first look follows."""
        @functools.wraps(original)
        def first(*arguments: Any, **named: Any) -> Any:
            result = original(*arguments, **named)
            self.begin()
            return result

        return first

    def begins_with(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Where the first look was not seen, the start-up begins here."""
        @functools.wraps(original)
        def late(*arguments: Any, **named: Any) -> Any:
            self.begin()
            return original(*arguments, **named)

        return late

    def ends_with(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The last call of a start-up."""
        @functools.wraps(original)
        def last(*arguments: Any, **named: Any) -> Any:
            try:
                return original(*arguments, **named)
            finally:
                self.end()

        return last
