# SPDX-License-Identifier: Apache-2.0
"""The holder of growing blocks: every kind of container, what is no container, the budget."""

import collections
import functools
import gc
import sys
import time
import types
import weakref

import pytest
from holder_world import (SIZE, Actor, FakeParameter, FakeTensor, Hashed, Slotted, Ticks, blocks,
                          find, find_up, kept_by_actor, line_of, own_addresses, tensors, touchy)

from tidegate import holders, looking


def test_list_in_an_attribute():
    actor = Actor()
    for i in range(6):
        actor.update(i)
    found = find(6)
    place = line_of(Actor.update, "self.outputs.append")
    assert str(found) == f"list 'outputs' (6 items) in dict of Actor, {place}"
    assert (found.kind, found.name, found.items) == ("list", "outputs", 6)
    assert found.blocks == found.blocks_seen == 6


def test_the_same_where_the_dict_of_attributes_was_asked_for():
    actor = Actor()
    names = actor.__dict__
    actor.update(0)
    actor.update(1)
    assert str(find(2)).startswith("list 'outputs' (2 items) in dict of Actor")
    assert names


class Memory:
    """Keeps tensors by number."""

    def __init__(self):
        self.kept = {}

    def remember(self, number):
        self.kept[number] = FakeTensor(number)


def test_dict_filled_by_item():
    memory = Memory()
    for i in range(3):
        memory.remember(i)
    place = line_of(Memory.remember, "self.kept[number]")
    assert str(find(3)) == f"dict 'kept' (3 items) in dict of Memory, {place}"


def test_attribute_that_is_set_anew_is_placed_where_it_is_set():
    class Last:
        def __init__(self):
            self.logits = None

        def update(self, number):
            self.logits = FakeTensor(number)

    last = Last()
    last.update(0)
    place = line_of(test_attribute_that_is_set_anew_is_placed_where_it_is_set,
                    "self.logits = FakeTensor")
    assert find(1).place == place


@pytest.mark.parametrize("kind", [collections.deque, collections.OrderedDict, tuple,
                                  functools.partial(collections.defaultdict, list)])
def test_other_containers(kind):
    actor = Actor(dict)
    actor.outputs = kind(enumerate(tensors(4))) if kind is collections.OrderedDict else kind()
    if kind is tuple:
        actor.outputs = tuple(tensors(4))
    elif kind is collections.deque:
        actor.outputs.extend(tensors(4))
    elif kind is not collections.OrderedDict:
        actor.outputs.update(enumerate(tensors(4)))
    name = type(actor.outputs).__qualname__
    assert str(find(4)).startswith(f"{name} 'outputs' (4 items) in dict of Actor")


def test_set():
    actor = Actor(set)
    for i in range(4):
        actor.outputs.add(Hashed(i))
    assert str(find(4)).startswith("set 'outputs' (4 items) in dict of Actor")


class Odd(list):
    """A list whose every method is the program's own."""

    def __len__(self):
        raise AssertionError("asked for its length")

    def __iter__(self):
        raise AssertionError("gone through")

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")

    def __repr__(self):
        raise AssertionError("printed")

    @property
    def __class__(self):
        raise AssertionError("asked for its class")


def test_a_class_derived_from_list_is_not_asked():
    actor = Actor()
    odd = Odd()
    list.extend(odd, tensors(3))
    actor.outputs = odd
    assert str(find(3)).startswith("Odd 'outputs' (3 items) in dict of Actor")


class Secretive:
    """Hides its dict, and answers every question with an error."""

    def __init__(self):
        object.__setattr__(self, "kept", tensors(2))

    def __getattribute__(self, name):
        raise AssertionError(f"asked for {name}")

    @property
    def __dict__(self):
        raise AssertionError("asked for its dict")


def test_an_object_that_answers_nothing():
    secretive = Secretive()
    found = find(2)
    assert (found.kind, found.items) == ("list", 2)
    assert secretive is not None


