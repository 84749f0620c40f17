# SPDX-License-Identifier: Apache-2.0
"""verl: where its trainer and its rollout engine hand GPU memory to each other.

verl 0.9 and newer load this by the entry point `tidegate` of the group verl.plugins; older ones
where VERL_USE_EXTERNAL_MODULES=tidegate.verl. Loading it does nothing unless TIDEGATE says observe
or on. doc/guide/verl.md tells what each seam does, and with which versions it was run."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from .. import modes, seams


def plugin() -> None:
    """Installs the seams; again, after the mode was off. Never raises: verl would not start."""
    if modes.mode() == modes.OFF:
        return
    try:
        _install()
    except Exception as problem:
        seams.warn_once("verl plugin", f"steps aside: {type(problem).__name__}: {problem}. verl "
                        "runs as without it")


def _install() -> None:
    verl = sys.modules.get("verl")
    if verl is None:
        if importlib.util.find_spec("verl") is None:
            seams.warn_once("verl absent", "verl is not installed here: it has no seams")
            return
        verl = importlib.import_module("verl")
    from . import installing

    installing.begin(str(getattr(verl, "__version__", "")))


plugin()
