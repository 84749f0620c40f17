# SPDX-License-Identifier: Apache-2.0
"""SGLang sizes its cache by the card's free memory while it starts up: peers neither wake nor sleep
meanwhile. From its first look at the card to the end of the model runner's start."""

from __future__ import annotations

import contextlib
import functools
from types import ModuleType
from typing import Any, Callable, Optional

from .. import card, errors, modes, seams, tenancy


class _Start:
    def __init__(self) -> None:
        self._mark: Optional[contextlib.ExitStack] = None

    def begin(self) -> None:
        where = None if self._mark is not None else card.current()
        if where is None:
            return
        mark = contextlib.ExitStack()
        try:
            mark.enter_context(tenancy.starting(f"cuda:{where.index}"))
            self._mark = mark
        except errors.TidegateError as problem:  # no reason for SGLang to stop
            seams.warn_once("sglang start", f"peers do not learn of SGLang's start: {problem}")

    def end(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.close()


start = _Start()


def install(module: ModuleType) -> None:
    """Around what measures first, and what ends."""
    runner = module.ModelRunner
    for name, around in (("init_torch_distributed", _first), ("initialize", _last)):
        key = f"sglang: {module.__name__}.{name}"
        if seams.find(key) is None:
            original = getattr(runner, name)
            seams.install_attribute(key, runner, name, modes.passing(original, around(original)))


def _first(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def first(*arguments: Any, **named: Any) -> Any:
        result = original(*arguments, **named)
        start.begin()
        return result

    return first


def _last(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def last(*arguments: Any, **named: Any) -> Any:
        start.begin()
        try:
            return original(*arguments, **named)
        finally:
            start.end()

    return last