def test_a_class_whose_class_answers_nothing(touchy):
    holder = touchy("Holder", (), {})()
    object.__setattr__(holder, "kept", tensors(2))
    direct = touchy("Direct", (), {})()
    object.__setattr__(direct, "last", FakeTensor(2))
    found = find(2)
    assert (found.kind, found.name, found.items) == ("list", "kept", 2)
    found = find(3)
    assert found.name == "kept" and direct is not None


def test_touchy_classes_of_tensors(touchy):
    kind = touchy("Tensor", (FakeTensor,), {"__slots__": ()})
    actor = Actor()
    for i in range(2):
        tensor = type.__call__(kind, i)
        actor.outputs.append(tensor)
    assert find(2).name == "outputs"


def test_slots():
    one = Slotted()
    one.kept = tensors(3)
    assert str(find(3)) == "list 'kept' (3 items) in slot of Slotted"


def test_one_tensor_in_an_attribute_and_in_a_slot():
    actor = Actor()
    actor.outputs = FakeTensor(0)
    said = str(find(1))
    assert said.startswith("attribute 'outputs' in Actor")
    assert vars(actor) and str(find(1)) == said
    del actor
    one = Slotted()
    one.kept = FakeTensor(0)
    assert str(find(1)) == "attribute 'kept' in Slotted"


KEPT = []


def test_global_of_a_module():
    KEPT.extend(tensors(5))
    try:
        found = find(5)
    finally:
        KEPT.clear()
    place = line_of(test_global_of_a_module, "KEPT.extend")
    assert str(found) == f"list 'KEPT' (5 items) in module {__name__}, {place}"


def test_global_of_a_module_that_is_nowhere_registered():
    module = types.ModuleType("unlisted")
    module.cache = tensors(2)
    assert str(find(2)) == "list 'cache' (2 items) in module unlisted"


def test_tensors_that_are_themselves_globals():
    module = types.ModuleType("loose")
    sys.modules["loose"] = module
    try:
        for i in range(3):
            setattr(module, f"last{i}", FakeTensor(i))
        found = find(3)
    finally:
        del sys.modules["loose"]
    assert found.kind == "global" and found.home == "module loose"


@pytest.fixture
def walks(monkeypatch):
    """How many objects each walk over all references was asked about."""
    seen = []

    def counted(*objects, real=gc.get_referrers):
        seen.append(len(objects))
        # The call to here is in a tuple, too.
        return [one for one in real(*objects) if type(one) is not tuple]

    monkeypatch.setattr(gc, "get_referrers", counted)
    return seen


def test_above_the_names_of_a_module_nothing_is_sought(walks):
    modules = [types.ModuleType("left"), types.ModuleType("right")]
    for i, module in enumerate(modules):
        sys.modules[module.__name__] = module
        module.kept = FakeTensor(i)
    try:
        found = find_up(2)
    finally:
        for module in modules:
            del sys.modules[module.__name__]
    assert (found.kind, found.name) == ("global", "kept")
    assert walks == [2]


def test_names_of_modules_are_known():
    assert looking.module_of(globals()) == __name__
    assert looking.module_of(dict(globals())) is None
    assert looking.module_of({"__name__": 5}) is None


class Shared:
    cache = []


def test_attribute_of_a_class():
    Shared.cache.extend(tensors(2))
    try:
        assert str(find(2)) == "list 'cache' (2 items) in class Shared"
    finally:
        Shared.cache.clear()


def make_step():
    outputs = []

    def step(number):
        outputs.append(FakeTensor(number))

    return step


def test_closure():
    step = make_step()
    for i in range(3):
        step(i)
    place = line_of(make_step, "outputs.append")
    assert str(find(3)) == ("list 'outputs' (3 items) in closure of make_step.<locals>.step, "
                            f"{place}")


def test_one_tensor_in_a_closure():
    def keep(tensor):
        return lambda: tensor

    call = keep(FakeTensor(0))
    found = find(1)
    assert (found.kind, found.name) == ("closure variable", "tensor")
    assert "keep" in found.home and call


def test_defaults_of_a_function():
    def collect(into=[]):  # the mistake that is to be found
        return into

    collect().extend(tensors(3))
    found = find(3)
    assert (found.kind, found.items) == ("list", 3)
    assert "collect" in found.home


