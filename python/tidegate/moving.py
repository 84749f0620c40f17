# SPDX-License-Identifier: Apache-2.0
"""What sleep, wake, prepare and repack do in a process's memories: in one as the library does it,
in several all or nothing.

Over several devices a wake is tried on all before any is published. A sleep waits for the work of
all first, then puts to sleep what a wake brings back whole, and at last what is dropped; where one
device refuses, what slept by this call is woken again."""

from __future__ import annotations

import collections
import itertools
import math
import time
from ctypes import byref
from typing import Any, Callable, Iterable, List, NamedTuple, Optional, Tuple

from . import abi, errors, library, shortage
from .locks import ForkSafeLock
from .receipts import Item, Receipt

_WAIT_MOST_MS = 0xffffffff  # seven weeks: no limit

_several = ForkSafeLock()  # two that try to wake would each end what the other has tried


class Part(NamedTuple):
    """What is to move in one memory: tags by their names, is_all as well those that come; drop: of
    these, whose content a sleep does not save."""

    memory: Any  # tags.Memory
    names: List[str]
    is_all: bool = False
    drop: Tuple[str, ...] = ()


Moved = Tuple[Part, Receipt]


def wait_ms(timeout: Optional[float]) -> int:
    """Seconds as the library takes them; None: no limit."""
    return _WAIT_MOST_MS if timeout is None else min(math.ceil(timeout * 1000), _WAIT_MOST_MS)


def told(problem: errors.TidegateWouldNotFit, memory: Any, what: str, asked: int,
         after: str) -> errors.TidegateWouldNotFit:
    """problem with its account, of the ledger's figures if it was the ledger that said no."""
    lack = abi.tg_shortfall()
    if memory.tenant is not None:
        library.call("tg_tenant_shortfall", memory.tenant.handle, byref(lack))
    if lack.status == problem.status:
        asked, available = lack.asked_bytes, lack.available_bytes
    else:
        available = memory.device.memory()[0]
    return shortage.would_not_fit(problem, what, memory.device.uuid, asked, available, after)


def receipt_of(operation: str, receipt: abi.tg_receipt) -> Receipt:
    """The library's, with what stays apart from tags."""
    items = [Item(library.text(item.name), item.size_bytes)
             for item in receipt.items[:receipt.item_count]]
    stays = tuple(Item(item.item[len("stays: "):], item.size_bytes) for item in items
                  if item.item.startswith("stays: "))
    return Receipt(
        "done", receipt.asked_bytes, receipt.gained_bytes, receipt.driver_bytes, 1,
        receipt.all_ns / 1e9, (), stays, operation,
        tuple(item for item in items if not item.item.startswith("stays: ")), receipt.copied_bytes,
        {phase: getattr(receipt, f"{phase}_ns") / 1e9
         for phase in ("wait", "drain", "copy", "map") if getattr(receipt, f"{phase}_ns") > 0})


# ---- in one --------------------------------------------------------------------------------------

def _listed(names: Iterable[str]) -> bytes:
    return ",".join(names).encode()


def _state(part: Part, name: str) -> str:
    return part.memory.tags[name].info().state


def _call(operation: str, part: Part, timeout: Optional[float], phase: str = "") -> Receipt:
    """One call of the library. What does not fit is told by its account."""
    named: List[Optional[bytes]] = [None if part.is_all else _listed(part.names)]
    limit = [] if operation == "prepare" else [wait_ms(timeout)]
    function = f"tg_memory_{operation}{phase}"
    if operation == "sleep":
        function = "tg_memory_sleep_drop"
        named.append(_listed(part.drop) or None)
    receipt = abi.tg_receipt()
    try:
        library.call(function, part.memory.handle, *named, *limit, byref(receipt))
    except errors.TidegateWouldNotFit as problem:
        asleep = all(_state(part, name) == "asleep" for name in part.names)
        raise told(problem, part.memory, f"{operation} {', '.join(part.names)}",
                   receipt.asked_bytes,
                   f"All tags are {'asleep ' if asleep else ''}as before.") from None
    return receipt_of(operation, receipt)


# ---- in several ----------------------------------------------------------------------------------

def _names_of(part: Part, names: Iterable[str]) -> str:
    return f"{', '.join(names)} on {part.memory.device.uri}"


def _with(problem: errors.TidegateError, part: Part, after: str = "") -> errors.TidegateError:
    """problem, which says on which device it came, and what is left elsewhere."""
    return _said(problem, f"on {part.memory.device.uri}: {problem.text}{after}")


def _said(problem: errors.TidegateError, text: str) -> errors.TidegateError:
    problem.text = text
    problem.args = (problem.status, text, problem.native)
    return problem


def _sum(operation: str, moved: List[Moved]) -> Receipt:
    """All of them; what each names says on which device."""
    def items(kind: str) -> Tuple[Item, ...]:
        return tuple(Item(f"{item.item} on {part.memory.device.uri}", item.size_bytes)
                     for part, receipt in moved for item in getattr(receipt, kind))

    receipts = [receipt for _, receipt in moved]
    phases: "collections.Counter[str]" = collections.Counter()
    for receipt in receipts:
        phases.update(receipt.phases)
    return Receipt(
        "done", sum(receipt.asked_bytes or 0 for receipt in receipts),
        sum(receipt.gained_bytes for receipt in receipts),
        sum(receipt.driver_bytes for receipt in receipts), 1,
        sum(receipt.seconds for receipt in receipts), (), items("stays"), operation, items("tags"),
        sum(receipt.copied_bytes for receipt in receipts), dict(phases))


