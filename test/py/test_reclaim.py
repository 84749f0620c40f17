# SPDX-License-Identifier: Apache-2.0
"""reclaim over a torch that is a fake: which sources run in which order, what the receipt says, and
where nothing may happen. That torch does give memory back is shown on a card."""

import json
import random
import signal
import sys
import threading
import types

import pytest

import fake_torch
import tidegate
from tidegate import accounts, card, reclaiming

GIB, MIB = 1 << 30, 1 << 20


@pytest.fixture
def torch(library, monkeypatch):
    """A fresh fake, without what this process knew of another."""
    reclaiming._records.clear()
    accounts._blocks.clear()
    return fake_torch.install(monkeypatch)


def used(receipt):
    return {use.name: use.runs for use in receipt.sources}


def test_one_useful_pass_is_one_pass(torch):
    torch.card.live, torch.card.cached = 10 * GIB, 40 * GIB
    receipt = tidegate.reclaim(7 * GIB)
    assert torch.card.calls == ["empty_cache"]
    assert (receipt.reason, receipt.passes) == ("target met", 1)
    assert receipt.gained_bytes == receipt.driver_bytes == 40 * GIB
    assert receipt.asked_bytes == 7 * GIB
    assert used(receipt) == {"cache": 1, "ipc": 0, "gc": 0, "cublas": 0}


def test_nothing_cached_runs_nothing_for_a_target_of_zero(torch):
    receipt = tidegate.reclaim(0)
    assert torch.card.calls == []
    assert (receipt.reason, receipt.passes, receipt.gained_bytes) == ("target met", 0, 0)


def test_garbage_is_collected_when_the_cache_is_not_enough_and_then_given(torch):
    torch.card.live, torch.card.cached, torch.card.garbage = 20 * GIB, GIB, 5 * GIB
    receipt = tidegate.reclaim(6 * GIB)
    assert torch.card.calls == ["empty_cache", "sent", "garbage", "empty_cache"]
    assert receipt.reason == "target met"
    assert receipt.gained_bytes == 6 * GIB


def test_a_second_reclaim_with_nothing_to_give_does_not_collect_again(torch):
    torch.card.live = 20 * GIB
    tidegate.reclaim()
    torch.card.calls.clear()
    receipt = tidegate.reclaim()
    assert torch.card.calls == []
    assert receipt.reason == "nothing left"


def test_workspaces_only_with_the_promise_that_there_are_no_graphs(torch):
    torch.card.live = torch.card.workspaces = GIB
    receipt = tidegate.reclaim()
    assert "workspaces" not in torch.card.calls
    assert receipt.sources[3].skipped == "not allowed"
    receipt = tidegate.reclaim(no_graphs=True)
    assert "workspaces" in torch.card.calls
    assert receipt.gained_bytes == GIB


def test_what_is_small_is_left_where_it_is(torch):
    torch.card.cached = 10 * MIB
    tidegate.reclaim()
    assert "empty_cache" not in torch.card.calls
    assert tidegate.reclaim(min_gain=MIB).gained_bytes == 10 * MIB


def test_pending_events_are_waited_for_by_the_cache(torch):
    torch.card.live, torch.card.pending = GIB, 2 * GIB
    assert tidegate.reclaim(2 * GIB).reason == "target met"


def test_a_capture_is_left_alone(torch):
    torch.card.cached = GIB
    torch.cuda.is_current_stream_capturing = lambda: True
    receipt = tidegate.reclaim()
    assert torch.card.calls == [] and receipt.passes == 0


def test_a_reclaim_within_a_reclaim_gives_nothing(torch, monkeypatch):
    inner = []
    torch.card.cached = GIB
    empty = torch.cuda.empty_cache

    def empty_and_call_again():
        inner.append(tidegate.reclaim())
        empty()

    torch.cuda.empty_cache = empty_and_call_again
    assert tidegate.reclaim(GIB).gained_bytes == GIB
    assert [(receipt.reason, receipt.passes) for receipt in inner] == [("nothing left", 0)]


def test_a_reclaim_in_another_thread_waits_its_turn_until_its_deadline(torch):
    torch.card.cached = GIB
    entered, leave, answers = threading.Event(), threading.Event(), []

    def empty():
        entered.set()
        assert leave.wait(30)
        torch.card.empty()

    torch.cuda.empty_cache = empty
    thread = threading.Thread(target=lambda: answers.append(tidegate.reclaim(GIB)))
    thread.start()
    assert entered.wait(30)
    assert tidegate.reclaim(GIB, timeout=0.01).reason == "deadline"
    leave.set()
    thread.join()
    assert answers[0].gained_bytes == GIB


