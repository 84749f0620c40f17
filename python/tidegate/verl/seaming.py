# SPDX-License-Identifier: Apache-2.0
"""Puts our functions in place of verl's: which there are, `versions` says; what ours do, the
modules that make them.

A function that is missing, or that no longer takes what ours takes, is named in one warning with
the version; it stays as it is, and the rest works. The first call of a seam says which are active:
a process that only imports verl says nothing."""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from types import ModuleType
from typing import Any, Callable, List, Mapping, Optional, Set, Tuple

from .. import arrivals, card, modes, seams
from . import platform_door, versions
from .versions import Target, Version

# Given what is replaced, makes what replaces it.
Maker = Callable[[Any, Target], Any]
Makers = Mapping[str, Maker]  # by the last name of the function, else by its seam


class Seaming:
    """The seams of this process. The lock guards what was found and what is missing. asked: see
    versions.targets."""

    def __init__(self, version_text: str, makers: Makers, asked: Tuple[str, ...] = ()) -> None:
        self.version_text = version_text
        self.version = versions.parse(version_text)
        self.makers = makers
        self.asked = asked
        self.lock = threading.Lock()
        self.found: Set[str] = set()  # names of seams, as in versions
        self.missing: Set[str] = set()
        self.is_announced = False

    # ---- installing

    def begin(self) -> None:
        """Installs what is loaded, and expects the rest."""
        wanted = versions.targets(self.version, self.asked)
        if not wanted:
            seams.warn_once("verl version", f"verl {self.version_text} has no seams known here: "
                            f"{_dotted(versions.OLDEST)} and newer have. Nothing is replaced")
        for name in dict.fromkeys(target.module for target in wanted):
            mine = [target for target in wanted if target.module == name]
            arrivals.expect(name, functools.partial(self.arrived, mine))

    def arrived(self, wanted: List[Target], module: ModuleType) -> None:
        """A module of verl has run. Never raises: it is called inside the program's import."""
        if modes.mode() == modes.OFF:
            return
        for target in wanted:
            try:
                self.install(target, module)
            except Exception as problem:  # whatever it is, verl's own function stays
                self.miss(target, f"cannot be replaced ({type(problem).__name__}: {problem})")

    def install(self, target: Target, module: ModuleType) -> None:
        """Replaces one function, or says what is wrong with it."""
        key = f"verl: {target}"
        if seams.find(key) is not None:
            return
        owner, name = _owner(module, target.attribute)
        if owner is None or name not in vars(owner):  # inherited is another function
            self.miss(target, "is missing")
            return
        if target.module == versions.PLATFORM_MODULE:
            owner = platform_door.register(owner)
        original = inspect.getattr_static(owner, name)
        maker = self.makers.get(name) or self.makers[target.seam]
        ours = maker(original, target)
        if not _takes_the_same(original, ours):
            self.miss(target, f"takes other arguments now: {_signature(original)}")
            return
        replacement = ours if isinstance(ours, property) else modes.passing(original, ours)
        if isinstance(owner, ModuleType):
            seams.install_function(key, original, replacement)
        else:
            seams.install_attribute(key, owner, name, replacement)
        with self.lock:
            self.found.add(target.seam)

    def miss(self, target: Target, why: str) -> None:
        """Says once that a function stays verl's own."""
        with self.lock:
            self.missing.add(target.seam)
        seams.warn_once(f"verl: {target}", f"verl {self.version_text}: {target} {why}. It stays as "
                        "it is, the other seams work")

    # ---- saying so

    def counts(self) -> Tuple[int, int]:
        """(active seams, seams that the modules loaded here should have)."""
        with self.lock:
            return len(self.found - self.missing), len(self.found | self.missing)

    def announce(self, where: Optional[card.Card]) -> None:
        """At the first call of a seam: one line."""
        with self.lock:
            if self.is_announced:
                return
            self.is_announced = True
        active, known = self.counts()
        gpu = "" if where is None else f"{where.title}, "  # none yet: then it has no number
        seams.announce(f"tidegate {modes.mode()}: {gpu}{_torch()}"
                       f"verl {self.version_text}, {active} of {known} seams")
        seams.tell_run("verl")


def _dotted(version: Version) -> str:
    return ".".join(str(part) for part in version)


def _torch() -> str:
    version = getattr(sys.modules.get("torch"), "__version__", "")
    return f"torch {'.'.join(str(version).split('.')[:2])}, " if version else ""


def _owner(module: ModuleType, attribute: str) -> Tuple[Any, str]:
    """(the module or class that has it, or None where there is no such class; its name there)."""
    owner: Any = module
    *path, name = attribute.split(".")
    for step in path:
        owner = getattr(owner, step, None)
    return owner, name


def _signature(function: Any) -> str:
    try:
        return str(inspect.signature(function))
    except (TypeError, ValueError):
        return "it is no function"


def _takes_the_same(original: Any, ours: Any) -> bool:
    """Whether ours can be called as the original: by the same names, kinds and defaults, or with
    anything, where it only passes on."""
    if isinstance(original, property) or isinstance(ours, property):
        return isinstance(original, property) and isinstance(ours, property)
    accepted = list(inspect.signature(ours).parameters.values())
    if [each.kind for each in accepted] == [inspect.Parameter.VAR_POSITIONAL,
                                            inspect.Parameter.VAR_KEYWORD]:
        return callable(original)
    asked = inspect.signature(original).parameters.values()
    return ([(each.name, each.kind, each.default) for each in accepted]
            == [(each.name, each.kind, each.default) for each in asked]
            and inspect.iscoroutinefunction(ours) == inspect.iscoroutinefunction(original))
