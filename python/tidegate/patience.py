# SPDX-License-Identifier: Apache-2.0
"""How long an engine's wake waits for memory that others hold.

Clients of engines send a request again when no answer comes: SGLang's after 60 seconds. A wait that
ends before that is answered once."""

from __future__ import annotations

import math
import os

from . import seams

WAIT_SECONDS = 20.0
MOST_SECONDS = 55.0


def wait_seconds() -> float:
    """$TIDEGATE_WAIT_SECONDS, at most 55."""
    said = os.environ.get("TIDEGATE_WAIT_SECONDS", "")
    try:
        wanted = float(said) if said else WAIT_SECONDS
    except ValueError:
        wanted = math.nan
    if math.isnan(wanted):
        seams.warn_once("TIDEGATE_WAIT_SECONDS", f"TIDEGATE_WAIT_SECONDS={said!r} is no number of "
                        f"seconds: {WAIT_SECONDS:.0f} it is")
        wanted = WAIT_SECONDS
    return min(max(0.0, wanted), MOST_SECONDS)
