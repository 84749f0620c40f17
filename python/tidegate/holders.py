# SPDX-License-Identifier: Apache-2.0
"""Who keeps memory: the Python container behind blocks that grow.

`find_holder` gets the blocks of a growing site and looks for the tensors that lie in them, then
level by level for what holds these, until one container is behind most of them. There are two ways.
The first goes down from what the program has at hand (`reaching`): it knows who holds whom as it
comes by, and walks over nothing else. Where that decides nothing, the second walks Python's
references backwards. It runs once per growth, in the program's own thread, so it has a budget:
every walk over all objects is begun only when the last one's time is still left. It keeps nothing
alive (an answer is text and numbers), runs no code of the program's objects (`looking`), and knows
no torch: what a tensor is, is told to it."""

from __future__ import annotations

import dataclasses
import functools
import gc
import inspect
import math
import sys
import time
import types
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Set, Tuple, cast

from . import looking, reaching

BUDGET_SECONDS = 0.2
REACH_SHARE = 1 / 3  # of the budget, for the way down
BLOCKS_MAX = 6  # of the site's blocks that are looked at: more tell no more, and each costs
TENSORS_MAX = 16
FRONTIER_MAX = 24
LEVELS_MAX = 6
NESTING_MAX = 3
MOST = 0.6  # a container behind this share of the blocks is their holder
ALLOCATIONS_MAX = 8_000_000  # Python's; beyond, one walk alone takes longer than the budget
ALLOCATION_SECONDS = 25e-9  # of the first walk, for each; the next takes as long as the last
WAYS = ("down", "up")  # what is tried in turn

_Level = Dict[int, Any]  # objects by their id
_Behind = Dict[int, Set[int]]  # the blocks that are reached through an object, by its id

# What waits with locals of its own: its word, and where its code and its state stand.
_WAITING: Tuple[Tuple[type, str, str, str], ...] = (
    (types.GeneratorType, "generator", "gi_code", "gi_running"),
    (types.CoroutineType, "coroutine", "cr_code", "cr_running"),
    (types.AsyncGeneratorType, "async generator", "ag_code", "ag_running"),
)
_FRAME_WORDS = ((inspect.CO_GENERATOR, "generator"), (inspect.CO_COROUTINE, "coroutine"),
                (inspect.CO_ASYNC_GENERATOR, "async generator"))
_TRACEBACK = "a traceback's frame of"


@dataclasses.dataclass(frozen=True)
class Holder:
    """The answer. `kind` is "none" for a tensor that no container holds, "native" for blocks
    without a Python object, "late" for what was not found in time."""

    kind: str
    name: Optional[str] = None
    items: Optional[int] = None
    home: Optional[str] = None  # where it lives: "dict of Actor"
    place: Optional[str] = None  # file:line that fills it
    blocks: int = 0  # behind so many of the blocks that were looked at
    blocks_seen: int = 0
    seconds: float = 0.0

    @property
    def is_found(self) -> bool:
        """Whether it names something."""
        return self.kind not in ("native", "none", "late")

    def __str__(self) -> str:
        if self.kind == "native":
            return "no Python object: autograd or C++"
        if self.kind == "none":
            return "no container found: a local of a running function, or C++"
        if self.kind == "late":
            return f"holder not found in {BUDGET_SECONDS * 1000:.0f} ms"
        text = self.kind
        if self.name is not None:
            text += f" '{self.name}'"
        if self.items is not None:
            text += f" ({self.items} item{'' if self.items == 1 else 's'})"
        if self.home is not None:
            text += f" in {self.home}"
        return text if self.place is None else f"{text}, {self.place}"

    def to_dict(self) -> Dict[str, Any]:
        """For JSON."""
        return dict(dataclasses.asdict(self), text=str(self))


class _OutOfTime(Exception):
    """The next walk would go beyond the budget."""


@dataclasses.dataclass(frozen=True)
class _Home:
    """Where a container lives, as far as it was found. Lower ranks say more."""

    rank: int
    name: Optional[str] = None
    text: Optional[str] = None
    place: Optional[str] = None
    is_attribute: bool = False


_NOWHERE = _Home(9, text="a local of a running function, or C++")
_LATE = _Home(9, text="a place not found in time")


