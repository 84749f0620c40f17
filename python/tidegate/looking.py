# SPDX-License-Identifier: Apache-2.0
"""Looks at objects of the program without running any code of theirs.

A class may define ``__getattr__``, ``__eq__``, ``__len__``, ``__repr__`` or a property called
``__dict__``; what looks for a leak must not set them off. So only slots of CPython's own types are
asked, by way of the types themselves, objects are compared by identity alone, and names come from
text that is text. Nothing here keeps an object."""

from __future__ import annotations

import collections
import dis
import gc
import inspect
import itertools
import os
import sys
import threading
import types
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Tuple, cast

Names = Dict[Any, Any]

_MODULE_DICT: Any = vars(types.ModuleType)["__dict__"]
_SIZED = (list, tuple, dict, set, frozenset, collections.deque)
_FILLS = frozenset(("append", "extend", "add", "update", "insert", "setdefault", "appendleft",
                    "extendleft", "__setitem__", "put", "put_nowait"))
_CODES_MAX = 400  # code objects that a search for a line may look into
_HAS_REFERENCES = 1 << 14  # CPython's flag of classes whose objects the collector goes through
_GIVES_LOCALS = frozenset(("locals", "vars"))
_RUNNING = {types.GeneratorType: "gi_running", types.CoroutineType: "cr_running",
            types.AsyncGeneratorType: "ag_running"}


def is_kind(obj: Any, *kinds: type) -> bool:
    """As isinstance, but does not ask the object's ``__class__``."""
    return issubclass(type(obj), kinds)


def is_exactly(obj: Any, *kinds: type) -> bool:
    """Whether its class is one of these: by identity, since a metaclass may compare as it likes."""
    return any(type(obj) is kind for kind in kinds)


def mro(cls: type) -> Tuple[type, ...]:
    """The classes behind a class, itself first."""
    return cast(Tuple[type, ...], vars(type)["__mro__"].__get__(cls))


def class_dict(cls: type) -> Mapping[str, Any]:
    """The names of one class, without those that it inherits."""
    return cast(Mapping[str, Any], vars(type)["__dict__"].__get__(cls))


def class_name(cls: type) -> str:
    """The name of a class, as it was written."""
    return cast(str, vars(type)["__qualname__"].__get__(cls))


def class_module(cls: type) -> str:
    """The name of the module that defined a class; empty where it is not known."""
    name = class_dict(cls).get("__module__")
    return name if type(name) is str else ""


def own_dict(obj: Any) -> Optional[Names]:
    """The dict of an object's attributes; None where it has none, or where its class hides it."""
    for cls in mro(type(obj)):
        getter = class_dict(cls).get("__dict__")
        if getter is None:
            continue
        if not is_exactly(getter, types.GetSetDescriptorType, types.MemberDescriptorType):
            return None
        found = getter.__get__(obj, type(obj))
        return found if is_kind(found, dict) else None
    return None


def items_of(mapping: Names) -> List[Tuple[Any, Any]]:
    """Keys and values at one moment, past what a class derived from dict makes of them."""
    return list(dict.items(mapping))


def length(obj: Any) -> Optional[int]:
    """How many items a container has; None for what is none."""
    for kind in _SIZED:
        if is_kind(obj, kind):
            return kind.__len__(obj)
    return None


def label(key: Any) -> Optional[str]:
    """A key as text, where that needs no code of its class."""
    if type(key) is str:
        return key if len(key) <= 60 else key[:57] + "..."
    if is_exactly(key, int, bool):
        return str(key)
    return None


def key_of(mapping: Names, child: Any) -> Optional[str]:
    """The key under which a dict holds an object, as text."""
    for key, value in items_of(mapping):
        if value is child:
            return label(key)
    return None


def attribute_of(obj: Any, child: Any) -> Optional[str]:
    """The attribute, in the object's dict or in a slot, that is `child`."""
    attributes = own_dict(obj)
    if attributes is not None:
        name = key_of(attributes, child)
        if name is not None:
            return name
    return slot_of(obj, child)


def slot_of(obj: Any, child: Any) -> Optional[str]:
    """The slot of an object that is `child`."""
    for cls in mro(type(obj)):
        for name, member in list(class_dict(cls).items()):
            if type(member) is not types.MemberDescriptorType:
                continue
            try:
                if member.__get__(obj, type(obj)) is child:
                    return name
            except AttributeError:  # a slot that was never filled
                pass
    return None


