# SPDX-License-Identifier: Apache-2.0
"""trim and refill: torch's free pieces are plugged, what lies under the plugs goes to the driver
and comes back. A toy of torch whose segments are real memory of the program under the preload, over
the driver that stands in; each case in a Python of its own."""

import pytest

from conftest import ROOT
from test_preload_package import BEGIN, ON, built, environment, told  # noqa: F401

CARD = "capacity=128MiB,context=0"

WORLD = f"sys.path.insert(0, {str(ROOT / 'test')!r})" + """
import trim_world
from tidegate import abi, errors, tags, torch_sources, trimming, undisturbed
world = trim_world.World(program)
sys.modules["torch"] = world.torch
from tidegate import card
def free():
    return world.memory()[0] // MIB
def live():
    return world.card.stats(0)["allocated_bytes"]["all"]["current"] // MIB
def mib(figures):
    return [figures.reserved // MIB, figures.live // MIB, figures.split // MIB,
            figures.idle // MIB]
def seen():
    return mib(torch_sources.figures(card.current()))
# A segment of 20 MiB: live are 0 to 3 and 10 to 12, so of granules the first two and that at 10.
first, middle, last = (world.tensor(size * MIB, 1 + size) for size in (3, 7, 2))
world.drop(middle)
"""


@pytest.fixture
def trimmed(told):  # noqa: F811
    """trimmed(code, …) -> what it told, in a world with one segment that has holes"""
    def call(code, card=CARD, err="", **env):
        seen, said = told(WORLD + code, card=card, **{**ON, **env})
        assert err in said and (err or said == "")
        return seen

    return call


def test_free_pieces_go_and_come_back_and_live_tensors_stay(trimmed):
    seen = trimmed("""
before = free(), seen()
receipt = tidegate.trim()
during = free(), seen(), live(), world.holds(first, last)
order = list(world.log)
refilled = tidegate.refill()
again = world.tensor(7 * MIB, 9)
tell(before, during, order, str(receipt).splitlines()[0].split(" in ")[0],
     [receipt.gained_bytes // MIB, receipt.copied_bytes // MIB, refilled.gained_bytes // MIB],
     free(), again.addr == middle.addr, world.holds(first, last, again), world.raw,
     tidegate.refill().gained_bytes)
""")
    # Of the 15 free MiB one is in granules with something live: pinned, as before.
    assert seen[:2] == [[108, [20, 5, 15, 0]], [122, [6, 5, 1, 0], 20, True]]
    assert seen[2] == ["synchronize", "empty_cache", "snapshot", "plug", "plug"]
    assert seen[3:] == ["trim usual 14 MiB", [14, 6, 14], 108, True, True, {}, 0]


def test_while_trimmed_torch_goes_on_in_new_memory(trimmed):
    seen = trimmed("""
tidegate.trim()
new = world.tensor(8 * MIB, 7)
small = world.tensor(100, 8)
there = new.addr in range(first.addr, first.addr + 20 * MIB)
tidegate.refill()
tell(there, world.holds(first, last, new, small), free())
""")
    assert seen == [False, True, 128 - 20 - 20 - 2]


def test_ten_trims_give_the_same(trimmed):
    seen = trimmed("""
given = []
for _ in range(10):
    given.append([tidegate.trim().gained_bytes // MIB, free(), len(world.raw)])
tell(given, world.log.count("unplug"), world.holds(first, last))
""")
    assert seen == [[[14, 122, 2]] * 10, 18, True]  # each undoes the one before


def test_a_plug_that_is_not_where_it_was_expected_counts_for_nothing(trimmed):
    """Another thread takes the first piece between snapshot and plug."""
    seen = trimmed("""
def steal(size):
    if not stolen:
        stolen.append(world.tensor(7 * MIB, 5))
stolen = []
world.before_plug = steal
receipt = tidegate.trim()
plugged = list(world.raw)
tell(stolen[0].addr == middle.addr, receipt.gained_bytes // MIB,
     world.holds(first, last, stolen[0]), [address - first.addr for address in plugged],
     tidegate.refill().gained_bytes // MIB)
""")
    assert seen == [True, 8, True, [12 << 20], 8]


def test_pieces_of_one_size_are_asked_for_as_torch_hands_them_out(trimmed):
    """The lowest first: else each would come where another was expected."""
    seen = trimmed("""
more = [world.tensor(size * MIB, 1 + size) for _ in range(2) for size in (9, 9, 2)]
world.drop(more[0], more[3])
receipt = tidegate.trim()
tell(receipt.gained_bytes // MIB, len(world.raw), world.holds(first, last, *more[1:3], *more[4:]))
""")
    assert seen == [14 + 8 + 8, 4, True]


