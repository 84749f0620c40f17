# SPDX-License-Identifier: Apache-2.0
"""SGLang's scheduler, where it releases and resumes: repeatable, and alive when memory lacks.

SGLang keeps a set of what it has released, and takes each tag out of it at a resume: a second one
is a KeyError, and an exception in the scheduler ends the engine. Here what is released already, or
not, is left out of a request, and one that could not be served stays: nothing has changed, the
client is not answered yet, and the scheduler tries again between its other work. A client that has
sent it again by then finds nothing to do. What a later request says the other way is not tried.

With several ranks an engine's schedulers answer together, and one alone cannot go on: there the
exception is raised as ever."""

from __future__ import annotations

import functools
import math
import time
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, Tuple

from .. import errors, patience, seams
from . import engine_process, torch_memory_saver

Way = Callable[[Any, Any], Any]


class _Waiting:
    """A request that a scheduler has not answered yet. left: its tags that are still to be done;
    with none it is answered."""

    def __init__(self, request: Any, serve: Callable[[Any, Any, List[str]], Any], is_release: bool,
                 left: List[str]) -> None:
        self.request = request
        self.serve = serve
        self.is_release = is_release
        self.left = left


_waiting: "weakref.WeakKeyDictionary[Any, List[_Waiting]]" = weakref.WeakKeyDictionary()
_said_at = -math.inf  # when it was last said why one waits


def install(module: ModuleType) -> None:
    """Replaces the mixin's two methods."""
    mixin = module.SchedulerUpdateWeightsMixin
    answers: Dict[str, Any] = {
        "release_memory_occupation": module.ReleaseMemoryOccupationReqOutput,
        "resume_memory_occupation": module.ResumeMemoryOccupationReqOutput}
    for name, answer in answers.items():
        around = functools.partial(_repeatable, answer=answer,
                                   all_tags=tuple(module.GPU_MEMORY_ALL_TYPES),
                                   is_release=name.startswith("release"))
        engine_process.replace_method(f"sglang: {module.__name__}.{name}", mixin, name, around)


def install_loop(module: ModuleType) -> None:
    """What could not be served is tried again after the scheduler has read its requests."""
    key = f"sglang: {module.__name__}.process_input_requests"
    if seams.find(key) is None:
        original = module.Scheduler.process_input_requests
        seams.install_attribute(key, module.Scheduler, "process_input_requests",
                                _then_again(original))


def _repeatable(original: Way, answer: Any, all_tags: Tuple[str, ...], is_release: bool) -> Way:
    def serve(self: Any, recv_req: Any, asked: List[str]) -> Any:
        recv_req.tags = [tag for tag in asked if (tag in self.offload_tags) != is_release]
        if not recv_req.tags:
            return answer()
        try:
            return original(self, recv_req)
        except errors.TidegateError as problem:
            left = _undone(recv_req.tags, is_release)
            change = self.offload_tags.difference_update if is_release else self.offload_tags.update
            change(left)
            if not _is_alone(self):
                raise
            _put_off(self, _Waiting(recv_req, serve, is_release, left), problem)
            return None

    @functools.wraps(original)
    def served(self: Any, recv_req: Any) -> Any:
        said = recv_req.tags or all_tags
        asked = [said] if isinstance(said, str) else list(said)  # the engine's own call checks none
        for one in _waiting.get(self, ()):  # the later request has the last word
            if one.is_release != is_release:
                one.left = [tag for tag in one.left if tag not in asked]
        return serve(self, recv_req, asked)

    return served


def _undone(names: List[str], is_release: bool) -> List[str]:
    """Those of them that are not yet what the request asked for."""
    before = "awake" if is_release else "asleep"
    return [tag for tag in names if torch_memory_saver.state(tag) == before]


def _is_alone(scheduler: Any) -> bool:
    return int(getattr(scheduler, "tp_size", 1)) == 1 and int(getattr(scheduler, "pp_size", 1)) == 1


def _put_off(scheduler: Any, waiting: _Waiting, problem: errors.TidegateError) -> None:
    """What is refused at once is tried at every turn of the scheduler's loop, and said seldom."""
    global _said_at
    known, now = _waiting.setdefault(scheduler, []), time.monotonic()
    again = [one for one in known if one.request is waiting.request]
    for one in again:
        one.left = waiting.left
    if not again:
        known.append(waiting)
    if not again or now - _said_at >= patience.WAIT_SECONDS:
        _said_at = now
        seams.announce(f"tidegate: {str(problem).rstrip('.')}. Trying again")


def _then_again(original: Callable[..., Any]) -> Callable[..., Any]:
    """Also after off: whoever waits is answered."""
    @functools.wraps(original)
    def process_input_requests(self: Any, recv_reqs: Any) -> Any:
        result = original(self, recv_reqs)
        for one in list(_waiting.get(self, ())):
            output = one.serve(self, one.request, one.left)
            if output is None:
                break
            _waiting[self].remove(one)
            self.send_to_tokenizer.send_output(output, one.request)
        return result

    return process_input_requests