def test_partial():
    call = functools.partial(print, tensors(2))
    found = find(2)
    assert (found.kind, found.items) == ("list", 2)
    assert "functools.partial" in found.home and call


def test_generator_that_waits():
    def produce():
        kept = tensors(3)
        yield
        print(kept)

    waiting = produce()
    next(waiting)
    found = find(3)
    assert found.kind == "list" and found.home.startswith("generator produce")
    waiting.close()


def test_generator_that_keeps_one_tensor():
    def produce():
        kept = FakeTensor(0)
        yield kept

    waiting = produce()
    next(waiting)
    found = find(1)
    assert (found.kind, found.name) == ("generator", "produce")
    waiting.close()


def test_tensors_deep_in_records():
    class Sample:
        def __init__(self, number):
            self.data = {"logits": (FakeTensor(number), "text")}

    actor = Actor()
    actor.outputs.extend(Sample(i) for i in range(5))
    found = find(5)
    assert str(found).startswith("list 'outputs' (5 items) in dict of Actor")


def test_container_in_a_container():
    actor = Actor(dict)
    actor.outputs["losses"] = tensors(4)
    found = find(4)
    assert str(found).startswith(
        "list 'losses' (4 items) in dict 'outputs' (1 item) in dict of Actor")


def test_the_container_behind_most_blocks_is_named():
    actor = Actor()
    kept = tensors(5)
    actor.outputs.extend(kept)
    other = {"last": kept[-1]}
    del kept
    assert find(5).name == "outputs" and other


def test_what_can_gather_is_named_before_a_tuple_of_the_same():
    first = tuple(tensors(3))
    actor = Actor()
    actor.outputs.extend(first)
    last = Actor(lambda: tuple(first))
    assert find(3).kind == "list" and last


def test_chain_of_records():
    class Node:
        def __init__(self, number, following):
            self.value = FakeTensor(number)
            self.following = following

    head = None
    for i in range(5):
        head = Node(i, head)
    found = find(5)
    assert (found.kind, found.name, found.blocks) == ("attribute", "value", 1) and head


def test_a_traceback_keeps_its_frames():
    def fail():
        kept = tensors(2)
        raise ValueError(len(kept))

    try:
        fail()
    except ValueError as error:
        saved = error
    found = find(2)
    assert found.kind == "list" and found.home.startswith("a traceback's frame of")
    frame = saved.__traceback__.tb_next.tb_frame
    assert looking.is_running(sys._getframe()) and not looking.is_running(frame)
    del saved


# ---- what is no container


def test_local_of_a_running_function():
    kept = FakeTensor(0)
    found = find(1)
    assert found.kind == "none" and "no container found" in str(found)
    assert kept is not None


def test_list_that_is_a_local_of_a_running_function():
    kept = tensors(3)
    found = find(3)
    assert str(found) == "list (3 items) in a local of a running function, or C++"
    assert len(kept) == 3


def test_no_python_object():
    assert str(find(3)) == "no Python object: autograd or C++"


def test_weak_references_keep_nothing():
    kept = FakeTensor(0)
    weak = [weakref.ref(kept)]
    table = weakref.WeakValueDictionary(one=kept)
    assert find(1).kind == "none"
    assert weak and table


def test_tensors_in_other_blocks_are_not_asked_after():
    actor = Actor()
    actor.outputs.extend(FakeTensor(i + 100) for i in range(3))
    assert find(3).kind == "native"


def test_classes_derived_from_tensor_count():
    actor = Actor()
    actor.outputs.append(FakeParameter(0))
    actor.outputs.append(FakeParameter(1))
    assert find(2).name == "outputs"


def test_an_address_inside_a_block_belongs_to_it():
    actor = Actor()
    for i in range(2):
        actor.update(i)
        actor.outputs[-1].address += SIZE - 1
    assert find(2).name == "outputs"


# ---- what it leaves behind


def test_cycles_end():
    loop = []
    loop.append(loop)
    loop.extend(tensors(3))
    loop.append({"loop": loop})
    assert find(3).items == 5