def find_holder(blocks: Iterable[Tuple[int, int]], tensor_types: Sequence[type],
                address_of: Callable[[Any], Optional[int]], *, files: Iterable[str] = (),
                budget_seconds: float = BUDGET_SECONDS,
                clock: Callable[[], float] = time.perf_counter) -> Holder:
    """Finds what keeps the tensors in `blocks` (address, size in bytes).

    `tensor_types` are the classes of tensors, those derived from them included; `address_of` gives
    the address of one's data, None where it has none. `files` are those of the stack that made the
    blocks: their modules' globals are looked at first, with those of the callers. Never raises for
    what it meets."""
    begin = clock()
    sought = _Sought(sorted(blocks), _all_subclasses(tensor_types), address_of)
    found: Optional[Holder] = None
    hidden = _Hidden()
    reach = None
    try:
        if "down" in WAYS:
            down = _Look(sought, hidden, lambda: clock() > begin + REACH_SHARE * budget_seconds)
            reach = down.reach
            found = down.search(files)
        if found is None and "up" in WAYS:
            found = _Walk(sought, hidden, begin + budget_seconds, clock, reach).search()
    except _OutOfTime:
        pass
    return dataclasses.replace(found or Holder("late"), seconds=clock() - begin)


@dataclasses.dataclass(frozen=True)
class _Sought:
    """What is looked for: tensors of exactly these classes, in these blocks."""

    blocks: List[Tuple[int, int]]
    kinds: List[type]
    address_of: Callable[[Any], Optional[int]]

    def block_of(self, tensor: Any) -> Optional[int]:
        """Which of the blocks a tensor lies in."""
        return _block_of(self.blocks, self.address_of(tensor))



class _Hidden:
    """Whatever of the search holds the program's objects, and is hidden from its walks: such lists
    and dicts pass through `own`, tuples of them are unpacked before the next walk."""

    def __init__(self) -> None:
        self.owned: List[Any] = []  # kept to the end, so that their ids stay theirs
        self.numbers: Set[int] = {id(self.owned)}

    def own(self, thing: Any) -> Any:
        """Hides a container of ours from the walks."""
        self.owned.append(thing)
        self.numbers.add(id(thing))
        return thing


