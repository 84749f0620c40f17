# SPDX-License-Identifier: Apache-2.0
"""What PyTorch can give back, and what it keeps.

A source knows an upper bound of what a run could give now (or that it does not), and runs. They are
told apart because their costs differ a thousandfold: emptying the cache takes microseconds when it
is empty, collecting garbage a tenth of a second always. Which one runs is not decided here."""

from __future__ import annotations

import gc
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from . import abi, preloaded
from .card import Card

# The sizes in which torch's allocator maps memory of expandable segments.
_SMALL_HANDLE_BYTES = 2 << 20
_LARGE_HANDLE_BYTES = 20 << 20


class Figures(NamedTuple):
    """The allocator's counters. reserved = live + pending + split + idle."""

    reserved: int
    live: int     # handed out
    pending: int  # freed, but an event says that a stream may still use it
    split: int    # free pieces of native segments that hold something else as well
    idle: int     # the rest: whole free segments, free parts of expandable ones, pools of graphs


_NOTHING = Figures(0, 0, 0, 0, 0)


# What of torch's memory lies in tags of ours, where the tags' own figures have it, awake and
# asleep: bytes on a card, and whether an address is of it. Told by `pools`, once there are any.
_tagged_bytes: Callable[[int], int] = lambda index: 0
_is_tagged: Callable[[int], bool] = lambda address: False


def leave_to_tags(tagged_bytes: Callable[[int], int], is_tagged: Callable[[int], bool]) -> None:
    """From now on figures and segments leave out what these two tell."""
    global _tagged_bytes, _is_tagged
    _tagged_bytes, _is_tagged = tagged_bytes, is_tagged


# Pieces that are allocated only so that torch does not hand them out, by address, on a card: told
# by `trimming`, once there are any. They are nobody's memory, and partly none at all.
_plugs: Callable[[int], Dict[int, int]] = lambda index: {}


def leave_out_plugs(plugs: Callable[[int], Dict[int, int]]) -> None:
    """From now on figures and segments leave out what this tells."""
    global _plugs
    _plugs = plugs


def plugged_bytes(index: int) -> int:
    """What torch counts as allocated on a card, and is nobody's."""
    return sum(_plugs(index).values())


def plugged_rest(card: Card) -> int:
    """What of the plugs is still on the card, in granules with something live."""
    return max(0, plugged_bytes(card.index) - _not_there(card)[1])


def _not_there(card: Card) -> Tuple[int, int]:
    """(asleep, trimmed): what of the program's own allocations in the default tag is not on the
    card, since the tag sleeps, or though it is awake. To torch nothing has changed."""
    info = preloaded.usual_info(card.index)
    if info is None:
        return 0, 0
    is_asleep = info.state == abi.TAG_ASLEEP
    return (int(info.size_bytes), 0) if is_asleep else (0, int(info.trimmed_bytes))


def figures(card: Card) -> Figures:
    """Read from the allocator, about 30 µs. All zero where it does not tell (pluggable ones). Of
    what lies in tags only free pieces are not told from live ones: all of it is taken off live. Of
    what lies in the default tag what sleeps is left out, all that is free first."""
    try:
        stats = card.torch._C._cuda_memoryStats(card.index)
        reserved, live, active, split = (
            int(stats[name]["all"]["current"])
            for name in ("reserved_bytes", "allocated_bytes", "active_bytes",
                         "inactive_split_bytes"))
    except (RuntimeError, KeyError, AttributeError):
        return _NOTHING
    pending, tagged = max(0, active - live), _tagged_bytes(card.index)
    reserved, live = max(0, reserved - tagged), max(0, live - tagged)
    (asleep, trimmed), plugged = _not_there(card), plugged_bytes(card.index)
    reserved = max(0, reserved - asleep - trimmed)
    live, split = max(0, live - plugged), split + max(0, plugged - trimmed)
    live = min(live, reserved)
    pending = min(pending, reserved - live)
    split = min(split, reserved - live - pending)
    return Figures(reserved, live, pending, split, reserved - live - pending - split)


def asleep_bytes(card: Card) -> int:
    """What of the program's own allocations sleeps in the default tag."""
    return _not_there(card)[0]


def in_default_tag(card: Card, size_bytes: int) -> int:
    """How much of so many bytes that torch has on the card lies in the default tag, which says in
    the ledger what it holds. What other libraries have there is taken for torch's."""
    info = preloaded.usual_info(card.index)
    if info is None or info.state == abi.TAG_ASLEEP:
        return 0
    return min(size_bytes, int(info.size_bytes - info.trimmed_bytes))


class Look(NamedTuple):
    """One look at a card, by torch's allocator and by the driver (of all programs together)."""

    torch: Figures
    free: int
    total: int


def look(card: Card) -> Look:
    """About 50 µs."""
    return Look(figures(card), *card.driver_memory())


class Source:
    """One thing that can be called for memory. cost_ns: a guess, until runs were measured."""

    name = ""
    cost_ns = 0

    def bound(self, now: Figures) -> int:
        """The most that a run can give now, or abi.UNKNOWN."""
        return abi.UNKNOWN

    def run(self, card: Card) -> None:
        """Gives to the driver, or makes live memory free for the cache to give."""
        raise NotImplementedError