def test_ctrl_c_at_any_moment_leaves_the_next_reclaim_free(torch):
    """Interrupts fall on the few instructions around the lock, too, so it takes many."""
    armed, stopped, free = [], 0, []

    def interrupt(*_):
        if armed:
            armed.clear()
            raise KeyboardInterrupt

    tidegate.reclaim()  # what is loaded once is loaded
    former = signal.signal(signal.SIGALRM, interrupt)
    dice = random.Random(5)
    try:
        for _ in range(3000):
            try:
                armed.append(True)
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 2e-4))
                tidegate.reclaim()
            except KeyboardInterrupt:
                stopped += 1
            armed.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, former)
    other = threading.Thread(target=lambda: free.append(tidegate.reclaim(timeout=5).reason),
                             daemon=True)
    other.start()
    other.join(20)
    assert stopped > 100 and free == ["nothing left"]


def test_what_torch_raises_is_raised_and_the_next_reclaim_runs(torch):
    torch.card.cached = GIB

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    torch.cuda.empty_cache = fail
    with pytest.raises(RuntimeError, match="illegal memory access"):
        tidegate.reclaim()
    torch.cuda.empty_cache = torch.card.empty
    assert tidegate.reclaim(GIB).gained_bytes == GIB


def test_an_allocator_that_tells_nothing_is_not_an_error(torch):
    def refuse(index):
        raise RuntimeError("does not yet support getDeviceStats")

    torch._C._cuda_memoryStats = refuse
    assert tidegate.reclaim().gained_bytes == 0


def test_the_host_cache_goes_for_a_host_target_alone(torch):
    tidegate.reclaim()
    assert "host_empty" not in torch.card.calls
    receipt = tidegate.reclaim(host=True)
    assert "host_empty" in torch.card.calls
    assert used(receipt) == {"host cache": 1} and receipt.stays == ()


# ---- the account ---------------------------------------------------------------------------------

def test_the_account_adds_up_to_what_is_used(torch):
    fake = torch.card
    fake.live, fake.split, fake.outside, fake.others = 20 * GIB, GIB, 2 * GIB, 3 * GIB
    stays = dict(tidegate.reclaim().stays)
    assert stays["live"] == 20 * GIB
    assert stays["pinned by a live neighbour"] == GIB
    assert stays["unattributed"] == 5 * GIB  # the fake has no driver that tells the process's share
    assert sum(stays.values()) == fake.total - fake.free()


def test_context_and_libraries_where_the_driver_tells_the_process_s_share(torch, monkeypatch):
    fake = torch.card
    fake.live, fake.outside, fake.others = 20 * GIB, 2 * GIB, 3 * GIB
    monkeypatch.setattr(card.Card, "process_bytes", lambda self: fake.reserved() + fake.outside)
    stays = dict(tidegate.reclaim().stays)
    assert stays["context and libraries"] == 2 * GIB
    assert stays["unattributed"] == 3 * GIB


def segment(pool=(0, 0), expandable=False, blocks=(), kind="large"):
    rows = [{"size": size, "state": state} for size, state in blocks]
    return {"device": 0, "address": 1 << 40, "total_size": sum(row["size"] for row in rows),
            "segment_type": kind, "segment_pool_id": pool, "is_expandable": expandable,
            "blocks": rows}


def test_blocks_tell_pools_from_neighbours_and_from_what_could_be_given(torch):
    torch.card.live, torch.card.stuck = GIB, 190 * MIB
    torch.cuda.memory_snapshot = lambda: [
        segment(blocks=[(40 * MIB, "inactive")]),
        segment(blocks=[(10 * MIB, "active_allocated"), (30 * MIB, "inactive")]),
        segment(pool=(0, 1), blocks=[(20 * MIB, "inactive")]),
        # Handles of 20 MiB: the first is not free altogether, the next four are.
        segment(expandable=True, blocks=[(10 * MIB, "active_allocated"), (100 * MIB, "inactive")]),
    ]
    stays = dict(tidegate.reclaim().stays)
    assert stays["live pool"] == 20 * MIB
    assert stays["cached"] == (40 + 80) * MIB
    assert stays["pinned by a live neighbour"] == (30 + 20) * MIB


def test_a_live_pool_keeps_its_name_when_nothing_runs(torch):
    looks = []
    pools = [segment(pool=(0, 1), blocks=[(40 * MIB, "inactive")])]
    torch.card.live, torch.card.stuck = GIB, 40 * MIB
    torch.cuda.memory_snapshot = lambda: looks.append(1) or pools
    for _ in range(3):  # the first runs and learns that nothing comes
        stays = dict(tidegate.reclaim().stays)
        assert stays["live pool"] == 40 * MIB and "cached" not in stays
    assert len(looks) == 1


