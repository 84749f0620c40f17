# SPDX-License-Identifier: Apache-2.0
"""A module that stands for torch where tensors move between a card and the host: bytes in
storages, copies that are done when somebody waits, and a card that has so much and no more.

A copy whose memory on the card is given up before it is done finds that out: as on a card, where
another would have it by then. It proves wiring; what torch does is shown by torch."""

import contextlib
import ctypes
import sys
import types
import weakref


class Device:
    def __init__(self, text):
        self.type, _, index = str(text).partition(":")
        self.index = int(index) if index else None

    def __eq__(self, other):
        return str(self) == str(other)

    def __hash__(self):
        return hash(str(self))

    def __str__(self):
        return self.type if self.index is None else f"{self.type}:{self.index}"


class Card:
    """What is allocated of each card, the copies that wait, and what was called, in order."""

    def __init__(self, capacity):
        self.capacity = capacity
        self.allocated = {}
        self.queue, self.calls = [], []
        self.refusal = None  # what the next wait raises

    def wait(self, where=None):
        self.calls.append("wait")
        queue, self.queue = self.queue, []
        if self.refusal is not None:
            raise self.refusal
        for to, of, span_to, span_of in queue:
            if to() is None or of() is None:
                raise AssertionError("memory was given up under a copy")
            to().view[span_to] = bytes(of().view[span_of])


class OutOfMemoryError(RuntimeError):
    pass


class Storage:
    _next = 1 << 40

    def __init__(self, card, size, device, buffer=None, offset=0):
        if device.type != "cpu":
            used = card.allocated.get(str(device), 0)
            if used + size > card.capacity:
                raise OutOfMemoryError(f"CUDA out of memory: {size} bytes\nmore of it")
            card.allocated[str(device)] = used + size
        self.card, self.size, self.device, self.owner = card, size, device, buffer
        if buffer is None:
            buffer, offset = (ctypes.c_uint8 * max(size, 1))(), 0
        self.view = memoryview(buffer).cast("B")[offset:offset + size]
        self.address = ctypes.addressof(buffer) + offset
        if device.type != "cpu":
            self.address, Storage._next = Storage._next, Storage._next + size + 512

    def __del__(self):
        if getattr(self, "address", None) is not None and self.device.type != "cpu":
            self.card.allocated[str(self.device)] -= self.size

    def nbytes(self):
        return self.size

    def data_ptr(self):
        return self.address


class Tensor:
    layout, is_meta, is_quantized = "strided", False, False

    def __init__(self, storage, dtype=1, offset=0, shape=(), stride=()):
        self._at = (storage, dtype, offset, tuple(shape), tuple(stride))

    storage, dtype, shape = (property(lambda self, at=at: self._at[at]) for at in (0, 1, 3))
    device = property(lambda self: self.storage.device)

    def untyped_storage(self):
        return self.storage

    def element_size(self):
        return self.dtype

    def storage_offset(self):
        return self._at[2]

    def stride(self):
        return self._at[4]

    def numel(self):
        count = 1
        for one in self.shape:
            count *= one
        return count

    def is_conj(self):
        return False

    is_neg = is_conj

    @property
    def data(self):
        return Tensor(*self._at)

    @data.setter
    def data(self, other):
        self.storage.card.calls.append("point")
        self._at = other._at

    def set_(self, storage, offset, shape, stride):
        self._at = (storage, self.dtype, offset, tuple(shape), tuple(stride))
        return self

    def view(self, shape):
        return Tensor(self.storage, self.dtype, self._at[2], shape if isinstance(shape, tuple)
                      else (self.numel() // shape,), (1,)) if shape != self.dtype else self

    def copy_(self, other, non_blocking=False):
        assert non_blocking and self.numel() == other.numel()
        card = self.storage.card
        card.calls.append("copy")
        card.queue.append((weakref.ref(self.storage), weakref.ref(other.storage), self._span(),
                           other._span()))

    def _span(self):
        begin = self._at[2] * self.dtype
        return slice(begin, begin + self.numel() * self.dtype)

    def tobytes(self):
        return bytes(self.storage.view[self._span()])


def install(capacity=1 << 20):
    """Puts it in torch's place; returns the module, whose `card` counts."""
    torch, card = types.ModuleType("torch"), Card(capacity)

    def empty(shape, dtype=1, device="cpu"):
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for one in shape:
            count *= one
        where = device if isinstance(device, Device) else Device(device)
        return Tensor(Storage(card, count * dtype, where), dtype, 0, shape, (1,) * len(shape))

    def frombuffer(buffer, dtype, count, offset):
        return Tensor(Storage(card, count, Device("cpu"), buffer, offset), dtype, 0, (count,), (1,))

    torch.card, torch.Tensor, torch.device, torch.uint8 = card, Tensor, Device, 1
    torch.strided, torch.OutOfMemoryError = "strided", OutOfMemoryError
    torch.empty, torch.frombuffer, torch.no_grad = empty, frombuffer, contextlib.nullcontext
    torch.empty_like = lambda tensor, device: empty(tensor.shape, tensor.dtype, device)
    torch.cuda = types.SimpleNamespace(
        synchronize=card.wait, OutOfMemoryError=OutOfMemoryError,
        memory_allocated=lambda where: card.allocated.get(str(where), 0))
    sys.modules["torch"] = torch
    return torch
