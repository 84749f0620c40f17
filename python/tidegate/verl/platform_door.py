# SPDX-License-Identifier: Apache-2.0
"""verl's narrowest place from 0.9 on: its platform, asked for the device module at nearly every
call. A platform of our own, derived from the one that is registered, hands out a module that passes
everything on to torch.cuda but has its own empty_cache and synchronize.

What is registered is an empty subclass, and the functions are seams in it: once they are restored,
it does what its base does."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable, Dict, Tuple

PLATFORM = "nvidia"

# (call, original, its arguments): does what the call is for.
Through = Callable[..., Any]


class DeviceModule(ModuleType):
    """torch.cuda, with two doors in it. Calls and names that we do not have are torch's."""

    def __init__(self, module: ModuleType, through: Through) -> None:
        super().__init__(module.__name__, module.__doc__)
        self.__dict__["_tidegate"] = (module, through)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tidegate[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._tidegate[0], name, value)

    def __dir__(self) -> Any:
        return dir(self._tidegate[0])

    def empty_cache(self) -> None:
        """torch.cuda.empty_cache, or what stands for it."""
        module, through = self._tidegate
        through("empty_cache", module.empty_cache)

    def synchronize(self, device: Any = None) -> None:
        """torch.cuda.synchronize; verl calls it before or after it empties the cache."""
        module, through = self._tidegate
        through("synchronize", module.synchronize, device)


_doors: Dict[int, Tuple[ModuleType, DeviceModule]] = {}


def door(module: ModuleType, through: Through) -> DeviceModule:
    """The one door of a device module."""
    held, made = _doors.get(id(module), (None, None))
    if held is not module or made is None:
        made = DeviceModule(module, through)
        _doors[id(module)] = (module, made)
    return made


def register(base: type) -> type:
    """Our platform in verl's registry, made the first time. Raises TypeError where somebody else's
    platform stands there that does not derive from verl's."""
    from verl.plugin.platform import platform_manager

    registry = platform_manager.PlatformRegistry
    present = registry.get(PLATFORM)
    if present is None or not issubclass(present, base):
        raise TypeError(f"the platform {PLATFORM} is {present}, not verl's")
    if "_is_tidegate" in vars(present):
        return present
    ours = type("TidegatePlatform", (present,), {
        "__module__": __name__, "_is_tidegate": True,
        "__doc__": f"{present.__name__}, whose functions Tidegate's seams replace."})
    registry.register(platform=PLATFORM)(ours)
    made = platform_manager._current_platform
    if type(made) is present:
        platform_manager._current_platform = ours()
    return ours
