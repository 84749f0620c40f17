# SPDX-License-Identifier: Apache-2.0
"""SGLang: release and resume of its memory over tags of ours.

SGLang loads this by the entry point `tidegate` of the group sglang.srt.plugins, in its server
and in each scheduler. Loading it does nothing unless TIDEGATE says observe or on. `observe`
measures what SGLang's own saver does; `on` puts our torch_memory_saver where SGLang's adapter asks
for its own, and makes the scheduler's release and resume repeatable. See doc/guide/sglang.md."""

from __future__ import annotations

from .. import modes, seams


def plugin() -> None:
    """Installs the seams; again, after the mode was off. Never raises: SGLang would log it and go
    on without, and so do we, in one line."""
    if modes.mode() == modes.OFF:
        return
    try:
        from . import sglang_installing

        sglang_installing.begin()
    except Exception as problem:
        seams.warn_once("sglang plugin", f"steps aside: {type(problem).__name__}: {problem}. "
                        "SGLang runs as without it")
