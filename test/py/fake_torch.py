# SPDX-License-Identifier: Apache-2.0
"""A module that stands for torch, over a card of numbers: it proves wiring only. What torch itself
does with memory is shown on a card.

    torch = fake_torch.install(monkeypatch)
    torch.card.cached = 1 << 30; torch.card.live = ..."""

import gc
import sys
import types

GIB = 1 << 30


class FakeCard:
    """What lies on the card. `calls` records what was called, in order."""

    def __init__(self):
        self.total = 80 * GIB
        self.others = 0     # held by other programs
        self.outside = 0    # this process's context and libraries
        self.live = self.pending = self.split = self.cached = 0
        self.stuck = 0      # counts as cached, and emptying does not give it
        self.garbage = 0    # live, and free after a collection
        self.sent = 0       # live, and free after ipc_collect
        self.workspaces = 0
        self.calls = []

    def reserved(self):
        return self.live + self.pending + self.split + self.cached + self.stuck

    def free(self):
        return self.total - self.others - self.outside - self.reserved()

    def empty(self):
        self.calls.append("empty_cache")
        self.cached = self.pending = 0

    def let_go(self, name):
        """Live bytes become cached ones."""
        self.calls.append(name)
        freed = getattr(self, name)
        self.live -= freed
        self.cached += freed
        setattr(self, name, 0)


def _stats(card):
    figures = {"reserved_bytes": card.reserved(), "allocated_bytes": card.live,
               "active_bytes": card.live + card.pending, "inactive_split_bytes": card.split}
    return {name: {"all": {"current": value}} for name, value in figures.items()}


def make():
    """The module, not yet in sys.modules."""
    torch, card = types.ModuleType("torch"), FakeCard()
    torch.card = card
    torch.__version__ = "2.11.0"
    torch.version = types.SimpleNamespace(cuda="13.0", hip=None)
    torch.cuda = types.SimpleNamespace(
        is_initialized=lambda: True, current_device=lambda: 0, _is_in_bad_fork=lambda: False,
        mem_get_info=lambda index: (card.free(), card.total), empty_cache=card.empty,
        ipc_collect=lambda: card.let_go("sent"), is_current_stream_capturing=lambda: False,
        memory_snapshot=lambda: [])
    torch._C = types.SimpleNamespace(
        _cuda_hasPrimaryContext=lambda index: True, _cuda_memoryStats=lambda index: _stats(card),
        _cuda_clearCublasWorkspaces=lambda: card.let_go("workspaces"),
        _cuda_isHistoryEnabled=lambda: False,
        _host_emptyCache=lambda: card.calls.append("host_empty"))
    return torch


def install(monkeypatch):
    """Puts it in torch's place, and makes a collection of garbage part of it."""
    torch = make()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(gc, "collect", lambda: torch.card.let_go("garbage"))
    return torch