def module_of(mapping: Names) -> Optional[str]:
    """The name of the module whose globals a dict is; None: it is no module's."""
    name = dict.get(mapping, "__name__")
    if type(name) is not str:
        return None
    module = sys.modules.get(name)
    if not is_kind(module, types.ModuleType):
        return None
    return name if _MODULE_DICT.__get__(module) is mapping else None


def file_of(mapping: Names) -> Optional[str]:
    """The file that a module's globals name."""
    path = dict.get(mapping, "__file__")
    return path if type(path) is str else None


def namespace_of(module: Any) -> Optional[Names]:
    """The dict of a module's globals; None for what is no module."""
    if not is_kind(module, types.ModuleType):
        return None
    return cast(Optional[Names], _MODULE_DICT.__get__(module))


# ---- what runs ----------------------------------------------------------------------------------


def stack_of(top: Optional[types.FrameType]) -> List[types.FrameType]:
    """A frame and those that called it."""
    frames = []
    while top is not None:
        frames.append(top)
        top = top.f_back
    return frames


def running_frames() -> Set[int]:
    """The ids of the frames that some thread is executing, or what they called; without this one,
    which would be kept alive by itself, and its callers by it."""
    tops = sys._current_frames()
    tops[threading.get_ident()] = sys._getframe(1)
    found: Set[int] = set()
    for top in tops.values():
        found.update(map(id, stack_of(top)))
    return found


def is_running(frame: types.FrameType) -> bool:
    """Whether some thread is executing this frame, or what it called."""
    return id(frame) in running_frames()


def is_waiting_kind(kind: type) -> bool:
    """Whether objects of this class have locals of their own."""
    return kind is types.FrameType or any(kind is one for one in _RUNNING)


def is_at_work(one: Any) -> bool:
    """Whether a generator or a coroutine runs at this moment."""
    return any(type(one) is kind and bool(getattr(one, name)) for kind, name in _RUNNING.items())


def locals_of(frame: types.FrameType) -> List[Any]:
    """What the locals of one of this thread's running functions are.

    Up to Python 3.12 to ask makes a dict that would keep them all until the function returns, so
    they are taken out of it, and what `exec` has put there besides stays; but not where the program
    may hold that dict, or where a debugger would write it back: there nothing is asked. Modules and
    classes have no locals, but names."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return []
    if sys.version_info >= (3, 13):
        return list(frame.f_locals.values())
    if sys.gettrace() is not None or sys.getprofile() is not None or frame.f_trace is not None:
        return []
    if _asks_for_locals(code):
        return []
    names = frame.f_locals
    found = list(names.values())
    if sys.getrefcount(names) == 3:  # ours, the frame's, and the question's
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            names.pop(name, None)
    return found


def _asks_for_locals(code: types.CodeType) -> bool:
    """Whether a function calls what gives it the dict of its locals."""
    if _GIVES_LOCALS.isdisjoint(code.co_names):
        return False
    return any(one.opname in ("LOAD_GLOBAL", "LOAD_NAME") and one.argval in _GIVES_LOCALS
               for one in dis.get_instructions(code))


# ---- what an object holds -----------------------------------------------------------------------


def can_refer(kind: type) -> bool:
    """Whether objects of this class may hold others, as far as the collector is told."""
    return bool(vars(type)["__flags__"].__get__(kind) & _HAS_REFERENCES)


def kept_by_function(function: types.FunctionType) -> List[Any]:
    """Its closure, its defaults and its attributes: not the globals that it sees."""
    seen = function.__globals__
    return [one for one in gc.get_referents(function) if one is not seen]


def newest(obj: Any, most: int) -> Tuple[List[Any], bool]:
    """What an object holds, and whether that is all: of a container that has more than so many
    items those at its end, where it grows; of a deque those at both."""
    size = length(obj)
    if size is None or size <= most:
        return gc.get_referents(obj), True
    try:
        if is_kind(obj, list):
            return list.__getitem__(obj, slice(-most, None)), False
        if is_kind(obj, tuple):
            return list(tuple.__getitem__(obj, slice(-most, None))), False
        return list(itertools.islice(_from_the_end(obj, most), most)), False
    except RuntimeError:  # a finalizer, run by the collector in between, has changed it
        return [], False


def _from_the_end(obj: Any, most: int) -> Iterator[Any]:
    if is_kind(obj, dict):
        return reversed(dict.values(obj))
    if is_kind(obj, collections.deque):
        half = most // 2
        return itertools.chain(
            itertools.islice(collections.deque.__reversed__(obj), most - half),
            itertools.islice(collections.deque.__iter__(obj), half))
    kind = set if is_kind(obj, set) else frozenset
    return kind.__iter__(obj)


def closure_name(function: types.FunctionType, cell: Any) -> Optional[str]:
    """The variable of the enclosing function that a cell of this function is."""
    cells = function.__closure__ or ()
    for name, own in zip(function.__code__.co_freevars, cells):
        if own is cell:
            return name
    return None


# ---- the line that fills a container ------------------------------------------------------------


def line_in_class(cls: type, name: str) -> Optional[str]:
    """Where the code of a class fills the attribute of this name: file:line."""
    return _best_line(_class_codes(cls), name)


def line_in_function(function: types.FunctionType, name: str) -> str:
    """Where a function fills the variable of this name; where it begins, if it does not."""
    code = function.__code__
    return _best_line(_function_codes(function), name) or _place(code, code.co_firstlineno)


def line_in_module(mapping: Names, name: str) -> Optional[str]:
    """Where the functions of a module fill the global of this name; else the module's file."""
    path = file_of(mapping)
    return _best_line(_module_codes(mapping), name) or (path and os.path.basename(path))


