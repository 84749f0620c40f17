# SPDX-License-Identifier: Apache-2.0
"""Is every line of a receipt true, and what does a reclaim cost? On a card with nobody else on it.

    receipt_truth.py [--carried DIR] [--quick]

Each item of an account is made on its own, in bytes known beforehand or read from the driver, and
the account must grow by exactly that item. Then the costs: with nothing to give, and after 40 GiB
were freed in 2,000 segments, beside one empty_cache and beside verl's helper. Rows go to
receipts-DATE.json.
"""
import contextlib
import gc
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from card_results import GIB, MIB, ROOT, no_row, parser, row, write_results
from rollout_link import Rollout

SEGMENT = 20 * MIB  # torch takes this much for requests from 1 to 10 MiB, and exactly as it is
SMALL = 2 * MIB


def account():
    """{item: bytes} of this process's receipt, everything measured afresh."""
    import tidegate
    return {stay.item: stay.size_bytes for stay in tidegate.reclaim().stays}


def account_as_is():
    """The same while nothing is asked for, so that what is cached stays cached."""
    import tidegate
    return {stay.item: stay.size_bytes for stay in tidegate.reclaim(0).stays}


def used_bytes():
    import torch
    free, total = torch.cuda.mem_get_info()
    return total - free


def live(_stack):
    import torch
    return [torch.empty(GIB, dtype=torch.uint8, device="cuda") for _ in range(3)], 3 * GIB


def pinned(_stack):
    """64 segments, each held by one of its ten blocks."""
    import torch
    blocks = [torch.empty(SMALL, dtype=torch.uint8, device="cuda") for _ in range(640)]
    starts = [s["address"] for s in torch.cuda.memory_snapshot() if s["total_size"] == SEGMENT]
    kept = {}
    for block in blocks:
        start = next((s for s in starts if 0 <= block.data_ptr() - s < SEGMENT), None)
        if start is not None:
            kept.setdefault(start, block)
    return list(kept.values()), len(kept) * (SEGMENT - SMALL)


def live_pool(_stack):
    """1 GiB that a pool keeps although nothing in it is live."""
    import torch
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        block = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    del block
    return pool, GIB


def tags_of_ours(_stack):
    import tidegate
    return tidegate.tag("weights", backup="host").alloc(GIB), GIB


def cached(_stack):
    import torch
    block = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
    del block
    return None, 2 * GIB


