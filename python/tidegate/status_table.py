# SPDX-License-Identifier: Apache-2.0
"""A status as people read it: the same words as `tidegate status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from .figures import size

if TYPE_CHECKING:
    from .tenancy import DeviceStatus, Status, TagStatus, TenantStatus


def _device_line(device: DeviceStatus) -> str:
    if device.seconds_old is None:
        return f"{device.name}   not measured yet"
    used = device.total_bytes - device.free_bytes
    return (f"{device.name} {size(device.total_bytes)}   used {size(used)}   "
            f"free {size(device.free_bytes)} (driver, {device.seconds_old:.0f} s ago)")


def _tag_text(tag: TagStatus) -> str:
    text = tag.name
    if tag.occupied_bytes > 0 or tag.asleep_bytes == 0:
        text += f" {size(tag.occupied_bytes)}"
    if tag.returnable_bytes > 0:
        text += f" (returnable {size(tag.returnable_bytes)})"
    if tag.asleep_bytes > 0:
        text += f" asleep ({size(tag.asleep_bytes)})"
    return text


def tenant_line(tenant: TenantStatus) -> str:
    """One tenant, as a line under its device."""
    if tenant.is_dead:
        return f"  {tenant.title}  dead; held {size(tenant.occupied_bytes)} when it died (orphaned)"
    parts = [tenant.title, f"pid {tenant.pid}"]
    parts += [tenant.mode] if tenant.mode != "none" else []
    parts += ["starting"] if tenant.is_starting else []
    parts += [_tag_text(tag) for tag in tenant.tags]
    if tenant.waits_for is not None:
        parts.append(f"waits for {tenant.waits_for[0]} {size(tenant.waits_for[1])}")
    return "  " + "  ".join(parts)


def table(status: Status) -> str:
    """One line a device, one a tenant under it."""
    lines: List[str] = []
    for device in status.devices:
        tenants = status.on(device.uuid)
        if tenants:  # else its figures are of some time ago, and nobody renews them
            lines += [_device_line(device), *map(tenant_line, tenants),
                      f"  unattributed {size(device.unattributed_bytes)}"]
    return "\n".join(lines) or "no program uses Tidegate on this machine now"
