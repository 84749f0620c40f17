# SPDX-License-Identifier: Apache-2.0
"""The way down to a holder: from the program's frames, without a walk over all objects; and what it
spares the way up."""

import collections
import functools
import gc
import sys
import threading
import time
import types
import weakref

import pytest
from holder_world import (Actor, FakeTensor, Hashed, Slotted, Ticks, find, find_by, find_down,
                          find_up, kept_by_actor, own_addresses, tensors, touchy)

from tidegate import holders, looking, reaching


@pytest.fixture
def work(monkeypatch):
    """What a search does: objects looked into, what they were found to hold, walks over all."""
    done = types.SimpleNamespace(visits=0, children=0, walks=0)
    real = types.SimpleNamespace(go_on=reaching.Reach.go_on, newest=looking.newest,
                                 objects=gc.get_objects, referrers=gc.get_referrers)

    def go_on(reach, is_over):
        try:
            return real.go_on(reach, is_over)
        finally:
            done.visits = reach.visits

    def newest(one, most):
        found = real.newest(one, most)
        done.children += len(found[0])
        return found

    def objects(generation=None):
        done.walks += generation is None
        return real.objects(generation)

    def referrers(*sought):
        done.walks += 1
        return real.referrers(*sought)

    monkeypatch.setattr(reaching.Reach, "go_on", go_on)
    monkeypatch.setattr(looking, "newest", newest)
    monkeypatch.setattr(gc, "get_objects", objects)
    monkeypatch.setattr(gc, "get_referrers", referrers)
    return done


def test_among_many_objects_nothing_is_walked_for(work):
    elsewhere = types.ModuleType("elsewhere")
    gc.disable()  # it would go through them again and again
    try:
        elsewhere.crowd = [{"i": [i], "s": (i, [i])} for i in range(400_000)]
        actor = Actor()
        actor.metrics = {"outputs": tensors(6)}
        actor.crowd = elsewhere.crowd
        found = find_by(("down", "up"), 6, clock=time.perf_counter)
    finally:
        gc.enable()
        del elsewhere.crowd[:]
    assert str(found).startswith("list 'outputs' (6 items) in dict 'metrics' (1 item) in dict of A")
    assert work.walks == 0 and work.visits < 10_000
    assert found.seconds <= holders.BUDGET_SECONDS


def test_large_containers_are_looked_at_where_they_grow(work):
    actor = Actor()
    actor.numbers = [0] * 10_000_000
    actor.frozen = tuple(actor.numbers)
    actor.outputs.extend(tensors(4))
    assert find_down(4).name == "outputs"
    assert work.children < 200_000
    assert len(looking.newest(actor.numbers, 128)[0]) == 128


def many(count):
    """As many tensors that lie in none of the blocks that are asked for."""
    return [FakeTensor(1_000_000 + i) for i in range(count)]


@pytest.mark.parametrize("fill", [
    lambda: many(5000) + tensors(4),
    lambda: tuple(many(5000) + tensors(4)),
    lambda: dict(enumerate(many(5000) + tensors(4))),
    lambda: collections.OrderedDict(enumerate(many(5000) + tensors(4))),
    lambda: collections.deque(many(5000) + tensors(4)),
    lambda: collections.deque(tensors(4) + many(5000)),
])
def test_the_newest_of_many_are_found(fill):
    actor = Actor(fill)
    actor.small = {Hashed(0)}
    found = find(4)
    assert (found.name, found.items) == ("outputs", 5004)
    assert find_down(4) == found


def test_what_holds_some_is_looked_at_further():
    actor = Actor()
    for i in range(2000):
        actor.outputs.append(FakeTensor(i))
        actor.outputs.extend(many(3))
    assert len(actor.outputs) > reaching.SAMPLE_MOST
    found = find_down(2000)
    assert (found.name, found.blocks) == ("outputs", holders.BLOCKS_MAX)


def wait_with(kept):
    yield kept


@pytest.mark.parametrize("around, said", [
    (lambda kept: functools.partial(print, kept), "list (3 items) in tuple (1 item) in"),
    (lambda kept: (lambda: kept), "list 'kept' (3 items) in closure of"),
    (lambda kept: [Actor(lambda: kept).update], "list 'outputs' (3 items) in dict of Actor"),
    (lambda kept: collections.deque([{"a": kept}]), "list 'a' (3 items) in dict (1 item) in"),
    (lambda kept: frozenset([Actor(lambda: tuple(kept))]), "tuple 'outputs' (3 items) in dict"),
    (lambda kept: {"last": [{"x": (one,)} for one in kept]}, "list 'last' (3 items) in dict 'out"),
])
def test_the_way_down_goes_through(around, said):
    actor = Actor(lambda: around(tensors(3)))
    found = find(3)
    assert str(find_down(3)) == str(found) and str(found).startswith(said)
    assert actor


