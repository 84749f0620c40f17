# SPDX-License-Identifier: Apache-2.0
"""What the tests of holders share: tensors that have an address only, a class that keeps them, and
the search by each of its ways."""

import gc
import os
import unittest.mock

import pytest

from tidegate import holders

SIZE = 4096
NEXT = [0x7F0000000000]


class FakeTensor:
    """An address, and room for what programs hang on tensors."""

    __slots__ = ("address", "grad", "__weakref__")

    def __init__(self, number):
        self.address = NEXT[0] + number * SIZE

    def __eq__(self, other):
        raise AssertionError("a tensor was compared")

    __hash__ = None


class FakeParameter(FakeTensor):
    __slots__ = ()


def blocks(count):
    return [(NEXT[0] + i * SIZE, SIZE) for i in range(count)]


def find_by(ways, count, clock=lambda: 0.0, **more):
    """Time stands still, but where a test turns the hands."""
    with unittest.mock.patch.object(holders, "WAYS", ways):
        return holders.find_holder(blocks(count), [FakeTensor], lambda tensor: tensor.address,
                                   clock=clock, **more)


def find(count):
    """What both ways find: each by itself says the same, or the way down says nothing; and the way
    up says it of young tensors and of old ones."""
    found = find_by(("down", "up"), count)
    assert find_by(("up",), count) == found
    gc.collect()
    assert find_by(("up",), count) == found
    assert find_by(("down",), count) in (found, holders.Holder("late"))
    return found


def find_up(count, **more):
    return find_by(("up",), count, **more)


def find_down(count, **more):
    return find_by(("down",), count, **more)


def tensors(count):
    return [FakeTensor(i) for i in range(count)]


class Actor:
    """Keeps tensors in an attribute."""

    def __init__(self, make=list):
        self.outputs = make()

    def update(self, number):
        self.outputs.append(FakeTensor(number))


class Hashed(FakeTensor):
    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Slotted:
    __slots__ = ("empty", "kept")


class Ticks:
    """A clock that moves when it is read."""

    def __init__(self, step):
        self.now = 0.0
        self.step = step
        self.readings = 0

    def __call__(self):
        self.readings += 1
        self.now += self.step
        return self.now


def line_of(function, text):
    """Where a text stands in the file of a function, behind its beginning, as a holder says it."""
    path = function.__code__.co_filename
    lines = open(path, encoding="utf-8").read().splitlines()
    first = function.__code__.co_firstlineno
    at = next(i for i in range(first, len(lines) + 1) if text in lines[i - 1])
    return f"{os.path.basename(path)}:{at}"


# ---- fixtures


@pytest.fixture(autouse=True)
def own_addresses():
    """Each test has addresses of its own: what a failed test keeps alive is no other's answer."""
    NEXT[0] += 1 << 32


@pytest.fixture
def touchy():
    """A metaclass that answers nothing about its classes; gone after the test."""
    def refuse(cls, *_):
        raise AssertionError(f"a class was asked: {type.__repr__(cls)}")

    names = ("__eq__", "__getattribute__", "__repr__", "__instancecheck__", "__subclasscheck__",
             "__subclasses__")
    yield type("Touchy", (type,), {"__hash__": None, **dict.fromkeys(names, refuse)})
    gc.collect()


@pytest.fixture
def kept_by_actor():
    actor = Actor()
    for i in range(4):
        actor.update(i)
    gc.collect()  # they are no longer young
    yield actor