def test_where_torch_rounds_otherwise_nothing_is_trimmed(trimmed):
    seen = trimmed("""
world.allocator.rounds_up = 512
receipt = tidegate.trim()
tell(receipt.gained_bytes, world.raw, free(), world.holds(first, last))
""")
    assert seen == [0, {}, 108, True]


def test_pools_of_graphs_and_expandable_segments_are_never_touched(trimmed):
    seen = trimmed("""
one = world.tensor(3 * MIB, 1, pool=(1, 0))
other = world.tensor(7 * MIB, 2, pool=(1, 0))
world.drop(other)
world.allocator.segments[-1].expandable = False
for segment in world.allocator.segments:
    if segment.pool == (0, 0):
        segment.expandable = True
world.allocator._unmap_tail = lambda segment, frames: None
receipt = tidegate.trim()
tell(receipt.gained_bytes, world.raw, world.log.count("plug"))
""")
    assert seen == [0, {}, 0]


@pytest.mark.parametrize("fraction, says", [(0.25, "runs out"), (0.5, "nothing")])
def test_a_memory_fraction_that_the_plugs_would_exceed_is_refused(trimmed, fraction, says):
    """20 MiB are reserved, 15 would be plugged: of 128 a quarter is too little."""
    said, plugs, given = trimmed(f"""
world.fraction = {fraction}
said = told(errors.BadValue, tidegate.trim)
tell(said, len(world.raw), free() - 108)
""")
    if says == "nothing":
        assert (said, plugs, given) == ("nothing", 2, 14)
    else:
        assert "0.03 GiB of this card" in said and (plugs, given) == (0, 0)


# ---- what others do meanwhile --------------------------------------------------------------------

def test_a_refill_that_lacks_memory_leaves_all_trimmed(trimmed):
    """The sentence names who has it; the program goes on without."""
    seen = trimmed("""
tidegate.trim()
other = tidegate.tag("other", device="cuda:0")
taken = other.alloc(110 * MIB)
said = told(tidegate.TidegateWouldNotFit, tidegate.refill)
during = len(world.raw), world.holds(first, last), free()
taken.free()
tell(said, during, tidegate.refill(timeout=5).gained_bytes // MIB, world.raw,
     world.holds(first, last))
""")
    assert "refill" in seen[0] and "14" in seen[0] and "other" in seen[0]
    assert seen[1:] == [[2, True, 12], 14, {}, True]


def test_a_sleep_saves_what_lives_and_its_wake_brings_all_back(trimmed):
    seen = trimmed("""
tidegate.trim()
slept = tidegate.sleep("usual")
asleep = [slept.copied_bytes // MIB, free(), told(tidegate.TidegateError, tidegate.refill),
          told(tidegate.TidegateError, tidegate.trim), len(world.raw)]
tidegate.wake("usual")
woken = free(), seen(), world.holds(first, last)
tell(asleep, woken, tidegate.refill().gained_bytes, len(world.raw),
     tidegate.trim().gained_bytes // MIB)
""")
    copied, now_free, said, second, plugs = seen[0]
    assert (copied, now_free, plugs) == (6, 128, 2)
    assert "trimmed and sleeps" in said and "trimmed and sleeps" in second
    assert seen[1:] == [[108, [20, 5, 15, 0], True], 0, 0, 14]


def test_a_capture_is_left_alone(trimmed):
    """A capture of another thread, which the preload sees and torch does not tell of, is not harmed
    by waiting for the card."""
    seen = trimmed("""
stream = c_void_p()
assert program.cudaStreamCreateWithFlags(byref(stream), 1) == 0
assert program.cudaStreamBeginCapture(stream, 2) == 0
hidden = told(tidegate.Busy, tidegate.trim)
plugs = list(world.log), len(world.raw)
assert program.cudaStreamEndCapture(stream, byref(c_void_p())) == 0
world.log.clear()
world.torch.cuda.is_current_stream_capturing = lambda: True
tell(hidden, plugs, told(tidegate.Busy, tidegate.trim), world.log, free(), world.holds(first, last))
""")
    assert "captur" in seen[0] and seen[1] == [[], 0]
    assert "captured" in seen[2] and seen[3:] == [[], 108, True]


def test_plugs_have_their_name_in_the_history(trimmed):
    seen = trimmed("""
world.allocator.recording, world.allocator.metadata = True, "mine"
tidegate.trim()
tell([event["user_metadata"] for event in world.allocator.events if event["action"] == "alloc"],
     world.allocator.metadata)
""")
    assert seen == [["tidegate.trim"] * 2, "mine"]


