# SPDX-License-Identifier: Apache-2.0
"""Tells when a module of another program has been imported, so that a seam in it is installed
before anybody binds its names, and only in processes that load it.

One finder at the head of sys.meta_path. It finds nothing itself: it lets the others find, and has
the loader call us after the module's own code. What goes wrong in that call is the callee's to
catch: an import of the program's never fails for us."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Callable, Dict, Optional, Sequence

from . import seams

Arrived = Callable[[ModuleType], None]


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self) -> None:
        self.awaited: Dict[str, Arrived] = {}

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None,
                  target: Optional[ModuleType] = None
                  ) -> Optional[importlib.machinery.ModuleSpec]:
        arrived = self.awaited.get(name)
        if arrived is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = None if find is None else find(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    _call_after(spec.loader, name, arrived)
                return spec
        return None


def _call_after(loader: importlib.abc.Loader, name: str, arrived: Arrived) -> None:
    """Covers the loader's own method. One of an archive loads other modules as well; one that
    cannot be covered loads as ever, and its module's seams are not installed."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name:
            arrived(module)

    try:
        loader.exec_module = exec_module  # type: ignore[method-assign]
    except AttributeError:
        seams.warn_once(f"arrival of {name}", f"{name} is loaded by {type(loader).__name__}, which "
                        "cannot be watched: its seams are not installed")


_finder = Finder()


def expect(name: str, arrived: Arrived) -> None:
    """Calls arrived with the module now if it is loaded, else once it is."""
    module = sys.modules.get(name)
    if module is not None and not _is_loading(module):
        arrived(module)
        return
    _finder.awaited[name] = arrived
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def _is_loading(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def forget() -> None:
    """Expects nothing any more, and leaves the import system as it was."""
    _finder.awaited.clear()
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