class Cache(Source):
    """torch's cached segments without anything live in them. Waits for pending events by itself,
    and with them whole segments may come free."""

    name = "cache"
    cost_ns = 1_000_000

    def bound(self, now: Figures) -> int:
        return now.idle + (now.pending + now.split if now.pending > 0 else 0)

    def run(self, card: Card) -> None:
        card.torch.cuda.empty_cache()


class SentBlocks(Source):
    """Blocks that other processes had open by CUDA IPC and have closed since."""

    name = "ipc"
    cost_ns = 100_000

    def run(self, card: Card) -> None:
        card.torch.cuda.ipc_collect()


class Garbage(Source):
    """Tensors in reference cycles. How many cannot be known: what it gave before is its bound."""

    name = "gc"
    cost_ns = 100_000_000

    def run(self, card: Card) -> None:
        gc.collect()


class CublasWorkspaces(Source):
    """cuBLAS makes its workspaces anew when it needs them; a graph that was captured before would
    write to where they were."""

    name = "cublas"
    cost_ns = 200_000

    def run(self, card: Card) -> None:
        clear = getattr(card.torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()


class HostCache(Source):
    """Pinned host memory that torch keeps for later copies. FSDP2 refills it at 1 to 2 GiB/s, so
    only a host target asks for it."""

    name = "host cache"
    cost_ns = 10_000_000

    def run(self, card: Card) -> None:
        empty = getattr(card.torch._C, "_host_emptyCache", None)
        if empty is not None:
            empty()


def for_card() -> List[Source]:
    """What serves a card's target; the last one only where no graph was captured."""
    return [Cache(), SentBlocks(), Garbage(), CublasWorkspaces()]


def for_host() -> List[Source]:
    """What serves a host target."""
    return [HostCache()]


def is_capturing(card: Card) -> bool:
    """Whether the calling thread's stream captures a graph: nothing may be freed then."""
    return bool(card.torch.cuda.is_current_stream_capturing())


# ---- the account: what lies in torch's segments, block by block ---------------------------------

def is_history_on(torch: Any) -> bool:
    """With it a snapshot would copy all of the history. Where it cannot be asked, it may be on."""
    ask = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return True if ask is None else bool(ask())


def segments(card: Card) -> List[Dict[str, Any]]:
    """torch's segments on this card, but for those in tags; some ms for thousands of blocks. Empty
    where to ask would cost more, since allocation history is on."""
    if is_history_on(card.torch):
        return []
    return [segment for segment in _on(card, card.torch.cuda.memory_snapshot())
            if not (_is_of_pool(segment) and _is_tagged(segment["address"]))]


def segments_without_events(card: Card) -> List[Dict[str, Any]]:
    """The same while history is on, with the stacks of live blocks; empty where this torch, older
    than 2.10 or so, gives them with all of the history alone."""
    try:
        return _on(card, card.torch.cuda.memory_snapshot(include_traces=False))
    except TypeError:  # it takes no such argument
        return []


def _on(card: Card, found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return without_plugs(card.index, [one for one in found if one["device"] == card.index])


def without_plugs(index: int, found: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The segments of a card, in which plugs are neither live nor free."""
    plugs = _plugs(index)
    for segment in found if plugs else []:
        for block in segment["blocks"]:
            if block.get("address") in plugs:
                block["state"] = "plug"
    return found


def segments_to_trim(card: Card) -> List[Dict[str, Any]]:
    """Those in which torch serves everybody from what is free, and cannot give it back itself."""
    found = segments_without_events(card) or segments(card)
    return [one for one in found if not _is_of_pool(one) and not one.get("is_expandable")]


def reserved_bytes(card: Card) -> int:
    """What torch itself counts, and holds against its limit."""
    return int(card.torch._C._cuda_memoryStats(card.index)["reserved_bytes"]["all"]["current"])


def _whole_handles(segment: Dict[str, Any]) -> int:
    """Bytes of an expandable segment's handles that lie in free blocks altogether."""
    is_large = segment["segment_type"] == "large"
    handle = _LARGE_HANDLE_BYTES if is_large else _SMALL_HANDLE_BYTES
    at, found = segment["address"], 0
    for block in segment["blocks"]:
        first = -(-(at - segment["address"]) // handle)
        at += block["size"]
        if block["state"] == "inactive":
            found += max(0, (at - segment["address"]) // handle - first) * handle
    return found


def _is_of_pool(segment: Dict[str, Any]) -> bool:
    return tuple(segment.get("segment_pool_id", (0, 0))) != (0, 0)


def returnable(segment: Dict[str, Any]) -> int:
    """What emptying the cache would give of one segment."""
    if _is_of_pool(segment):
        return 0  # of a graph or a MemPool that lives: every replay writes there
    if segment.get("is_expandable"):
        return _whole_handles(segment)
    is_free = all(block["state"] == "inactive" for block in segment["blocks"])
    return int(segment["total_size"]) if is_free else 0


def cached(found: List[Dict[str, Any]]) -> Tuple[int, int, int]:
    """(returnable, in live pools, pinned by live neighbours): the free bytes of these segments."""
    given = pool = pinned = 0
    for segment in found:
        free = sum(block["size"] for block in segment["blocks"] if block["state"] == "inactive")
        if _is_of_pool(segment):
            pool += free
        else:
            whole = returnable(segment)
            given += whole
            pinned += free - whole
    return given, pool, pinned
