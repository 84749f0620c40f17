# SPDX-License-Identifier: Apache-2.0
"""What a program can reach from where it stands: the way down from its frames to its tensors.

A `Reach` goes breadth first from the locals of the calling thread's frames, from the globals of
their modules and of the files it is told, and from what other threads were started with. It
remembers who holds whom, so that a tensor's container and its home are known without a walk over
all objects. Large containers are looked at where they grow, and there is an end to the objects that
are visited. It runs no code of the program's objects, and holds objects in two containers only,
which its caller hides (`own`); the rest is numbers."""

from __future__ import annotations

import os
import sys
import threading
import types
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from . import looking

VISITS_MAX = 40_000  # objects that are looked into
SAMPLE_LEAST, SAMPLE_MOST = 128, 4096  # items of a large container
HELD_MAX = 20_000  # items of one that is seen to hold what is sought
CLOCK_PERIOD = 256  # objects between two readings

_LIBRARIES = frozenset(getattr(sys, "stdlib_module_names", ())) | {"torch", "tidegate"}
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep

_SKIP, _LOOK, _FUNCTION, _WAITING, _TENSOR = range(5)  # what to do with objects of a class


class Reach:
    """Objects by their id, and the ids of those that hold them; tensors in `blocks` by block.

    `kinds` are the exact classes of tensors; `block_of` tells which block a tensor lies in."""

    def __init__(self, block_count: int, kinds: Sequence[type],
                 block_of: Callable[[Any], Optional[int]], own: Callable[[Any], Any]) -> None:
        self.nodes: Dict[int, Any] = own({})
        self.order: List[Any] = own([])
        self.parents: Dict[int, List[int]] = {}
        self.by_block: Dict[int, List[int]] = {}
        self.visits = 0
        self._tensors_met: Set[int] = set()
        self._sample = min(SAMPLE_MOST, max(SAMPLE_LEAST, 4 * block_count))
        self._block_of = block_of
        self._namespaces: Set[int] = set()
        self._roots: Set[int] = set()
        self._running: Set[int] = set()
        self._doings: Dict[int, int] = {id(kind): _TENSOR for kind in kinds}
        self._classes: List[type] = own([])  # those above: their ids stay theirs

    # ---- where it begins

    def begin(self, files: Iterable[str]) -> None:
        """From the frames of the caller's thread, the innermost first; their modules and those of
        the files; what other threads were started with."""
        frames = looking.stack_of(sys._getframe(1))  # with its own it would keep itself alive
        own = [frame for frame in frames if not frame.f_code.co_filename.startswith(_OURS)]
        self._running = looking.running_frames()
        globals_of = {id(frame.f_globals): frame.f_globals for frame in own}
        named = frozenset(files)
        for module in list(sys.modules.values()):
            namespace = looking.namespace_of(module)
            if namespace is not None:
                self._namespaces.add(id(namespace))
                if named and looking.file_of(namespace) in named:
                    globals_of[id(namespace)] = namespace
        for frame in own:
            for one in looking.locals_of(frame):
                self._meet(one, None)
        for namespace in globals_of.values():
            if not _is_library(namespace):
                self._roots.add(id(namespace))
                self._meet(namespace, None)
        current = threading.current_thread()
        for thread in list(getattr(threading, "_active", {}).values()):
            if thread is not current:
                self._meet(thread, None)

    # ---- how it goes on

    def go_on(self, is_over: Callable[[], bool]) -> bool:
        """Looks into all objects of one level; False where there is no further one, or no time."""
        end = len(self.order)
        while self.visits < end:
            if self.visits >= VISITS_MAX or (self.visits % CLOCK_PERIOD == 0 and is_over()):
                return False
            one = self.order[self.visits]
            self.visits += 1
            if not self._look_into(one, is_over):
                return False
        return len(self.order) > end

    def _look_into(self, one: Any, is_over: Callable[[], bool]) -> bool:
        """What it holds is met; where it is large and what is sought is in it, more of it."""
        number = id(one)
        kind = self._doings[id(type(one))]
        if kind == _FUNCTION:
            children, is_all = looking.kept_by_function(one), True
        elif number in self._roots:
            children, is_all = looking.newest(one, HELD_MAX)
        else:
            children, is_all = looking.newest(one, self._sample)
        met = len(self._tensors_met)
        if not self._meet_all(children, number, is_over):
            return False
        if is_all or len(self._tensors_met) == met:
            return True
        known = set(map(id, children))
        more = [child for child in looking.newest(one, HELD_MAX)[0] if id(child) not in known]
        return self._meet_all(more, number, is_over)

    def _meet_all(self, children: List[Any], parent: int, is_over: Callable[[], bool]) -> bool:
        for count, child in enumerate(children, 1):
            self._meet(child, parent)
            if count % CLOCK_PERIOD == 0 and is_over():
                return False
        return True

    def _meet(self, one: Any, parent: Optional[int]) -> None:
        doing = self._doings.get(id(type(one)))
        if doing is None:
            doing = self._doing(type(one))
        if doing == _SKIP:
            return
        number = id(one)
        if number not in self.nodes:
            if doing == _TENSOR:
                if not self._meet_tensor(one):
                    return
            elif doing == _WAITING and (number in self._running or looking.is_at_work(one)):
                return
            elif number in self._namespaces and number not in self._roots:
                return
            else:
                self.order.append(one)
            self.nodes[number] = one
        if parent is not None and parent != number:
            self.parents.setdefault(number, []).append(parent)

    def _meet_tensor(self, one: Any) -> bool:
        block = self._block_of(one)
        if block is None:
            return False
        self._tensors_met.add(id(one))
        self.by_block.setdefault(block, []).append(id(one))
        return True

    def _doing(self, kind: type) -> int:
        """By a class's id: a metaclass may hash and compare as it likes."""
        if kind is types.FunctionType:
            doing = _FUNCTION
        elif looking.is_waiting_kind(kind):
            doing = _WAITING
        elif kind is types.CodeType or issubclass(kind, (type, types.ModuleType)):
            doing = _SKIP
        else:
            doing = _LOOK if looking.can_refer(kind) else _SKIP
        self._classes.append(kind)
        self._doings[id(kind)] = doing
        return doing

    # ---- what it knows

    def holders_of(self, one: Any) -> List[Any]:
        """Those met that hold it; none where it was met as a local only."""
        return [self.nodes[number] for number in dict.fromkeys(self.parents.get(id(one), ()))]

    def held(self, one: Any, numbers: Iterable[int]) -> Set[int]:
        """Which of these it holds, as far as it was looked at."""
        return {number for number in numbers if id(one) in self.parents.get(number, ())}

    def kept_tensors(self) -> Dict[int, List[int]]:
        """By block, the ids of tensors that more than a running function holds."""
        kept = {block: [number for number in numbers if number in self.parents]
                for block, numbers in self.by_block.items()}
        return {block: numbers for block, numbers in kept.items() if numbers}


def _is_library(namespace: looking.Names) -> bool:
    name = looking.module_of(namespace)
    return name is not None and name.partition(".")[0] in _LIBRARIES