def test_history_is_not_copied_for_an_account(torch):
    torch.card.stuck = GIB
    torch._C._cuda_isHistoryEnabled = lambda: True
    torch.cuda.memory_snapshot = lambda: pytest.fail("a snapshot would copy all of the history")
    assert dict(tidegate.reclaim().stays)["cached"] == GIB


# ---- the receipt ---------------------------------------------------------------------------------

def test_the_receipt_prints_as_a_table_and_as_a_line(torch):
    torch.card.live, torch.card.cached = 21 * GIB, 46 * GIB
    receipt = tidegate.reclaim(7 * GIB)
    lines = str(receipt).splitlines()
    assert lines[0].startswith("reclaim: needed 7.0, got 46.0 GiB (driver) in ")
    assert lines[0].endswith(", 1 pass, target met")
    assert lines[1].split()[:3] == ["cache", "46.0", "GiB"]
    assert any(line.split()[:4] == ["stays:", "live", "21.0", "GiB"] for line in lines)
    assert "for sglang kv_cache" in receipt.line("sglang kv_cache")
    assert json.loads(json.dumps(receipt.to_dict()))["stays"][0]["item"] == "live"


def test_a_source_that_was_not_needed_says_what_it_gave(torch):
    torch.card.live = torch.card.garbage = 200 * MIB
    tidegate.reclaim()
    torch.card.cached = 10 * GIB
    assert "gc skipped (gave 200 MiB last time)" in tidegate.reclaim(GIB).line()


# ---- where there is nothing to do, or no place to do it ------------------------------------------

@pytest.mark.parametrize("value", [-1, 1.5, True, "7 GiB", 1 << 64])
def test_a_target_that_is_no_size(library, value):
    with pytest.raises(tidegate.BadValue, match="target"):
        tidegate.reclaim(value)


@pytest.mark.parametrize("value", [-1, "soon", True])
def test_a_timeout_that_is_no_time(library, value):
    with pytest.raises(tidegate.BadValue, match="timeout"):
        tidegate.reclaim(timeout=value)


def test_torch_that_is_not_there(library, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(tidegate.TorchMissing, match="pip install torch"):
        tidegate.reclaim()


@pytest.mark.parametrize("stand_in", [types.ModuleType("torch"), object()])
def test_what_stands_in_for_torch_is_none(library, monkeypatch, stand_in):
    monkeypatch.setitem(sys.modules, "torch", stand_in)
    with pytest.raises(tidegate.TorchMissing):
        tidegate.reclaim()


def test_torch_that_nobody_has_imported_holds_nothing(library, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    assert tidegate.reclaim().reason == "nothing left"
    assert "torch" not in sys.modules


@pytest.mark.parametrize("version", ["1.13.1+cu117", "0.4.0"])
def test_torch_that_is_too_old(torch, version):
    torch.__version__ = version
    with pytest.raises(tidegate.TorchTooOld, match="2.0 or newer"):
        tidegate.reclaim()


@pytest.mark.parametrize("version", ["2.0.0", "2.11.0+cu130", "2.13.0a0+git123", "nightly"])
def test_torch_that_is_new_enough(torch, version):
    torch.__version__ = version
    assert tidegate.reclaim(0).reason == "target met"


@pytest.mark.parametrize("cuda, hip, said", [(None, None, "the CPU"), (None, "6.4", "ROCm")])
def test_torch_for_something_else(torch, cuda, hip, said):
    torch.version.cuda, torch.version.hip = cuda, hip
    with pytest.raises(tidegate.NoDevice, match=said):
        tidegate.reclaim()
    assert card.current() is None and not card.is_usable()


def test_before_cuda_has_started(torch, monkeypatch):
    torch.cuda.is_initialized = lambda: False
    torch.cuda.current_device = torch.cuda.mem_get_info = lambda *a: pytest.fail("it would start")
    monkeypatch.setattr(card, "_DRIVER_FILES", ("/dev/null",))
    assert tidegate.reclaim().reason == "nothing left"
    monkeypatch.setattr(card, "_DRIVER_FILES", ())
    with pytest.raises(tidegate.NoDevice, match="no NVIDIA card"):
        tidegate.reclaim()


def test_a_device_without_a_context_gets_none(torch):
    torch._C._cuda_hasPrimaryContext = lambda index: False
    torch.cuda.mem_get_info = lambda index: pytest.fail("it would make one")
    assert card.current() is None


def test_a_forked_child_of_a_process_with_cuda(torch):
    torch.cuda.is_initialized = lambda: False
    torch.cuda._is_in_bad_fork = lambda: True
    with pytest.raises(tidegate.Forked, match="spawn"):
        tidegate.reclaim()
