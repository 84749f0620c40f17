# SPDX-License-Identifier: Apache-2.0
"""SGLang sizes its cache by the card's free memory while it starts up: peers neither wake nor sleep
meanwhile. From its first look at the card to the end of the model runner's start."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Optional

from .. import card
from . import engine_process, engine_start, sglang_process


def _device() -> Optional[str]:
    where = card.current()
    return None if where is None else f"cuda:{where.index}"


start = engine_start.Start(sglang_process.ENGINE, _device)


def install(module: ModuleType) -> None:
    """Around what measures first, and what ends."""
    runner = module.ModelRunner
    for name, around in (("init_torch_distributed", start.begins_after), ("initialize", _last)):
        engine_process.replace_method(f"sglang: {module.__name__}.{name}", runner, name, around)


def _last(original: Callable[..., Any]) -> Callable[..., Any]:
    return start.begins_with(start.ends_with(original))
