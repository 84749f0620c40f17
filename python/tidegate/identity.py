# SPDX-License-Identifier: Apache-2.0
"""Who this process is: its name and role in the ledger, its rank, and how it speaks of itself."""

from __future__ import annotations

import os
import re
from typing import Optional

DEFAULT_NAME = "trainer"
NAME_BYTES_MOST = 47
ROLE_BYTES_MOST = 15

_adapters_name = DEFAULT_NAME


def stand_for(adapters_name: str) -> None:
    """An adapter knows what this process is, such as "vllm server": its name if none is given. The
    first one's stays, under which the process has joined the ledger."""
    global _adapters_name
    if _adapters_name == DEFAULT_NAME:
        _adapters_name = adapters_name


def name() -> str:
    """$TIDEGATE_NAME made printable, else what an adapter says, else "trainer"."""
    said = re.sub(r"[^ -~]", "?", os.environ.get("TIDEGATE_NAME", "")).strip()
    return said[:NAME_BYTES_MOST] or _adapters_name


def role() -> str:
    """$TIDEGATE_ROLE, else "trainer" for a trainer and nothing for any other name."""
    said = re.sub(r"[^ -~]", "?", os.environ.get("TIDEGATE_ROLE", "")).strip()
    return said[:ROLE_BYTES_MOST] or (DEFAULT_NAME if name() == DEFAULT_NAME else "")


def rank() -> Optional[int]:
    """The number of this process in its run, as torchrun, Ray's workers and verl tell it."""
    for variable in ("RANK", "LOCAL_RANK"):
        said = os.environ.get(variable, "")
        if re.fullmatch(r"[0-9]{1,9}", said):
            return int(said)
    return None


def speaker() -> str:
    """"trainer rank 0": what stands in brackets before each line that we print."""
    number = rank()
    return name() if number is None else f"{name()} rank {number}"
