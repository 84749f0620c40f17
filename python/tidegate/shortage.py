# SPDX-License-Identifier: Apache-2.0
"""The account of what does not fit: who holds the memory, and what would help, in one sentence that
a user can act on."""

from __future__ import annotations

import math
from typing import List, Tuple

from . import errors, figures, tenancy

# What torch's trainers declare of memory that only they can move.
_LIVE = "live"


def _holders(status: tenancy.Status, uuid: bytes) -> List[Tuple[str, int]]:
    rows = []
    for tenant in status.on(uuid):
        who = tenant.title + (" (dead)" if tenant.is_dead else "")
        rows += [(f"{who} {tag.name}", tag.occupied_bytes) for tag in tenant.tags]
    rows.sort(key=lambda row: -row[1])
    rows += [("unattributed", device.unattributed_bytes) for device in status.devices
             if device.uuid == uuid]
    return [row for row in rows if row[1] > 0]


def _advice(status: tenancy.Status, uuid: bytes, available: int, missing: str) -> str:
    others = [tenant for tenant in status.on(uuid) if not tenancy.is_self(tenant)]
    own = sum(tenant.occupied_bytes for tenant in status.on(uuid) if tenancy.is_self(tenant))
    total = next((device.total_bytes for device in status.devices if device.uuid == uuid), 0)
    if total > 0 and any(tag.name == _LIVE for tenant in others for tag in tenant.tags):
        share = math.floor(100 * (own + available) / total) / 100
        return f"Try param_offload=True, or gpu_memory_utilization <= {share:.2f}"
    return f"Free {missing} of it, or make the tags smaller by as much"


def would_not_fit(problem: errors.TidegateWouldNotFit, what: str, uuid: bytes, asked: int,
                  available: int, after: str) -> errors.TidegateWouldNotFit:
    """problem with the account in its sentence. what: "wake kv_cache"; after: how it is now."""
    try:
        status = tenancy.status()
    except errors.TidegateError:  # the figures that we have must do
        status = tenancy.Status((), (), 0)
    unit, factor = figures.shared_unit(asked)
    holders = ", ".join(f"{who} {size / factor:.1f}" for who, size in _holders(status, uuid))
    missing = f"{max(0, asked - available) / factor:.1f} {unit}"
    text = (f"{what} needs {asked / factor:.1f} {unit}, {available / factor:.1f} can be had"
            f"{': ' + holders if holders else ''}.\n  {after} "
            f"{_advice(status, uuid, available, missing)}")
    told = type(problem)(problem.status, text, problem.native)
    told.asked_bytes, told.available_bytes = asked, available
    return told