def test_the_way_down_goes_through_generators():
    actor = Actor(lambda: wait_with(tensors(3)))
    next(actor.outputs)
    assert str(find_down(3)).startswith("list (3 items) in generator wait_with")


class Nosy:
    """Notices each question for an attribute."""

    asked = []

    def __getattr__(self, name):
        Nosy.asked.append(name)
        raise AttributeError(name)

    @property
    def trap(self):
        raise AssertionError("a property was asked")


class Liar(dict):
    """A dict whose every method is the program's own."""

    def refuse(self, *_):
        raise AssertionError("a dict's method was called")

    __iter__ = __len__ = __getitem__ = __contains__ = __reversed__ = __eq__ = refuse
    keys = values = items = get = refuse
    __hash__ = None


def test_no_code_of_the_program_runs(touchy):
    inner = touchy("Inner", (), {})()
    object.__setattr__(inner, "kept", tensors(3))
    slotted = Slotted()
    slotted.kept = Liar(a=inner)
    dict.update(slotted.kept, {i: None for i in range(1000)}, b=inner)
    nosy = Nosy()
    nosy.slotted = slotted
    Nosy.asked.clear()
    found = find_down(3)
    assert (found.kind, found.name, found.items) == ("list", "kept", 3)
    assert Nosy.asked == [] and nosy


def test_the_program_s_locals_stay_as_they_are():
    def look():
        names = locals()
        later = FakeTensor(0)
        find_down(1)
        assert later is not None
        return names

    assert look() == {}

    def forget():
        kept = Actor()
        gone = weakref.ref(kept)
        find_down(1)
        del kept
        return gone()

    assert forget() is None


def test_what_exec_has_made_in_a_function_stays():
    def run():
        kept = tensors(1)
        exec("import math as made; lines = [1, 2]")
        find_down(1)
        return kept, eval("made.pi > 3 and lines")

    assert run()[1] == [1, 2]


@pytest.mark.parametrize("hook", [sys.settrace, sys.setprofile])
def test_a_debugger_s_view_of_locals_is_left_alone(hook):
    looked = []

    def traced():
        kept = tensors(2)
        repr(kept)  # a call that is reported: kept is what a debugger would write back
        return kept

    def report(frame, event, _):
        if frame.f_code is traced.__code__ and len(looked) < 8:
            looked.append(event)
            find_down(2)
        return report

    former = sys.gettrace(), sys.getprofile()
    hook(report)
    try:
        assert len(traced()) == 2
    finally:
        sys.settrace(former[0])
        sys.setprofile(former[1])
    assert len(looked) > 2


def test_nothing_met_is_kept_alive():
    actor = Actor()
    actor.beside = Actor()
    actor.outputs.extend(tensors(3))
    gone = [weakref.ref(one) for one in (actor, actor.beside, *actor.outputs)]
    counts = [sys.getrefcount(one()) for one in gone]
    assert find_down(3).name == "outputs"
    assert [sys.getrefcount(one()) for one in gone] == counts
    gc.disable()  # without the collector's help
    try:
        del actor
        assert [one() for one in gone] == [None] * len(gone)
    finally:
        gc.enable()


def test_no_garbage_is_left_to_the_collector():
    kept = tensors(3)
    gc.collect()
    gc.disable()
    try:
        found = find_by(("down", "up"), 3)
        is_running = looking.is_running(sys._getframe())
        assert gc.collect() == 0
    finally:
        gc.enable()
    assert found.items == len(kept) and is_running


def test_other_threads_may_change_what_is_looked_at():
    actor = Actor()
    actor.outputs.extend(tensors(3))
    actor.table = dict.fromkeys(range(1000))
    actor.crowd = set(range(1000))
    stop = threading.Event()

    def change():
        number = 1000
        while not stop.is_set():
            number += 1
            actor.table[number] = [number]
            actor.crowd.add((number,))
            actor.table.pop(number - 500, None)

    thread = threading.Thread(target=change)
    interval = sys.getswitchinterval()
    thread.start()
    sys.setswitchinterval(1e-6)
    try:
        assert {find_down(3).name for _ in range(50)} == {"outputs"}
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()


def test_a_dict_that_changes_while_it_is_gone_through(monkeypatch):
    table = dict.fromkeys(range(1000))

    def from_the_end(_one, _most, real=reversed):
        return (table.update(more=value) or value for value in real(table.values()))

    monkeypatch.setattr(looking, "_from_the_end", from_the_end)
    assert looking.newest(table, 100) == ([], False)


