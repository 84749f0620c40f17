# SPDX-License-Identifier: Apache-2.0
"""What SGLang's process says of us, to people and to the ledger: one line, at the first call; and
its releases and resumes, measured and written down, whoever does them."""

from __future__ import annotations

import functools
import multiprocessing
import time
from typing import Any, Callable

from .. import card, errors, identity, modes, observing, seams, tenancy

_announced = False


def version() -> str:
    """SGLang's, "" if it does not say."""
    import importlib.metadata

    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return ""


def announce() -> None:
    """Says what is done here; later calls say nothing more."""
    global _announced
    if _announced:
        return
    _announced = True
    if multiprocessing.parent_process() is not None:  # not the user's own program
        identity.stand_for("sglang")
    where = card.current()
    gpu = "" if where is None else f"GPU {where.index}, "
    what = ("release and resume are Tidegate's" if modes.mode() == modes.ON
            else "its releases and resumes are measured")
    seams.announce(f"tidegate {modes.mode()}: {gpu}SGLang {version()}: {what}")
    seams.tell_run("sglang")
    if where is not None:
        _note(where, f"sglang {version()}")


def _note(where: card.Card, what: str) -> None:
    """The same in the ledger, where readers find it beside the figures. Joins it."""
    try:
        device = where.device()
        mine = None if device is None else tenancy.tenant(device)
        if mine is not None:
            mine.note(what)
    except errors.TidegateError as problem:
        seams.warn_once("sglang note", f"cannot write to the ledger: {problem}")


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
