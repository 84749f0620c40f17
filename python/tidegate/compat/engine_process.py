# SPDX-License-Identifier: Apache-2.0
"""What an engine's process says of us, to people and to the ledger, whichever engine it is."""

from __future__ import annotations

import multiprocessing
from types import ModuleType
from typing import Any, Callable, Optional

from .. import card, errors, identity, modes, seams, tenancy

Around = Callable[[Callable[..., Any]], Callable[..., Any]]


def replace_method(key: str, owner: Any, name: str, around: Around) -> None:
    """A method of a class becomes around(method) while the mode is not off. key: the seam's name;
    one that is installed stays as it is."""
    if seams.find(key) is None:
        original = getattr(owner, name)
        seams.install_attribute(key, owner, name, modes.passing(original, around(original)))


class Engine:
    """One engine of this process. title: as people write it; version, called: how the ledger is to
    name the process, both asked when they are said."""

    def __init__(self, title: str, version: Callable[[], str],
                 called: Optional[Callable[[], str]] = None) -> None:
        self.title = title
        self.name = title.lower()
        self.version = version
        self._called = called
        self.is_announced = False

    def stand(self) -> None:
        """Names the process, unless it is the user's own program. Who joins the ledger for the
        engine does so first: the name under which a process has joined stays."""
        if multiprocessing.parent_process() is not None:
            identity.stand_for(self.name if self._called is None else self._called())

    def announce(self, what: str) -> bool:
        """Says what is done here; later calls say nothing more, and are False."""
        if self.is_announced:
            return False
        self.is_announced = True
        self.stand()
        where = card.current()
        gpu = "" if where is None else f"GPU {where.index}, "
        seams.announce(f"tidegate {modes.mode()}: {gpu}{self.title} {self.version()}: {what}")
        seams.tell_run(self.name)
        return True

    def note(self, where: card.Card, what: str = "") -> None:
        """The same in the ledger, where readers find it beside the figures. Joins it."""
        try:
            device = where.device()
            mine = None if device is None else tenancy.tenant(device)
            if mine is not None:
                mine.note(f"{self.name} {self.version()}" + (f": {what}" if what else ""))
        except errors.TidegateError as problem:
            seams.warn_once(f"{self.name} note", f"cannot write to the ledger: {problem}")

    def guarded(self, install: Callable[[ModuleType], None], module: ModuleType) -> None:
        """Installs seams inside the engine's import, which must not fail for us."""
        if modes.mode() == modes.OFF:
            return
        try:
            install(module)
        except Exception as problem:
            seams.warn_once(f"{self.name} {module.__name__}",
                            f"{self.title} {self.version()}: {module.__name__} has no seams "
                            f"({type(problem).__name__}: {problem}). It stays as it is")
