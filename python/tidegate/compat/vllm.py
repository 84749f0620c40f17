# SPDX-License-Identifier: Apache-2.0
"""vLLM: its sleep mode over tags of ours.

vLLM loads this by the entry point `tidegate` of the group vllm.general_plugins, in its server, its
engine core and its workers. Loading it does nothing unless TIDEGATE says observe or on.
`observe` measures vLLM's own sleep and wake; `on` puts our allocator where vLLM asks for its own.
In both, peers keep still while vLLM measures: in a start-up, and in a sleep. See doc/guide/vllm.md.
"""

from __future__ import annotations

from .. import modes, seams


def plugin() -> None:
    """Installs the seams; again, after the mode was off. Never raises: vLLM would log it and go on
    without, and so do we, in one line."""
    if modes.mode() == modes.OFF:
        return
    try:
        from . import vllm_installing

        vllm_installing.begin()
    except Exception as problem:
        seams.warn_once("vllm plugin", f"steps aside: {type(problem).__name__}: {problem}. vLLM "
                        "runs as without it")