def test_reports_leave_plugs_out(trimmed):
    """Neither the account nor the segments that growing lines are looked up in has them as live."""
    seen = trimmed("""
from tidegate import accounts
tidegate.trim()
where = card.current()
account = accounts.account(where)
states = [block["state"] for one in torch_sources.segments(where) for block in one["blocks"]]
tell({item.item: item.size_bytes // MIB for item in account.items()}, states)
""")
    assert seen[0] == {"live": 5, "pinned by a live neighbour": 1}
    assert seen[1] == ["active_allocated", "plug", "active_allocated", "plug"]


def interrupted_at_any_line(trimmed, *lines):
    """A round of these, with Ctrl-C one line later each time, leaves all as without it."""
    seen = trimmed("""
import ctrl_c
wrong, after, came = [], 1, True
while came:
    """ + "\n    ".join(lines) + """
    if world.raw or not world.holds(first, last, *reused) or free() > 108:
        wrong.append(after)
    world.drop(*reused)
    world.card.empty_cache()
    after += 1
tell(wrong, after > 10, free())
""")
    assert seen == [[], True, 108]


def test_ctrl_c_in_a_refill_frees_no_plug_twice(trimmed):
    """By then it may be a tensor's memory. The next refill goes on where that one was."""
    interrupted_at_any_line(
        trimmed, "tidegate.trim()",
        "came = ctrl_c.interrupted(tidegate.refill, after, trimming, undisturbed)",
        "reused = [world.tensor(7 * MIB, 9)]", "tidegate.refill()")


# A job in the background is started with the signal ignored, and its Python leaves it so.
CTRL_C = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def ctrl_c():
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGINT)
left = [0]
"""


@pytest.mark.parametrize("nth", [1, 2])
def test_ctrl_c_between_a_plug_and_its_note_loses_no_piece(trimmed, nth):
    seen = trimmed(CTRL_C + f"""
world.amid = ctrl_c
left[0] = {nth}
try:
    tidegate.trim()
    came = False
except KeyboardInterrupt:
    came = True
tidegate.refill()
left_over = len(world.raw), live(), free()
tell(came, left_over, tidegate.trim().gained_bytes // MIB, world.holds(first, last))
""")
    assert seen == [True, [0, 5, 108], 14, True]


@pytest.mark.parametrize("nth", [1, 2])
def test_ctrl_c_while_a_plug_is_freed_loses_no_piece(trimmed, nth):
    seen = trimmed(CTRL_C + f"""
tidegate.trim()
world.amid = ctrl_c
left[0] = {nth}
try:
    tidegate.refill()
    came = False
except KeyboardInterrupt:
    came = True
tidegate.refill()
tell(came, len(world.raw), live(), free(), tidegate.trim().gained_bytes // MIB,
     world.holds(first, last))
""")
    assert seen == [True, 0, 5, 108, 14, True]


def test_ctrl_c_in_a_trim_leaves_nothing_plugged_after_the_next_refill(trimmed):
    interrupted_at_any_line(
        trimmed, "came = ctrl_c.interrupted(tidegate.trim, after, trimming, undisturbed)",
        "tidegate.refill()", "reused = [world.tensor(7 * MIB, 9)]")


def test_in_a_program_on_two_gpus_the_current_one_is_trimmed(trimmed):
    seen = trimmed("""
program.cudaSetDevice(1)
other = malloc(4 * MIB, 6)
program.cudaSetDevice(0)
given = tidegate.trim().gained_bytes // MIB
tell(given, free(), tidegate.refill().gained_bytes // MIB, world.raw, world.holds(first, last),
     holds(other, 4 * MIB, 6))
""", card="capacity=128MiB,context=0,devices=2")
    assert seen == [14, 122, 14, {}, True, True]


# ---- where there is nothing to trim --------------------------------------------------------------

@pytest.mark.parametrize("env", [{"TIDEGATE": "on"}, {"TIDEGATE": "off",
                                                      "TIDEGATE_DEFAULT_TAG": "usual"}])
def test_without_a_default_tag_it_does_nothing_and_says_so_once(told, env):  # noqa: F811
    seen, err = told(WORLD + """
receipts = [tidegate.trim(), tidegate.trim(), tidegate.refill()]
tell([one.gained_bytes for one in receipts], [one.operation for one in receipts], world.log)
""", card=CARD, **env)
    assert seen == [[0] * 3, ["trim", "trim", "refill"], []]
    assert err.count("\n") == 1 and "tidegate run --default-tag" in err
