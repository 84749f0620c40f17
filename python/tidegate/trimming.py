# SPDX-License-Identifier: Apache-2.0
"""trim: what torch's cache keeps between live tensors goes back to the driver, for a program that
runs under the preload with a default tag. refill: it comes back.

    tidegate.trim()      # nobody gives the card work until it returns
    …                    # another process has the memory; this one goes on, with what it has left
    tidegate.refill()    # before it is wanted again

torch must not hand out what has no memory: so exactly its free pieces are allocated through torch
itself, *plugs*, and only what lies under those is given back. They are freed when all of it is
there again, and not before: doc/design/trim.md."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from . import (card, checks, errors, library, pools, preloaded, seams, tags, torch_sources,
               undisturbed)
from .locks import ForkSafeLock
from .receipts import Receipt

# Less than this has no granule in it.
_GRANULE_BYTES = 2 << 20
# What the history has beside a plug.
_METADATA = "tidegate.trim"

_lock = ForkSafeLock()


class Piece(NamedTuple):
    """A free piece of torch's cache, in the order in which torch would hand them out: of one stream
    the smallest that fits, of these the lowest."""

    stream: int
    size_bytes: int
    address: int


class Trim:
    """What is trimmed on one card: the plugs that torch has handed out."""

    def __init__(self, where: card.Card, memory: tags.Memory) -> None:
        self.card = where
        self.memory = memory
        self.plugs: Dict[int, int] = {}  # the size of each, by its address
        self._whole = undisturbed.Undisturbed()

    def plug(self, pieces: List[Piece]) -> None:
        """Allocates each where it is expected."""
        torch = self.card.torch
        with _named(torch):
            self._whole.run(lambda goes_on: self._plug(sorted(pieces), goes_on))
        if len(self.plugs) < len(pieces):
            torch.cuda.empty_cache()  # what came elsewhere may be new

    def _plug(self, pieces: List[Piece], goes_on: Callable[[], bool]) -> None:
        """What comes elsewhere goes back at once: a thread was faster, or torch rounds otherwise.
        Between torch's answer and its note here nothing may come, else a plug is lost."""
        torch = self.card.torch
        for piece in pieces:
            if not goes_on():
                return
            try:
                address = torch.cuda.caching_allocator_alloc(piece.size_bytes, self.card.index,
                                                             piece.stream)
            except RuntimeError:  # torch has no such piece any more, and the card no room
                return
            if address == piece.address:
                self.plugs[address] = piece.size_bytes
            else:
                torch.cuda.caching_allocator_delete(address)

    def give_back(self, timeout: Optional[float]) -> Receipt:
        """The granules under the plugs, and nothing else."""
        return tags.trim_ranges(self.memory, sorted(self.plugs.items()), timeout)

    def take_back(self, timeout: Optional[float]) -> Receipt:
        """All of it, or nothing changes. Then the plugs are torch's again."""
        receipt = tags.refill_ranges(self.memory, timeout)
        self._whole.run(lambda goes_on: self._unplug())
        return receipt

    def _unplug(self) -> None:
        """Each once: freed twice it could be a tensor's."""
        while self.plugs:
            self.card.torch.cuda.caching_allocator_delete(self.plugs.popitem()[0])


_trims: Dict[int, Trim] = {}


@contextlib.contextmanager
def _named(torch: Any) -> Iterator[None]:
    """What is allocated inside has a note in torch's history, where this torch takes notes."""
    tell = getattr(torch.cuda.memory, "_set_memory_metadata", None)
    ask = getattr(torch.cuda.memory, "_get_memory_metadata", None)
    if tell is None or ask is None:
        yield
        return
    before = ask()
    tell(_METADATA)
    try:
        yield
    finally:
        tell(before)


# ---- what torch has free -------------------------------------------------------------------------

def _is_ours(segment: Dict[str, Any]) -> bool:
    """Whether a segment is a block of the process's memory: one that torch took before the preload
    acted, or from elsewhere, is not."""
    found = tags.place(segment["address"])
    return (found is not None and found.address == segment["address"]
            and found.size_bytes >= segment["total_size"])


