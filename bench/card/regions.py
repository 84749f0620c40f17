# SPDX-License-Identifier: Apache-2.0
"""torch's own allocations in tags: do they sleep and wake, and is all of them given back?

    regions.py [--carried DIR]

A model and its optimizer are made in a region with a host copy, a cache in one without. They sleep,
another tensor takes the memory, they wake, and the model trains on: its losses must be those of the
same steps without a sleep. In a process of its own, since how it exits counts too. Rows go to
regions-DATE.json.
"""
import json
import os
import subprocess
import sys

from card_results import GIB, MIB, no_row, parser, row, write_results

STEPS = 6
CACHE_BYTES = 8 * GIB


def made(torch):
    """1 GiB of weights, as much again twice by the optimizer."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(16)))
    model = model.to("cuda")
    return model, torch.optim.Adam(model.parameters(), lr=1e-4)


def trained(torch, model, optimizer, first, last):
    losses = []
    for step in range(first, last):
        torch.manual_seed(step)
        loss = model(torch.randn(64, 4096, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(repr(loss.item()))
    return losses


def alone(torch):
    """The losses of all steps, and nothing left."""
    model, optimizer = made(torch)
    losses = trained(torch, model, optimizer, 0, STEPS)
    del model, optimizer
    torch.cuda.empty_cache()
    return losses


def used_bytes(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def in_regions(torch, tidegate):
    """The same with a sleep in the middle; {what: value} of all that was seen."""
    from tidegate import pools
    expandable = torch._C._cuda_memorySnapshot(None)["allocator_settings"]["expandable_segments"]
    begin = used_bytes(torch)
    with pools.region("trainer", backup="host", keep_host=True) as tag:
        model, optimizer = made(torch)
        losses = trained(torch, model, optimizer, 0, STEPS // 2)
    with pools.region("kv_cache"):
        cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device="cuda")
    awake, address = used_bytes(torch), cache.data_ptr()
    seen = {"trimmed_bytes": pools.trim()}
    optimizer.zero_grad(set_to_none=True)
    receipts = [tidegate.sleep(timeout=30)]
    torch.cuda.empty_cache()
    seen["kept_asleep_bytes"] = used_bytes(torch) - begin
    free = torch.cuda.mem_get_info()[0]
    other = torch.full(((free - GIB) // MIB, MIB), 7, dtype=torch.uint8, device="cuda")
    del other
    torch.cuda.empty_cache()
    receipts.append(tidegate.wake(timeout=30))
    losses += trained(torch, model, optimizer, STEPS // 2, STEPS)
    after = torch._C._cuda_memorySnapshot(None)["allocator_settings"]["expandable_segments"]
    seen.update(losses=losses, awake_bytes=awake - begin, same_address=cache.data_ptr() == address,
                same_setting=expandable == after, receipts=[r.to_dict() for r in receipts])
    del model, optimizer, cache
    pools.trim()
    torch.cuda.empty_cache()
    pools.trim()
    seen["left_bytes"] = tag.info().size_bytes
    return seen


def child():
    import tidegate
    import torch
    torch.use_deterministic_algorithms(True)
    if sys.argv[2] == "True":
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    losses = alone(torch)
    print("SEEN " + json.dumps({"alone": losses, **in_regions(torch, tidegate)}), flush=True)


def run(expandable):
    """Rows of one run, with the allocator's expandable segments or without."""
    name = "expandable" if expandable else "native"
    done = subprocess.run([sys.executable, __file__, "--child", str(expandable)], text=True,
                          capture_output=True, check=False, timeout=120,
                          env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"})
    said = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    rows = [row(f"{name}: ends by itself", "exit status", done.returncode, ("==", 0),
                done.stderr[-3000:])]
    if not said:
        failed = no_row(f"{name}: what was seen", done.stderr[-400:])
        failed["pass"] = False
        return [*rows, failed]
    seen = json.loads(said[-1][5:])
    differ = sum(a != b for a, b in zip(seen["losses"], seen["alone"]))
    return rows + [
        row(f"{name}: losses that differ from those without a sleep", f"of {STEPS}, repr", differ,
            ("==", 0), seen),
        row(f"{name}: same address, same setting of the allocator", "",
            int(seen["same_address"] and seen["same_setting"]), ("==", 1)),
        row(f"{name}: awake in regions, GiB", "", seen["awake_bytes"] / GIB, (">=", 11)),
        row(f"{name}: stays while everything sleeps, MiB", "", seen["kept_asleep_bytes"] / MIB,
            ("<=", 512)),
        row(f"{name}: left in the tag when all is freed, MiB", "", seen["left_bytes"] / MIB,
            ("==", 0))]


def main():
    if sys.argv[1:2] == ["--child"]:
        child()
        return
    options = parser(__doc__).parse_args()
    rows = run(False) + run(True)
    write_results(options, "regions", rows)
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