class _Search:
    """From tensors to their container, and to where that lives. Those who derive from it know who
    refers to whom: `_Look` what was met on the way down, `_Walk` all."""

    def __init__(self, sought: _Sought, hidden: _Hidden) -> None:
        self.sought = sought
        self.hidden = hidden
        self.own = hidden.own

    def referrers(self, sought: Iterable[Any]) -> List[Any]:
        """What holds any of these, but for ourselves and functions that run."""
        raise NotImplementedError

    def holders_of(self, one: Any) -> List[Any]:
        """The referrers of one object. Raises where there is no time to know them."""
        raise NotImplementedError

    def held(self, one: Any, numbers: Iterable[int]) -> Set[int]:
        """Which of these objects one holds."""
        raise NotImplementedError

    # ---- from tensors to the container

    def choose_tensors(self, by_block: Dict[int, List[int]],
                       objects: _Level) -> Tuple[_Level, _Behind]:
        """Some tensors that lie in a few of the blocks, and in which."""
        chosen = _spread(sorted(by_block), BLOCKS_MAX)
        each = max(1, TENSORS_MAX // max(1, len(chosen)))
        tensors: _Level = self.own({})
        behind: _Behind = {}
        for block in chosen:
            for number in by_block[block][:each]:
                tensors[number] = objects[number]
                behind[number] = {block}
        return tensors, behind

    def climb(self, level: _Level, behind: _Behind, want: int) -> Tuple[Any, Any, int]:
        """The container, what it holds on the way down, and how many blocks it is behind."""
        container, child, count = None, None, 0
        met: Set[int] = set(behind)
        for _ in range(LEVELS_MAX):
            try:
                above, children, behind = self.above(level, behind, met)
            except _OutOfTime:
                if count == 0:
                    raise
                break
            choice = _choose(above, behind)
            if choice is not None and (count == 0 or len(behind[choice]) >= want):
                container, child, count = above[choice], children[choice], len(behind[choice])
            rising = [number for number, one in above.items() if not _is_top(one)]
            if count >= want or not rising:
                break
            level = self.own({number: above[number] for number in rising[:FRONTIER_MAX]})
        return container, child, count

    def above(self, level: _Level, behind: _Behind,
              met: Set[int]) -> Tuple[_Level, _Level, _Behind]:
        """What refers to a level's objects, one object that each holds, the blocks behind each."""
        found: _Level = self.own({})
        children: _Level = self.own({})
        blocks: _Behind = {}
        for one in self.referrers(level.values()):
            number = id(one)
            held = self.held(one, level.keys())
            if number in met or not held:
                continue
            met.add(number)
            found[number] = one
            children[number] = level[min(held)]
            blocks[number] = set().union(*(behind[below] for below in held))
        return found, children, blocks

    # ---- what a container is called, and where it lives

    def describe(self, container: Any, child: Any) -> Holder:
        waiting = _waiting(container)
        if waiting is not None:
            word, code, _ = waiting
            return Holder(word, code.co_name, place=looking.place_of(code))
        if type(container) is types.CellType:
            home = self.home_of_cell(container)
            return Holder("closure variable", home.name, home=home.text, place=home.place)
        if looking.is_kind(container, dict):
            return self.describe_dict(container, child)
        if looking.length(container) is not None:
            home = self.home(container)
            return Holder(_kind_name(container), home.name, looking.length(container), home.text,
                          home.place)
        return _attribute(container, child)

    def describe_dict(self, container: looking.Names, child: Any) -> Holder:
        """A dict is a container of its own, or the names of a module, a class or an object."""
        home = _home_in_dict(container, child)
        if home.rank > 0:
            home = self.owner_of_dict(container, child)
        if home.is_attribute:
            where = None if home.text is None else home.text.removeprefix("dict of ")
            return Holder("global" if home.rank == 0 else "attribute", home.name, None, where,
                          home.place)
        home = self.home(container)
        return Holder(_kind_name(container), home.name, looking.length(container), home.text,
                      home.place)

    def home(self, container: Any, nesting: int = 0) -> _Home:
        """Where a container lives. One walk, two where a dict's owner or a closure is asked."""
        homes = []
        dicts, cells, nests = self.own([]), self.own([]), self.own([])
        for one in self.holders_of(container):
            homes.append(_home_in(one, container))
            if type(one) is types.CellType:
                cells.append(one)
            elif looking.is_kind(one, dict):
                dicts.append(one)
            elif looking.length(one) is not None:
                nests.append(one)
        best = min(homes, key=lambda home: home.rank, default=_NOWHERE)
        if best.rank <= 2:
            return best
        for one in dicts:
            try:
                owner = self.owner_of_dict(one, container)
            except _OutOfTime:  # what is known of the dict is said
                break
            if owner.is_attribute:
                return owner
        for one in cells:
            return self.home_of_cell(one)
        if dicts or nests:
            return self.nested((dicts or nests)[0], container, nesting)
        return best

    def nested(self, outer: Any, inner: Any, nesting: int) -> _Home:
        """A container in a container."""
        name = looking.key_of(outer, inner) if looking.is_kind(outer, dict) else None
        around = _NOWHERE
        if nesting < NESTING_MAX:
            try:
                around = self.home(outer, nesting + 1)
            except _OutOfTime:
                around = _LATE
        own = Holder(_kind_name(outer), around.name, looking.length(outer), around.text)
        return _Home(3, name, str(own), around.place)

    def owner_of_dict(self, names: looking.Names, child: Any) -> _Home:
        """The object, class or module whose names a dict holds; rank 9 where it is nobody's."""
        name = looking.key_of(names, child)
        for one in self.holders_of(names):
            if looking.is_kind(one, types.ModuleType):
                return _module_home(names, name)
            if looking.is_kind(one, type):
                return _class_home(one, name)
            if looking.length(one) is None and looking.own_dict(one) is names:
                return _object_home(one, name, "dict")
        return _NOWHERE

    def home_of_cell(self, cell: Any) -> _Home:
        """The function whose closure a cell is in."""
        tuples = [one for one in self.holders_of(cell) if type(one) is tuple]
        if not tuples:
            return _Home(4, text="a closure")
        for one in self.referrers(tuples[:FRONTIER_MAX]):
            if type(one) is types.FunctionType:
                name = looking.closure_name(one, cell)
                if name is not None:
                    return _function_home(one, name)
        return _Home(4, text="a closure")


class _Look(_Search):
    """The way down: what is met from the program's frames is all that is known."""

    def __init__(self, sought: _Sought, hidden: _Hidden, is_over: Callable[[], bool]) -> None:
        super().__init__(sought, hidden)
        self.is_over = is_over
        self.reach = reaching.Reach(len(sought.blocks), sought.kinds, sought.block_of, hidden.own)
        self.is_all_known = True

    def search(self, files: Iterable[str]) -> Optional[Holder]:
        """The container that all of the way tells of; None where others may know better."""
        self.reach.begin(files)
        ask_at = 0
        while self.reach.go_on(self.is_over):
            if self.reach.visits < ask_at or not self.is_met():
                continue
            found = self.answer(0)
            if found is not None or self.is_over():
                return found
            ask_at = self.reach.visits * 5 // 4 + reaching.CLOCK_PERIOD  # to describe costs, too
        return self.answer(3) if self.is_met() else None

    def is_met(self) -> bool:
        """Whether enough of the blocks are."""
        return len(self.reach.by_block) >= max(1, MOST * len(self.sought.blocks))

    def answer(self, rank: int) -> Optional[Holder]:
        """What is known by now, if it is a container of no higher rank, and where it lives is known
        without a walk."""
        by_block = self.reach.by_block
        tensors, behind = self.choose_tensors(by_block, self.reach.nodes)
        seen = len(set().union(*behind.values()))
        # Blocks whose tensors are not met count as held by others.
        want = math.ceil(_want(seen) * len(self.sought.blocks) / len(by_block))
        container, child, count = self.climb(tensors, behind, want)
        if count < want or _rank(container) > rank:
            return None
        self.is_all_known = True
        try:
            found = self.describe(container, child)
        except _OutOfTime:
            return None
        return dataclasses.replace(found, blocks=count, blocks_seen=seen) if self.is_all_known \
            else None

    def referrers(self, sought: Iterable[Any]) -> List[Any]:
        found = self.own({id(one): one for child in sought for one in self.reach.holders_of(child)})
        return cast(List[Any], self.own(list(found.values())))

    def holders_of(self, one: Any) -> List[Any]:
        found: List[Any] = self.own(self.reach.holders_of(one))
        if not found:  # a local, perhaps of others, too
            self.is_all_known = False
            raise _OutOfTime
        return found

    def held(self, one: Any, numbers: Iterable[int]) -> Set[int]:
        return self.reach.held(one, numbers)


class _Walk(_Search):
    """The way up: walks over all objects, as far as there is time."""

    def __init__(self, sought: _Sought, hidden: _Hidden, deadline: float,
                 clock: Callable[[], float], reach: Optional[reaching.Reach]) -> None:
        super().__init__(sought, hidden)
        self.clock = clock
        self.deadline = deadline
        self.scan_seconds = 0.0
        self.reach = reach
        self.known: Dict[int, List[Any]] = self.own({})  # referrers of one object, by its id

    def search(self) -> Holder:
        tensors, behind = self.tensors()
        if not tensors:
            return Holder("native", blocks_seen=len(self.sought.blocks))
        seen = len(set().union(*behind.values()))
        container, child, count = self.climb(tensors, behind, _want(seen))
        if count == 0:
            return Holder("none", blocks_seen=seen)
        try:
            answer = self.describe(container, child)
        except _OutOfTime:
            answer = Holder(_kind_name(container), items=looking.length(container),
                            home=_LATE.text)
        return dataclasses.replace(answer, blocks=count, blocks_seen=seen)

    # ---- from blocks to tensors

    def tensors(self) -> Tuple[_Level, _Behind]:
        """Some that lie in a few of the blocks, and in which: those that the way down has met, or
        young ones, where they are in all of the blocks; else any."""
        all_blocks = len(self.sought.blocks)
        if self.reach is not None:
            met = self.reach.kept_tensors()
            if len(met) == all_blocks:
                return self.choose_tensors(met, self.reach.nodes)
        objects: _Level = self.own({})
        by_block: Dict[int, List[int]] = {}
        for generation in (0, 1):
            self.sort(gc.get_objects(generation=generation), by_block, objects)
        if len(by_block) < all_blocks:
            objects.clear()
            by_block.clear()
            began = self.begin_scan()
            everything = gc.get_objects()
            self.scan_seconds = self.clock() - began  # to go through them takes as long
            self.sort(everything, by_block, objects)
        return self.choose_tensors(by_block, objects)

    def sort(self, everything: List[Any], by_block: Dict[int, List[int]], objects: _Level) -> None:
        """Sorts the tensors among objects by the blocks that they lie in. Empties the list."""
        candidates = _of_kinds(everything, self.sought.kinds)
        everything.clear()
        for count, one in enumerate(candidates):
            if count % 1024 == 1023 and self.clock() > self.deadline:
                raise _OutOfTime
            block = self.sought.block_of(one)
            if block is not None:
                objects[id(one)] = one
                by_block.setdefault(block, []).append(id(one))

    # ---- walks over all objects

    def begin_scan(self) -> float:
        """Raises when a walk would end behind the deadline, as far as the last one tells; before
        the first it is guessed."""
        now = self.clock()
        allocations = sys.getallocatedblocks()
        expected = self.scan_seconds or ALLOCATION_SECONDS * allocations
        if now + expected > self.deadline or allocations > ALLOCATIONS_MAX:
            raise _OutOfTime
        return now

    def referrers(self, sought: Iterable[Any]) -> List[Any]:
        objects: Tuple[Any, ...] = self.own(tuple(self.own(sought)))  # what is passed on, as it is
        began = self.begin_scan()
        found = self.own(gc.get_referrers(*objects))
        self.scan_seconds = self.clock() - began
        kept: List[Any] = self.own([one for one in found
                                    if id(one) not in self.hidden.numbers
                                    and not _is_passing(one)])
        return kept

    def holders_of(self, one: Any) -> List[Any]:
        """Asked twice, it is walked for once. Where there is no time for that, what the way down
        has met is known."""
        number = id(one)
        if number not in self.known:
            try:
                self.known[number] = self.referrers([one])
            except _OutOfTime:
                met = self.own([] if self.reach is None else self.reach.holders_of(one))
                if not met:
                    raise
                self.known[number] = met
        return self.known[number]

    def held(self, one: Any, numbers: Iterable[int]) -> Set[int]:
        return set(numbers).intersection(map(id, gc.get_referents(one)))


# ---- tensors in blocks --------------------------------------------------------------------------


def _all_subclasses(kinds: Iterable[type]) -> List[type]:
    """These classes and all that derive from them."""
    found: Dict[int, type] = {}
    waiting = list(kinds)
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting.extend(type.__subclasses__(one))
    return list(found.values())


def _of_kinds(objects: List[Any], kinds: List[type]) -> List[Any]:
    """Those of exactly these classes. By identity, as a metaclass may hash as it likes; where none
    does, by a set of them, which takes half the time."""
    if all(_hashes_plainly(kind) for kind in _all_subclasses(type.__subclasses__(type))):
        classes = set(kinds)
        return [one for one in objects if type(one) in classes]
    numbers = set(map(id, kinds))
    return [one for one in objects if id(type(one)) in numbers]


def _hashes_plainly(metaclass: type) -> bool:
    if looking.class_module(metaclass) == "typing_extensions":
        return True  # always there with torch: it passes the question on to type
    return looking.class_dict(metaclass).get("__hash__", type.__hash__) is type.__hash__


def _block_of(blocks: List[Tuple[int, int]], address: Optional[int]) -> Optional[int]:
    """Which of the sorted blocks an address lies in."""
    if address is None:
        return None
    low, high = 0, len(blocks)
    while low < high:
        middle = (low + high) // 2
        if blocks[middle][0] <= address:
            low = middle + 1
        else:
            high = middle
    if low == 0 or address >= blocks[low - 1][0] + blocks[low - 1][1]:
        return None
    return low - 1


def _spread(numbers: List[int], count: int) -> List[int]:
    """At most so many of them, from all over."""
    if len(numbers) <= count:
        return numbers
    return [numbers[i * len(numbers) // count] for i in range(count)]


# ---- what is what -------------------------------------------------------------------------------


def _is_passing(one: Any) -> bool:
    """What holds an object only while something runs: no container."""
    if type(one) is types.FrameType and one.f_code.co_filename in (__file__, reaching.__file__):
        return True
    waiting = _waiting(one)
    return waiting is not None and waiting[2]


def _waiting(one: Any) -> Optional[Tuple[str, types.CodeType, bool]]:
    """Of what has locals of its own: its word, its code, and whether it runs at this moment. Up to
    Python 3.10 it is the frame of a generator that holds its locals."""
    if type(one) is types.FrameType:
        words = [word for flag, word in _FRAME_WORDS if one.f_code.co_flags & flag]
        return (words or [_TRACEBACK])[0], one.f_code, looking.is_running(one)
    for kind, word, code, running in _WAITING:
        if type(one) is kind:
            return word, getattr(one, code), bool(getattr(one, running))
    return None


def _is_top(one: Any) -> bool:
    """Above it nothing says more: the names of a module or a class, a frame."""
    if type(one) is types.FrameType or looking.is_kind(one, type, types.ModuleType):
        return True
    return looking.is_kind(one, dict) and looking.module_of(one) is not None


def _want(seen: int) -> int:
    """How many of the blocks that are looked at a holder is behind."""
    return max(min(2, seen), math.ceil(MOST * seen))


def _kind_name(one: Any) -> str:
    return looking.class_name(type(one))


def _rank(one: Any) -> int:
    """What can gather things comes first, what is only passed through last."""
    if looking.is_kind(one, tuple, frozenset):
        return 2
    if looking.length(one) is not None:
        return 0
    if type(one) is types.CellType or type(one) is functools.partial:
        return 1
    if looking.own_dict(one) is not None:
        return 1
    return 3


def _choose(above: _Level, behind: _Behind) -> Optional[int]:
    """The one behind most blocks; of those, the most container-like."""
    def key(number: int) -> Tuple[int, int, int]:
        one = above[number]
        return -len(behind[number]), _rank(one), looking.length(one) or 0

    return min(above, key=key, default=None)


# ---- homes --------------------------------------------------------------------------------------


def _home_in(one: Any, child: Any) -> _Home:
    """Where `child` lives, as far as one of its referrers tells without a walk."""
    if looking.is_kind(one, dict):
        return _home_in_dict(one, child)
    if looking.is_kind(one, type):
        return _class_home(one, _key_in_class(one, child))
    if type(one) is types.FunctionType:
        return _Home(2, text=f"function {one.__qualname__}",
                     place=looking.place_of(one.__code__))
    waiting = _waiting(one)
    if waiting is not None:
        word, code, _ = waiting
        rank = 5 if word == _TRACEBACK else 2
        return _Home(rank, text=f"{word} {code.co_name}", place=looking.place_of(code))
    if type(one) is functools.partial:
        return _Home(2, text=f"a functools.partial of {_callable_name(one.func)}")
    if looking.length(one) is not None or type(one) is types.CellType:
        return _Home(6)
    slot = looking.slot_of(one, child)
    if slot is not None:
        return _object_home(one, slot, "slot")
    attributes = looking.own_dict(one)
    name = None if attributes is None else looking.key_of(attributes, child)
    if name is not None:
        return _object_home(one, name, "dict")
    return _Home(6, text=_kind_name(one))


def _home_in_dict(names: looking.Names, child: Any) -> _Home:
    module = looking.module_of(names)
    if module is None:
        return _Home(6)
    return _module_home(names, looking.key_of(names, child))


def _module_home(names: looking.Names, name: Optional[str]) -> _Home:
    module = looking.label(dict.get(names, "__name__")) or "a module"
    place = None if name is None else looking.line_in_module(names, name)
    return _Home(0, name, f"module {module}", place, is_attribute=True)


def _class_home(cls: type, name: Optional[str]) -> _Home:
    place = None if name is None else looking.line_in_class(cls, name)
    return _Home(1, name, f"class {looking.class_name(cls)}", place, is_attribute=True)


def _key_in_class(cls: type, child: Any) -> Optional[str]:
    for key, value in list(looking.class_dict(cls).items()):
        if value is child:
            return looking.label(key)
    return None


def _object_home(one: Any, name: Optional[str], where: str) -> _Home:
    cls = type(one)
    place = None if name is None else looking.line_in_class(cls, name)
    return _Home(1, name, f"{where} of {looking.class_name(cls)}", place, is_attribute=True)


def _function_home(function: types.FunctionType, name: str) -> _Home:
    return _Home(2, name, f"closure of {function.__qualname__}",
                 looking.line_in_function(function, name))


def _callable_name(one: Any) -> str:
    return one.__qualname__ if type(one) is types.FunctionType else _kind_name(one)


def _attribute(one: Any, child: Any) -> Holder:
    """An object that is no container, and holds a tensor itself."""
    if type(one) is types.FunctionType:
        return Holder("defaults", home=f"function {one.__qualname__}",
                      place=looking.place_of(one.__code__))
    if type(one) is functools.partial:
        return Holder("argument", home=f"a functools.partial of {_callable_name(one.func)}")
    if type(one) is types.MethodType:
        return Holder("bound method", _callable_name(one.__func__))
    name = looking.attribute_of(one, child)
    place = None if name is None else looking.line_in_class(type(one), name)
    if name is None:
        return Holder("object", home=_kind_name(one))
    return Holder("attribute", name, home=_kind_name(one), place=place)