def place_of(code: types.CodeType) -> str:
    """Where a function begins: file:line."""
    return _place(code, code.co_firstlineno)


def _place(code: types.CodeType, line: int) -> str:
    return f"{os.path.basename(code.co_filename)}:{line}"


def _best_line(codes: Iterable[types.CodeType], name: str) -> Optional[str]:
    best, best_rank = None, 3
    for count, code in enumerate(codes):
        if count >= _CODES_MAX or best_rank == 0:
            break
        if name in code.co_names or name in code.co_freevars or name in code.co_cellvars:
            rank, line = _line_of(code, name)
            if line is not None and rank < best_rank:
                best, best_rank = _place(code, line), rank
    return best


def _line_of(code: types.CodeType, name: str) -> Tuple[int, Optional[int]]:
    """The best line of one function: 0 adds to it, 1 sets it, 2 sets it up."""
    best, best_rank, line = None, 3, code.co_firstlineno
    instructions = list(dis.get_instructions(code))
    starts = dict(dis.findlinestarts(code))
    for at, one in enumerate(instructions):
        line = starts.get(one.offset) or line
        if one.argval != name:
            continue
        if one.opname.startswith("STORE_"):
            rank = 2 if code.co_name == "__init__" else 1
        elif one.opname.startswith("LOAD_") and _adds(instructions[at + 1:at + 4]):
            rank = 0
        else:
            continue
        if rank < best_rank:
            best, best_rank = line, rank
    return best_rank, best


def _adds(following: List[dis.Instruction]) -> bool:
    """Whether what was just loaded is added to: x.append(...), or x[...] = ..."""
    names = [one for one in following if one.opname not in ("CACHE", "NOP", "PUSH_NULL")]
    if names and names[0].opname in ("LOAD_METHOD", "LOAD_ATTR"):
        return names[0].argval in _FILLS
    return any(one.opname == "STORE_SUBSCR" for one in names)


def _class_codes(cls: type) -> Iterator[types.CodeType]:
    for base in mro(cls):
        for member in list(class_dict(base).values()):
            yield from _member_codes(member)


def _member_codes(member: Any) -> Iterator[types.CodeType]:
    if is_exactly(member, staticmethod, classmethod):
        member = member.__func__
    elif type(member) is property:
        member = member.fget
    if type(member) is types.FunctionType:
        yield from _function_codes(member)


def _function_codes(function: types.FunctionType) -> Iterator[types.CodeType]:
    """A function, those inside it, and the one that a decorator wrapped."""
    yield from _nested(function.__code__)
    for cell in function.__closure__ or ():
        inner = [one for one in gc.get_referents(cell) if type(one) is types.FunctionType]
        for one in inner:
            yield from _nested(one.__code__)


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    waiting = [code]
    while waiting:
        one = waiting.pop()
        yield one
        waiting.extend(c for c in one.co_consts if type(c) is types.CodeType)


def _module_codes(mapping: Names) -> Iterator[types.CodeType]:
    name = module_of(mapping)
    for _, member in items_of(mapping):
        if type(member) is types.FunctionType:
            if member.__globals__ is mapping:
                yield from _function_codes(member)
        elif is_kind(member, type) and class_module(member) == name:
            for inner in list(class_dict(member).values()):
                yield from _member_codes(inner)
