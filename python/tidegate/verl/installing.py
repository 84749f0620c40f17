# SPDX-License-Identifier: Apache-2.0
"""Which function of ours stands for which of verl's. Imported only where a mode asks for seams."""

from __future__ import annotations

from .. import arrivals, modes
from . import handover, process, seaming, steps, versions, waking

MAKERS: seaming.Makers = {
    "aggressive_empty_cache": handover.helper,
    "device_module": handover.device_module,
    "set_allocator_settings": handover.platform_settings,
    "set_expandable_segments": handover.segments_setting,
    versions.RESUME: waking.resuming,
    versions.STEP: steps.handing,
    versions.SERVER: steps.serving,
}


def begin(version_text: str) -> None:
    """Installs what is loaded, and watches for the rest until the mode becomes off."""
    process.SEAMING = seaming.Seaming(version_text, MAKERS)
    modes.when_changed(_changed)
    process.SEAMING.begin()


def _changed() -> None:
    """The seams in place are restored by the mode itself; none are added from now on."""
    if modes.mode() == modes.OFF:
        arrivals.forget()