def _pieces(where: card.Card) -> List[Piece]:
    """Free pieces with a whole granule, in segments of ours. Never of a private pool: a graph that
    is replayed writes there. Of expandable segments torch itself gives back what is whole."""
    found = []
    for segment in torch_sources.segments_to_trim(where):
        at, pieces = segment["address"], []
        for block in segment["blocks"]:
            first = -(-at // _GRANULE_BYTES) * _GRANULE_BYTES
            if block["state"] == "inactive" and first + _GRANULE_BYTES <= at + block["size"]:
                pieces.append(Piece(segment["stream"], block["size"], at))
            at += block["size"]
        if pieces and _is_ours(segment):
            found += pieces
    return found


def _check_fraction(where: card.Card, pieces: List[Piece]) -> None:
    """What the plugs hold the program must be able to allocate anew beside them."""
    ask = getattr(where.torch.cuda, "get_per_process_memory_fraction", None)
    fraction = 1.0 if ask is None else float(ask(where.index))
    if fraction >= 1.0:
        return
    allowed = fraction * where.driver_memory()[1]
    reserved = torch_sources.reserved_bytes(where)
    wanted = sum(piece.size_bytes for piece in pieces)
    if reserved + wanted > allowed:
        raise errors.BadValue(0, f"torch may have {allowed / 2**30:.2f} GiB of this card "
                              f"(set_per_process_memory_fraction), and has {reserved / 2**30:.2f}: "
                              f"with {wanted / 2**30:.2f} of these plugged it would run out sooner."
                              " Nothing was trimmed")


# ---- the calls -----------------------------------------------------------------------------------

def _there(operation: str) -> Optional[Trim]:
    """The current card and what the program has there in tags. None: nothing, which is said once
    where nothing can be."""
    library.functions()
    where = card.require()
    if preloaded.default_tag() is None:
        seams.warn_once("trim", f"{operation} does nothing here: it is for programs that run under "
                        "tidegate run --default-tag NAME")
        return None
    if where is None:
        return None
    memory = tags.memory_on(where.index)
    return None if memory is None else Trim(where, memory)


def _check_quiet(where: card.Card, operation: str) -> None:
    if torch_sources.is_capturing(where):
        raise errors.Busy(errors.CODES["TG_ECAPTURE"], "a graph is captured on this thread's "
                          f"stream: {operation} after that")
    if pools.is_inside():
        raise errors.Busy(errors.CODES["TG_EBUSY"], "this thread is in a region, whose pool torch "
                          f"allocates from: {operation} outside of it")


def _refill(trim: Trim, timeout: Optional[float]) -> Receipt:
    """With the lock."""
    receipt = trim.take_back(timeout)
    _trims.pop(trim.card.index, None)
    return receipt


def _undo(trim: Trim, timeout: Optional[float]) -> None:
    """After a failure, whose sentence is the one that is told: what cannot be taken back now stays
    trimmed, and plugged, until a refill."""
    with contextlib.suppress(errors.TidegateError):
        _refill(trim, timeout)


def _trim(trim: Trim, timeout: Optional[float]) -> Receipt:
    """With the lock. The order matters: torch merges what is free when its events have passed, and
    other threads allocate until the pieces are plugged."""
    where = trim.card
    tags.trim_ranges(trim.memory, [], timeout)  # of a capture this tells without harming it
    where.torch.cuda.synchronize(where.index)
    where.torch.cuda.empty_cache()
    pieces = _pieces(where)
    _check_fraction(where, pieces)
    _trims[where.index] = trim
    try:
        trim.plug(pieces)
        receipt = trim.give_back(timeout)
    except BaseException:
        _undo(trim, timeout)
        raise
    if not tags.has_trimmed(trim.memory):  # nothing was worth it
        _undo(trim, timeout)
    return receipt


def trim(*, timeout: Optional[float] = 10.0) -> Receipt:
    """Gives back what torch's cache keeps between live tensors on the current card, by granules of
    2 MiB; live tensors stay where they are. For programs that run under `tidegate run
    --default-tag`; elsewhere it does nothing, and says so once. Private pools, as of CUDA graphs,
    and expandable segments are left alone. What was trimmed before is refilled first.

    The caller promises that until it returns nobody gives the card any work. torch's counters show
    what is plugged as allocated (torch.cuda.memory_allocated), ours do not. timeout: seconds for
    the card's work so far, and for a refill before it; None: no limit.

    Raises Busy (the card's work has not ended, a capture, a region), BadValue (torch's memory
    fraction leaves no room for the plugs),
    TidegateWouldNotFit (what was trimmed before cannot be had back), DeviceFailed, TorchMissing,
    NoDevice, LibraryMissing: what was trimmed before stays so, and else nothing is."""
    checks.check_seconds("timeout", timeout)
    found = _there("trim")
    if found is None:
        return Receipt("done", 0, operation="trim")
    _check_quiet(found.card, "trim")
    with _lock:
        before = _trims.get(found.card.index)
        if before is not None:
            _refill(before, timeout)
        return _trim(found, timeout)


def refill(*, timeout: Optional[float] = 20.0) -> Receipt:
    """Takes back what `trim` has given on the current card, waiting for memory that others hold up
    to `timeout` seconds (None: no limit), and lets torch have it again. All or nothing. Where
    nothing is trimmed it does nothing; after a sleep and wake of the tag only the plugs are left to
    go.

    Raises TidegateWouldNotFit with the account of who holds the memory, Busy; TidegateError with
    TG_EASLEEP while the tag sleeps. All stays trimmed then, and the process goes on without it."""
    checks.check_seconds("timeout", timeout)
    library.functions()
    where = card.require()
    with _lock:
        found = None if where is None else _trims.get(where.index)
        if where is None or found is None:
            return Receipt("done", 0, operation="refill")
        _check_quiet(where, "refill")
        return _refill(found, timeout)


# ---- left out of reports -------------------------------------------------------------------------

def _plugged(index: int) -> Dict[int, int]:
    """Address and size of each plug on a card."""
    found = _trims.get(index)
    return {} if found is None else found.plugs.copy()  # which others change meanwhile


torch_sources.leave_out_plugs(_plugged)
os.register_at_fork(after_in_child=_trims.clear)
