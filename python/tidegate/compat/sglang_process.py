# SPDX-License-Identifier: Apache-2.0
"""What SGLang's process says of us, to people and to the ledger: one line, at the first call; and
its releases and resumes, measured and written down, whoever does them."""

from __future__ import annotations

import functools
import time
from typing import Any, Callable

from .. import card, modes, observing
from . import engine_process


def version() -> str:
    """SGLang's, "" if it does not say."""
    import importlib.metadata

    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


ENGINE = engine_process.Engine("SGLang", version)


def announce() -> None:
    """Says what is done here; later calls say nothing more."""
    what = ("release and resume are Tidegate's" if modes.mode() == modes.ON
            else "its releases and resumes are measured")
    where = card.current()
    if ENGINE.announce(what) and where is not None:
        ENGINE.note(where)


def measuring(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around the adapter's pause or resume. What it raises is raised."""
    kind = f"sglang {original.__name__}"

    @functools.wraps(original)
    def measured(self: Any, tag: str) -> Any:
        announce()
        before, began = observing.measure(), time.perf_counter()
        result = original(self, tag)
        observing.record_handover(kind, [tag], before, observing.measure(),
                                  time.perf_counter() - began, None)
        return result

    return measured
