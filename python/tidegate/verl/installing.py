# SPDX-License-Identifier: Apache-2.0
"""Which function of ours stands for which of verl's. Imported only where a mode asks for seams."""

from __future__ import annotations

from .. import arrivals, modes
from . import handover, offloading, process, seaming, steps, versions, waking

MAKERS: seaming.Makers = {
    "aggressive_empty_cache": handover.helper,
    "device_module": handover.device_module,
    "set_allocator_settings": handover.platform_settings,
    "set_expandable_segments": handover.segments_setting,
    versions.RESUME: waking.resuming,
    versions.STEP: steps.handing,
    versions.SERVER: steps.serving,
    "offload_fsdp_model_to_cpu": offloading.fsdp_model_out,
    "load_fsdp_model_to_gpu": offloading.fsdp_model_in,
    "offload_fsdp_optimizer": offloading.fsdp_optimizer_out,
    "load_fsdp_optimizer": offloading.fsdp_optimizer_in,
    "offload_megatron_model_to_cpu": offloading.megatron_model_out,
    "load_megatron_model_to_gpu": offloading.megatron_model_in,
    "offload_megatron_optimizer": offloading.megatron_optimizer_out,
    "load_megatron_optimizer": offloading.megatron_optimizer_in,
}


def begin(version_text: str) -> None:
    """Installs what is loaded, and watches for the rest until the mode becomes off."""
    asked = (versions.OFFLOAD,) if offloading.is_asked() else ()
    process.SEAMING = seaming.Seaming(version_text, MAKERS, asked)
    modes.when_changed(_changed)
    process.SEAMING.begin()


def _changed() -> None:
    """The seams in place are restored by the mode itself; none are added from now on."""
    if modes.mode() == modes.OFF:
        arrivals.forget()