def _left(timeout: Optional[float]) -> Callable[[], Optional[float]]:
    """What is left of it, at each call."""
    begun = time.monotonic()
    return lambda: None if timeout is None else max(0.0, timeout - (time.monotonic() - begun))


def _end(parts: List[Part], publish: bool) -> None:
    """Of all as one step of Python's, between which Ctrl-C would come."""
    end = library.functions()["tg_memory_wake_end"]
    collections.deque(map(end, [part.memory.handle for part in parts],
                          itertools.repeat(int(publish))), 0)


def _try(part: Part, timeout: Optional[float], begun: List[Part]) -> Receipt:
    """Whose try may be there, and is to be ended, stands in begun also when Ctrl-C comes behind it;
    not where it was refused, perhaps since it is another's."""
    begun.append(part)
    try:
        return _call("wake", part, timeout, "_try")
    except errors.TidegateError as problem:
        begun.remove(part)
        raise _with(problem, part) from None


def _wake(parts: List[Part], timeout: Optional[float]) -> List[Moved]:
    left, moved = _left(timeout), []
    begun: List[Part] = []
    try:
        for part in parts:
            moved.append((part, _try(part, left(), begun)))
        _end(begun, True)
    except BaseException:
        _end(begun, False)  # what is published has ended
        raise
    return moved


def _check_idle(part: Part, timeout: Optional[float]) -> None:
    """Before anything sleeps: the device has no work, and no peer asks for a while without
    sleeps."""
    left = _left(timeout)
    try:
        library.call("tg_memory_trim", part.memory.handle, None, 0, 0, None)  # is one captured?
        if part.memory.tenant is not None:
            library.call("tg_tenant_check_quiet", part.memory.tenant.handle, wait_ms(left()))
        part.memory.device.wait_for_work(wait_ms(left()))
    except errors.TidegateError as problem:
        raise _with(problem, part) from None


def _wake_again(parts: List[Part], awake: List[List[str]], timeout: Optional[float]) -> str:
    """Undoes a sleep as far as it can; a sentence of what it could not."""
    said = ""
    for part, names in zip(parts, awake):
        asleep = [name for name in names if _state(part, name) == "asleep"]
        if not asleep:
            continue
        try:
            _call("wake", Part(part.memory, asleep), timeout)
        except errors.TidegateError as problem:
            said += (f". {_names_of(part, asleep)} cannot be woken again and sleeps on until "
                     f"tidegate.wake(): {problem.text}")
    return said


def _halves(parts: List[Part]) -> List[Part]:
    """What a wake brings back whole, and behind all of that what is dropped."""
    halves = []
    for is_saved in (True, False):
        for part in parts:
            names = [name for name in part.names if is_saved == (
                part.memory.tags[name].is_saved and name not in part.drop)]
            if names:
                halves.append(Part(part.memory, names,
                                   drop=tuple(name for name in part.drop if name in names)))
    return halves


def _sleep_one(part: Part, timeout: Optional[float], dropped: str) -> Receipt:
    try:
        return _call("sleep", part, timeout)
    except errors.TidegateError as problem:
        raise _with(problem, part, dropped) from None


def _sleep(parts: List[Part], timeout: Optional[float]) -> List[Moved]:
    left, moved, dropped = _left(timeout), [], ""
    awake = [[name for name in part.names if _state(part, name) == "awake"] for part in parts]
    try:
        for part in parts if any(awake) else ():
            _check_idle(part, left())
        for part in _halves(parts):
            moved.append((part, _sleep_one(part, left(), dropped)))
            lost = [item.item for item in moved[-1][1].tags
                    if item.item in part.drop or not part.memory.tags[item.item].is_saved]
            dropped += f". What {_names_of(part, lost)} held is dropped" if lost else ""
    except BaseException as problem:
        said = _wake_again(parts, awake, timeout)
        if isinstance(problem, errors.TidegateError):
            _said(problem, problem.text + said)
        raise
    return moved


def _one_by_one(operation: str, parts: List[Part], timeout: Optional[float]) -> List[Moved]:
    """What one device has done stays done where a later one refuses."""
    left = _left(timeout)
    moved: List[Moved] = []
    for part in parts:
        try:
            moved.append((part, _call(operation, part, left())))
        except errors.TidegateError as problem:
            done = ", ".join(before.memory.device.uri for before, _ in moved)
            raise _with(problem, part,
                        f". The {operation} of {done} stays as it is" if done else "") from None
    return moved


def move(operation: str, parts: List[Part], timeout: Optional[float]) -> Receipt:
    """sleep, wake, prepare or repack of these parts, each of another memory. Raises what the
    library says, of several with the device."""
    if len(parts) == 1:
        receipt = _call(operation, parts[0], timeout)
    else:
        left = _left(timeout)
        if not _several.acquire(timeout=-1 if timeout is None else timeout):
            raise errors.Busy(errors.CODES["TG_EBUSY"], f"another thread moves this process's tags "
                              f"on several devices, and has not ended in time: {operation} again")
        try:
            if operation == "sleep":
                moved = _sleep(parts, left())
            elif operation == "wake":
                moved = _wake(parts, left())
            else:
                moved = _one_by_one(operation, parts, left())
        finally:
            _several.release()
        receipt = _sum(operation, moved)
    if operation == "sleep":
        for part in parts:
            part.memory.tell_outside()
    return receipt