def test_deep_and_cyclic_structures():
    bottom = Actor()
    bottom.outputs.extend(tensors(3))
    top = bottom
    for _ in range(5000):
        top = {"below": [top]}
        top["self"] = top
    bottom.top = top
    del bottom
    assert find_down(3).name == "outputs"
    assert find(3).name == "outputs" and top


def test_what_is_met_is_not_described_at_each_level(monkeypatch):
    described = []
    describe = holders._Look.describe
    monkeypatch.setattr(holders._Look, "describe", lambda look, *found: described.append(1) or
                        describe(look, *found))
    kept = tensors(3)
    top = []
    for _ in range(5000):
        top = [top]
    assert find_down(3).kind == "late" and len(kept) == 3 and top
    assert 0 < len(described) < 40


def test_a_search_without_end_ends(work):
    actor = Actor()
    actor.crowd = [[[[i] for i in range(40)] for _ in range(40)] for _ in range(40)]
    assert find_down(3).kind == "late"
    assert work.visits == reaching.VISITS_MAX
    clock = Ticks(0.01)
    assert find_down(3, clock=clock).kind == "late"
    assert clock.readings <= 10 and work.visits < 10 * reaching.CLOCK_PERIOD


@pytest.fixture
def module_of_a_site():
    """A module that no frame is of; its name is free."""
    made = []

    def make(name):
        module = types.ModuleType(name)
        module.__file__ = "/where/it/allocates.py"
        module.cache = tensors(3)
        sys.modules[name] = module
        made.append(name)

    yield make
    for name in made:
        del sys.modules[name]


def test_globals_of_the_site_s_files_are_looked_at(module_of_a_site):
    module_of_a_site("allocates")
    assert find_down(3).kind == "late"
    found = find_down(3, files=["/where/it/allocates.py"])
    assert str(found) == "list 'cache' (3 items) in module allocates, allocates.py"
    assert found == find(3)


def test_libraries_are_not_gone_through(module_of_a_site):
    module_of_a_site("torch.allocates")
    assert find_down(3, files=["/where/it/allocates.py"]).kind == "late"


def test_what_another_thread_was_started_with_is_met():
    class Worker:
        def __init__(self):
            self.results = tensors(3)
            self.done = threading.Event()

        def run(self):
            self.done.wait()

    worker = Worker()
    done = worker.done
    threading.Thread(target=worker.run, name="works").start()  # known to threading alone
    del worker
    try:
        assert str(find_down(3)).startswith("list 'results' (3 items) in dict of ")
    finally:
        done.set()
        [thread] = [one for one in threading.enumerate() if one.name == "works"]
        thread.join()


def test_a_local_may_be_at_home_where_the_way_down_does_not_lead():
    module = types.ModuleType("unlisted")
    kept = module.cache = tensors(3)
    assert str(find(3)) == "list 'cache' (3 items) in module unlisted"
    assert len(kept) == 3


def test_tensors_that_were_met_are_not_sought_again(work):
    kept = tensors(3)
    gc.collect()
    found = find_by(("down", "up"), 3)
    assert str(found) == "list (3 items) in a local of a running function, or C++"
    assert work.walks == 2 and len(kept) == 3  # for the list, and for its home


def test_young_tensors_are_asked_for_first(work):
    module = types.ModuleType("unlisted")
    gc.collect()
    gc.disable()
    try:
        module.cache = tensors(2)
        assert find_up(2).name == "cache"
        young = work.walks
    finally:
        gc.enable()
    gc.collect()
    assert find_up(2).name == "cache"
    assert work.walks == 2 * young + 1


def test_a_local_tensor_does_not_hide_who_keeps_another_of_its_block():
    module = types.ModuleType("unlisted")
    module.cache = tensors(1)
    view = FakeTensor(0)
    found = find_by(("down", "up"), 1)
    assert found.name == "cache" and view is not None


def test_some_of_the_blocks_do_not_speak_for_all():
    module = types.ModuleType("unlisted")
    module.cache = tensors(10)
    actor = Actor()
    actor.outputs.extend(module.cache[4:])
    assert find_down(10).kind == "late"
    assert find(10).name == "cache"


def test_the_first_walk_is_begun_only_if_it_is_likely_to_end(kept_by_actor, work, monkeypatch):
    monkeypatch.setattr(holders, "ALLOCATION_SECONDS", 1.0)
    assert find_up(4).kind == "late" and work.walks == 0