def pending(_stack):
    """Freed, but a stream that is busy for a second has used it."""
    import torch
    block = torch.empty(GIB, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(2_000_000_000)
    block.record_stream(side)
    del block
    return None, GIB


def charged_bytes(pid):
    """What the driver says that a process has, as NVML tells everybody."""
    import pynvml
    pynvml.nvmlInit()
    running = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return next((one.usedGpuMemory for one in running if one.pid == pid), None)


def tenant(stack):
    """3 GiB of another process that is in the ledger, and its context, as the driver charges it."""
    other = Rollout("memory_beside.py", environment={"TIDEGATE_NAME": "beside"})
    stack.callback(other.close)
    other.ask("tenant", 3 * GIB)
    return other, charged_bytes(other.child.pid)


def foreign(stack):
    """3 GiB of a program that knows nothing of us, and its context, as the driver counts it."""
    before = used_bytes()
    other = Rollout("memory_beside.py")
    stack.callback(other.close)
    other.ask("foreign", 3 * GIB)
    return other, used_bytes() - before


# (item, what makes it, how to look, items that may grow besides)
STATES = (
    ("live", live, account, ()),
    ("pinned by a live neighbour", pinned, account, ("live",)),
    ("live pool", live_pool, account, ()),
    ("cached", cached, account_as_is, ()),
    ("pending event", pending, account_as_is, ()),
    ("beside", tenant, account, ()),
    ("unattributed", foreign, account, ()),
    # Last: a freed block's memory goes back when the library next has a reason to look.
    ("tags of this process", tags_of_ours, account, ()),
)


def await_quiet(limit_s=5.0):
    """Until the last state's processes have left the ledger, and their memory the card."""
    import tidegate
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(tenant.pid != os.getpid()
                                         for tenant in tidegate.status().tenants):
        time.sleep(0.02)


def warm_up():
    """A kernel's first launch makes the context larger: not in the middle of a state."""
    import torch
    torch.cuda._sleep(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(1)
    torch.cuda.synchronize()


def one_item(name, make, look, besides):
    """Rows: the item grew by the truth, and nothing else did."""
    import torch
    await_quiet()
    with contextlib.ExitStack() as stack:
        before = account()
        held, truth = make(stack)
        after = look()
        growth = {item: after.get(item, 0) - before.get(item, 0)
                  for item in {**before, **after}}
        del held
    torch.cuda.synchronize()
    gc.collect()
    torch.cuda.empty_cache()
    others = {item: grown for item, grown in growth.items()
              if item != name and item not in besides}
    raw = {"truth_bytes": truth, "growth": growth, "before": before, "after": after}
    return [row(f"item '{name}', by the truth", "growth of the account / bytes made",
                growth.get(name, 0) / truth, None, raw) | judged(growth.get(name, 0), truth),
            row(f"item '{name}': what else grew, MiB", "the largest",
                max((abs(b) for b in others.values()), default=0) / MIB, ("<=", 64.0))]


def judged(measured, truth):
    """Right to one part in a hundred."""
    return {"operator": "within 1 % of", "target": 1.0, "pass": abs(measured / truth - 1) <= 0.01}


def alone_on_card():
    """Two tenants, nobody else: what nobody claims, by what is used."""
    import torch
    with contextlib.ExitStack() as stack:
        other = Rollout("memory_beside.py", environment={"TIDEGATE_NAME": "beside"})
        stack.callback(other.close)
        other.ask("tenant", 60 * GIB)
        kept = torch.empty(20 * GIB, dtype=torch.uint8, device="cuda")
        seen, used = account(), used_bytes()
        del kept
    claimed = sum(seen.values())
    torch.cuda.empty_cache()
    return [row("unattributed, by what is used", "two tenants alone on the card",
                seen.get("unattributed", 0) / used, ("<=", 0.01), {"account": seen, "used": used}),
            row("sum of the account, by what is used", "", claimed / used, (">=", 0.999))]


def context():
    """What one process without anything costs, seen from outside and from inside. Beyond what the
    driver charges to a process it takes some memory for it that it charges to nobody."""
    before = used_bytes()
    other = Rollout("memory_beside.py")
    other.ask("start")
    seen, _ = other.ask("account")
    truth, taken = charged_bytes(other.child.pid), used_bytes() - before
    other.close()
    inside = seen.get("context and libraries")
    if inside is None or truth is None:
        return [no_row("item 'context and libraries'", "NVML does not show that process")]
    torch_has = sum(seen.get(item, 0) for item in ("live", "pinned by a live neighbour", "cached"))
    raw = {"charged_bytes": truth, "taken_bytes": taken, "account": seen}
    return [row("item 'context and libraries', by the truth", "seen from the other process",
                inside / (truth - torch_has), None, raw) | judged(inside, truth - torch_has),
            row("taken for a process and charged to nobody, MiB", "", (taken - truth) / MIB)]


def microseconds(action, rounds):
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        action()
        times.append((time.perf_counter() - start) * 1e6)
    return times


def library_path():
    """Of the libtidegate.so that this process has opened."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(Path(line.split()[-1]) for line in lines if "libtidegate" in line)


def idle_in_c(temp):
    """Built here against the installed library, under the name that the loader asks for."""
    library = Path(shutil.copy(library_path(), temp / "libtidegate.so.0"))
    program = temp / "reclaim_idle"
    subprocess.run(["gcc", "-O2", "-D_GNU_SOURCE", "-I", ROOT / "include", "-o", program,
                    ROOT / "bench" / "reclaim_idle.c", library, f"-Wl,-rpath,{temp}"],
                   check=True)
    said = subprocess.run([program, "cuda:0", "500"], capture_output=True, text=True, check=True,
                          env={**os.environ, "TIDEGATE_DIR": str(temp / "node")}).stdout
    figures = json.loads(said)
    return [row("reclaim with nothing to give, C, us", "median of 500",
                figures["median_ns"] / 1e3, ("<=", 50.0), figures)]


def idle():
    """Everything that is asked for when there is nothing to give."""
    import torch

    import tidegate
    from ways_to_give_back import helper
    for _ in range(3):
        tidegate.reclaim()
    ours = microseconds(tidegate.reclaim, 300)
    return [
        row("reclaim with nothing to give, Python, us", "median of 300",
            statistics.median(ours), ("<=", 300.0), ours),
        row("the same, mean, us", "with the trials of a collection", statistics.mean(ours)),
        row("the same with target 0, us", "median of 300",
            statistics.median(microseconds(lambda: tidegate.reclaim(0), 300))),
        row("empty_cache with nothing to give, us", "median of 300",
            statistics.median(microseconds(torch.cuda.empty_cache, 300))),
        row("verl's helper with nothing to give, us", "median of 20",
            statistics.median(microseconds(lambda: helper(None), 20))),
    ]


def marks():
    """Step marks of a process whose memory does not grow."""
    import tidegate
    times = microseconds(tidegate.step, 500)
    return [row("step mark without growth, us", "median of 500", statistics.median(times),
                ("<=", 20.0), {"p99": sorted(times)[494], "first": times[:20]})]


def free_in_segments(gib, count):
    """gib GiB into torch's cache, in count segments."""
    import torch
    size = gib * GIB // count // SMALL * SMALL
    blocks = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(count)]
    torch.cuda.synchronize()
    del blocks
    return size * count


def milliseconds_after_freeing(action, gib, count):
    import torch
    freed = free_in_segments(gib, count)
    before = used_bytes()
    start = time.perf_counter()
    action(freed)
    took = (time.perf_counter() - start) * 1e3
    back = before - used_bytes()
    torch.cuda.empty_cache()
    return took, back / freed


def much_to_give(quick):
    import torch

    import tidegate
    from ways_to_give_back import helper
    ways = {"empty_cache": lambda freed: torch.cuda.empty_cache(),
            "reclaim": tidegate.reclaim,
            "reclaim, all": lambda freed: tidegate.reclaim(),
            "verl's helper": lambda freed: helper(None)}
    took = {name: [] for name in ways}
    back = {name: [] for name in ways}
    milliseconds_after_freeing(ways["empty_cache"], 40, 2000)  # the first time is slower
    for _ in range(1 if quick else 5):
        for name, action in ways.items():
            ms, share = milliseconds_after_freeing(action, 40, 2000)
            took[name].append(ms)
            back[name].append(share)
    pairs = [a / b for a, b in zip(took["reclaim"], took["empty_cache"])]
    made = [row("reclaim/empty_cache: 40 GiB in 2,000 segments", "target 40 GiB, round by round",
                pairs, ("<=", 1.10), {"ms": took, "given_back": back})]
    return made + [row(f"{name}: 40 GiB in 2,000 segments, ms", "", values)
                   for name, values in took.items()]


def tried(part, *values):
    """What cannot be measured becomes a row that failed, and the rest goes on."""
    try:
        return part(*values)
    except Exception as error:
        import traceback
        traceback.print_exc()
        failed = no_row(getattr(part, "__name__", str(part)), f"{type(error).__name__}: {error}")
        failed["pass"] = False
        return [failed]


def main():
    options = parser(__doc__).parse_args()
    with tempfile.TemporaryDirectory(prefix="tidegate-receipts-") as folder:
        os.environ["TIDEGATE_DIR"] = os.path.join(folder, "node")
        from memory_beside import start_card
        start_card()
        warm_up()
        rows = []
        for state in STATES:
            rows += tried(one_item, *state)
        for part, values in ((context, ()), (alone_on_card, ()), (idle, ()), (marks, ()),
                             (much_to_give, (options.quick,)), (idle_in_c, (Path(folder),))):
            rows += tried(part, *values)
    write_results(options, "receipts", rows)
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