def test_nothing_is_kept_alive():
    actor = Actor()
    actor.update(0)
    actor.update(1)
    gone = weakref.ref(actor), weakref.ref(actor.outputs[0])
    found = find(2)
    before = sys.getrefcount(actor)
    found = find(2)
    assert sys.getrefcount(actor) == before
    del actor
    assert [one() for one in gone] == [None, None]
    assert found.name == "outputs"


def test_answer_is_text_and_numbers():
    actor = Actor()
    actor.update(0)
    actor.update(1)
    answer = find(2).to_dict()
    assert all(type(value) in (str, int, float, type(None)) for value in answer.values())
    assert answer["text"].startswith("list 'outputs'")


# ---- the budget


def test_no_walk_begins_that_would_end_too_late(kept_by_actor, walks):
    found = find_up(4, clock=Ticks(0.06))
    # A reading costs 60 ms: the walk over all objects ends at 180, and the next would end at 300.
    assert found.kind == "late" and walks == []


def test_what_was_found_in_time_is_said(kept_by_actor):
    found = find_up(4, clock=Ticks(0.04))
    assert (found.kind, found.items) == ("list", 4)
    assert found.home == "a place not found in time"


@pytest.fixture
def kept_in_a_dict():
    actor = Actor()
    actor.metrics = {"outputs": tensors(4)}
    gc.collect()
    yield actor


def test_what_is_known_when_the_time_is_over_is_said(kept_in_a_dict):
    found = find_up(4, clock=Ticks(0.03))
    assert (found.kind, found.items, found.name) == ("list", 4, "outputs")
    assert found.home == "dict (1 item) in a place not found in time"


def test_no_object_is_walked_for_twice(kept_in_a_dict, walks):
    assert find_up(4).home.startswith("dict 'metrics' (1 item) in dict of Actor")
    assert len(walks) == 3


def test_too_many_objects_are_not_begun(kept_by_actor, monkeypatch):
    monkeypatch.setattr(holders, "ALLOCATIONS_MAX", 1000)
    assert str(find_up(4)) == "holder not found in 200 ms"


def test_huge_graph_is_found_or_given_up_in_time(kept_by_actor):
    crowd = [[i, (i, str(i)), {"i": [i]}] for i in range(100_000)]
    kept_by_actor.crowd = crowd
    assert find_up(4).name == "outputs"
    readings = Ticks(0.001)
    assert find_up(4, clock=readings).name == "outputs"
    assert readings.readings < 100


def test_many_tensors_stop_at_the_deadline():
    actor = Actor()
    for i in range(5000):
        actor.update(i)
    clock = Ticks(0.0)
    asked = []

    def address_of(tensor):
        asked.append(1)
        clock.now += 0.0001
        return tensor.address

    found = holders.find_holder(blocks(5000), [FakeTensor], address_of, clock=clock)
    assert found.kind == "late" and len(asked) <= 3 * 1024


def test_the_answer_comes_within_the_budget_here(kept_by_actor):
    began = time.perf_counter()
    found = find_up(4, clock=time.perf_counter)
    # Whatever this machine's speed: one walk may be begun at the very end of the budget.
    assert time.perf_counter() - began < 10 * holders.BUDGET_SECONDS
    assert found.kind in ("list", "late")


# ---- looking


def test_keys_are_said_only_where_that_runs_nothing(touchy):
    class Key:
        def __repr__(self):
            raise AssertionError("printed")

    kept = FakeTensor(0)
    assert looking.key_of({Key(): kept}, kept) is None
    assert looking.key_of({touchy("Key", (), {})(): kept}, kept) is None
    assert looking.key_of({7: kept}, kept) == "7"
    assert looking.key_of({"x" * 100: kept}, kept) == "x" * 57 + "..."


def test_wrapped_methods_are_looked_into():
    def wrap(function):
        @functools.wraps(function)
        def inner(*arguments):
            return function(*arguments)

        return inner

    class Wrapped:
        def __init__(self):
            self.kept = []

        @wrap
        def add(self, number):
            self.kept.append(FakeTensor(number))

    one = Wrapped()
    one.add(0)
    one.add(1)
    found = find(2)
    assert found.name == "kept"
    assert found.place == line_of(test_wrapped_methods_are_looked_into, "self.kept.append")
