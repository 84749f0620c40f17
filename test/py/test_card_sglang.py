# SPDX-License-Identifier: Apache-2.0
"""What bench/card/sglang_beside.py does with figures once a card has given them: no card, no torch.
"""
import types

import pytest

from card_scripts import by_name, card_on_path, load  # noqa: F401


class SleepingSglang:
    """An engine whose cache needs 60 of a card's 100 while it is awake. `ends`: as the engine of
    torch_memory_saver does where memory lacks."""

    def __init__(self, first_ms, ends=False):
        self.sglang = load("sglang_beside")
        self.first_ms, self.ends = first_ms, ends
        self.asleep, self.taken, self.releases, self.resuming = set(), 0, 0, None

    def stranger(self):
        def ask(request, *values):
            self.taken = 100 - values[0] if request == "take_all_but" else 0
        return types.SimpleNamespace(ask=ask)

    def used(self):
        return sum({"kv_cache": 60, "weights": 10}[tag] for tag in {"kv_cache", "weights"}
                   - self.asleep)

    def ask(self, request, *values):
        if request == "release":
            self.asleep.add(values[0])
            self.releases += values[0] == "weights"
            if self.releases == 1 and values[0] == "weights":
                return None, self.first_ms
        if request == "resume":
            self.asleep.discard(values[0])
        if request == "begin_resume":
            self.resuming = values[0]
        if request == "is_resuming" and self.ends:
            raise load("rollout_link").RolloutFailed("is_resuming: the rollout ended with -3")
        if request == "is_resuming":
            return self.taken > 40, 10.0
        if request == "end_resume":
            self.asleep.discard(self.resuming)
        answer = {"free": 100 - self.used() - self.taken, "generate": [1, 2]}.get(request)
        return answer, 10.0


def sglang_beside(first_ms=100.0, ends=False):
    sglang, engine = load("sglang_beside"), SleepingSglang(first_ms, ends)
    found = {"rounds": sglang.rounds(engine, [1, 2], 3)}
    assert found["rounds"][0]["release kv_cache bytes"] == 60
    found["lacks"] = sglang.lacks(engine, engine.stranger(), [1, 2], 60, 4)
    return found


def test_two_savers_under_sglang_are_judged_side_by_side(capsys):
    rows = by_name(load("sglang_beside").rows_of(sglang_beside(1000.0, ends=True),
                                                 sglang_beside()))
    assert rows["release weights: first, own / ours"]["value"] == 10
    assert rows["resume kv_cache, ours / own"]["value"] == 1
    assert rows["ours: resumes that lacked memory, left it asleep and were answered later"][
        "value"] == 4
    assert rows["own: tokens are the same after a resume that lacked memory"]["value"] == 0
    assert all(one["pass"] is not False for one in rows.values())


@pytest.mark.parametrize("spoil, name", [
    (lambda ours: ours["rounds"][0].update({"release weights": 300.0}),
     "release weights: first, own / ours"),
    (lambda ours: [one.update({"resume weights": 11.0}) for one in ours["rounds"]],
     "resume weights, ours / own"),
    (lambda ours: ours["rounds"][2].update(tokens=False),
     "ours: rounds whose tokens are the same"),
    (lambda ours: ours["lacks"][1].update(waited=False),
     "ours: resumes that lacked memory, left it asleep and were answered later"),
    (lambda ours: ours["lacks"][1].update(woken_bytes=1),
     "ours: resumes that lacked memory, left it asleep and were answered later"),
    (lambda ours: ours["lacks"][3].update(tokens=False),
     "ours: resumes that lacked memory, left it asleep and were answered later")])
def test_what_falls_short_under_sglang_fails_its_row(capsys, spoil, name):
    own, ours = sglang_beside(1000.0), sglang_beside()
    spoil(ours)
    rows = load("sglang_beside").rows_of(own, ours)
    assert [one["name"] for one in rows if one["pass"] is False] == [name]
