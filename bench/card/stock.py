# SPDX-License-Identifier: Apache-2.0
"""A stock trainer under the preload: does it sleep whole, wake where it was, and train on as if
nothing had been, and what does that cost?

    stock.py [--quick] [--results DIR]

A small transformer with Adam trains in float32, in a process of its own for each way: torch's own
segments, expandable ones, and switched at run time as verl does. Without the preload first; then
with it, TIDEGATE=on and the default tag `trainer`, where the script's one line at the step boundary
puts everything to sleep, has another process take the card, and wakes it, three times: as it comes,
with its host memory prepared, and so that a second passes before the wake, since the driver clears
what the other process had while we copy. Losses must be those of the run without, addresses the
same. Rates stand beside a plain pinned copy of the same process, and the driver's own process
checkpoint. Rows go to stock-DATE.json.
"""
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from card_results import GIB, MIB, ROOT, no_row, parser, row, write_results

WAYS = ("native", "expandable", "toggled")
NAPS = ("plain", "prepared", "later")
PINNED_BYTES = 2 * GIB
LIMIT_S = 60  # of a process


# ---- the script: nothing in it knows of Tidegate -------------------------------------------------

def made(torch, layers, width):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(width, 16, 4 * width, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to("cuda")
    return model, torch.optim.Adam(model.parameters(), lr=1e-5)


def switch(torch, way, step):
    """verl has expandable segments on while it trains, and off while it hands out weights."""
    if way == "toggled":
        on = step % 4 < 2
        torch.cuda.memory._set_allocator_settings(f"expandable_segments:{on}")


def trained(torch, way, shape, steps, at_boundary):
    """Losses and seconds of all steps."""
    layers, width = shape
    switch(torch, way, 0)
    model, optimizer = made(torch, layers, width)
    losses, seconds = [], []
    for step in range(steps):
        switch(torch, way, step)
        torch.manual_seed(step)
        batch = torch.randn(8, 256, width, device="cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(repr(loss.item()))
        del loss, batch
        at_boundary(step, model)
    return losses, seconds


# ---- its one line --------------------------------------------------------------------------------

class Naps:
    """Sleeps and wakes the process's own memory at some step boundaries."""

    def __init__(self, torch, at):
        self.torch, self.at, self.seen = torch, at, []

    def __call__(self, step, model):
        if step not in self.at:
            return
        import tidegate
        kind = NAPS[self.at.index(step)]
        addresses = [p.data_ptr() for p in model.parameters()]
        self.torch.cuda.synchronize()
        nap = {"awake_bytes": used_bytes(self.torch)}
        if kind != "plain":
            nap["prepare"] = timed(tidegate.prepare)
        nap["sleep"] = timed(tidegate.sleep)
        nap["asleep_bytes"] = used_bytes(self.torch)
        nap["taken"] = taken()
        if kind == "later":
            time.sleep(1)
        nap["wake"] = timed(tidegate.wake)
        nap["same"] = addresses == [p.data_ptr() for p in model.parameters()]
        self.seen.append(nap)


def timed(operation):
    """What a receipt says, and the time as the caller sees it."""
    began = time.perf_counter()
    receipt = operation()
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "copied_bytes": receipt.copied_bytes,
            "gained_bytes": receipt.gained_bytes, "phases": receipt.phases,
            "tags": {tag.item: tag.size_bytes for tag in receipt.tags}}


def used_bytes(torch):
    free, total = torch.cuda.mem_get_info()
    return total - free


def taken():
    """Another process takes all but 1 GiB of what is free, writes it, and ends; what it said."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TIDEGATE")}
    done = subprocess.run([sys.executable, __file__, "--taker"], text=True, capture_output=True,
                          check=False, timeout=LIMIT_S, env=env)
    words = done.stdout.split()
    return int(words[-1]) if done.returncode == 0 and words else done.stderr[-400:]


def take():
    sys.path.insert(0, str(ROOT / "bench" / "peers"))
    from checkpoint_peer import Driver
    driver = Driver()
    driver.start()
    free, total, addr = ctypes.c_size_t(), ctypes.c_size_t(), ctypes.c_uint64()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    size = (free.value - GIB) // MIB * MIB
    driver.call("cuMemAlloc_v2", ctypes.byref(addr), ctypes.c_size_t(size))
    driver.call("cuMemsetD8_v2", addr, ctypes.c_ubyte(0xA5), ctypes.c_size_t(size))
    driver.call("cuCtxSynchronize")
    print(size, flush=True)


def pinned_rates(torch):
    """GiB/s out and back of a plain copy, pinned, the better of three."""
    host = torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    there = torch.ones(PINNED_BYTES, dtype=torch.uint8, device="cuda")
    rates = []
    for to, source in ((host, there), (there, host)):
        times = []
        for _ in range(3):
            torch.cuda.synchronize()
            began = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        rates.append(PINNED_BYTES / GIB / min(times))
    del host, there
    torch.cuda.empty_cache()
    return rates


def child(way, sleeps, quick):
    """One way, in this process."""
    import torch
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    shape, steps = ((2, 512), 12) if quick else ((10, 2048), 24)
    at = [(number + 1) * steps // (len(NAPS) + 1) for number in range(len(NAPS))]
    naps = Naps(torch, at) if sleeps else None
    rates = pinned_rates(torch) if sleeps else None
    losses, seconds = trained(torch, way, shape, steps, naps or (lambda step, model: None))
    print("SEEN " + json.dumps({
        "losses": losses, "seconds": seconds, "pinned": rates, "naps": naps.seen if naps else []}),
        flush=True)


# ---- beside each other ---------------------------------------------------------------------------

def objects():
    """(libtidegate.so, libtidegate-preload.so), or the reason why there are none. In a wheel the
    library has its version in its name alone."""
    folders = [ROOT / "build" / "src"]
    try:
        from tidegate import library
        package = Path(library.__file__).resolve().parent
        folders = [package, package.parent / ".tidegate.mesonpy.libs", *folders]
    except ImportError:
        pass
    said = os.environ.get("TIDEGATE_LIBRARY")
    folders = [*([Path(said).resolve().parent] if said else []), *folders]
    for folder in folders:
        preload = folder / "libtidegate-preload.so"
        found = sorted(folder.glob("libtidegate.so*"))
        if found and preload.exists():
            return (found[0], preload), ""
    return None, "no folder has libtidegate.so and libtidegate-preload.so: " + \
        ", ".join(str(folder) for folder in folders)


def seen_by_child(script, words, env, limit_s):
    """What a child has seen, and what it said at last; or None, and why."""
    try:
        done = subprocess.run([sys.executable, script, "--child", *words], text=True,
                              capture_output=True, check=False, env=env, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {limit_s} s"
    said = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    if done.returncode != 0 or not said:
        return None, f"exit {done.returncode}: {done.stderr[-600:]}"
    return json.loads(said[-1][5:]), done.stderr[-600:]


def run(way, options, pair=None):
    """As seen_by_child, of a training."""
    env = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
           "PYTORCH_CUDA_ALLOC_CONF": f"expandable_segments:{way == 'expandable'}"}
    env.pop("LD_PRELOAD", None)
    env["TIDEGATE"] = "off"
    if pair:
        env.update(LD_PRELOAD=str(pair[1]), TIDEGATE="on", TIDEGATE_DEFAULT_TAG="trainer")
    words = [way, "sleeps" if pair else "", "quick" if options.quick else ""]
    return seen_by_child(__file__, words, env, LIMIT_S)


def rate(operation):
    return operation["copied_bytes"] / GIB / operation["seconds"]


def nap_rows(way, kind, nap, pinned, quick):
    rates = {"sleep": (rate(nap["sleep"]), pinned[0]), "wake": (rate(nap["wake"]), pinned[1])}
    took = nap["taken"]
    rows = [row(f"{way}, {kind}: same addresses", "", int(nap["same"]), ("==", 1), nap),
            row(f"{way}, {kind}: asleep, of what was used", "",
                nap["asleep_bytes"] / nap["awake_bytes"], None if quick else ("<=", 0.5))]
    if isinstance(took, int):
        rows.append(row(f"{way}, {kind}: another process had, GiB", "", took / GIB))
    else:
        rows.append(no_row(f"{way}, {kind}: another process had", took))
        rows[-1]["pass"] = False
    for what, (ours, plain) in rates.items():
        rows.append(row(f"{way}, {kind}: {what}, GiB/s", "beside a plain pinned copy's "
                        f"{plain:.1f}", ours, None, {"of_pinned": ours / plain}))
    return rows


def way_rows(way, options, pair):
    plain, why = run(way, options)
    if plain is None:
        return [no_row(f"{way}: without Tidegate", why)], 0
    ours, why = run(way, options, pair)
    if ours is None:
        failed = no_row(f"{way}: under the preload", why)
        failed["pass"] = False
        return [failed], 0
    differ = sum(a != b for a, b in zip(ours["losses"], plain["losses"]))
    times = [statistics.median(seen["seconds"][3:]) for seen in (ours, plain)]
    rows = [row(f"{way}: losses that differ from those without", f"of {len(plain['losses'])}, repr",
                differ, ("==", 0), {"ours": ours["losses"], "plain": plain["losses"],
                                    "stderr": why}),
            row(f"{way}: naps", "", len(ours["naps"]), ("==", len(NAPS))),
            row(f"{way}: time of a step, beside that without", "medians", times[0] / times[1],
                None if options.quick else ("<=", 1.01), {"seconds": times})]
    for kind, nap in zip(NAPS, ours["naps"]):
        rows += nap_rows(way, kind, nap, ours["pinned"], options.quick)
    return rows, max((nap["sleep"]["copied_bytes"] for nap in ours["naps"]), default=0)


def checkpoint_rows(size_bytes):
    """The driver's own, of as many bytes."""
    name = "the driver's process checkpoint"
    command = [sys.executable, str(ROOT / "bench" / "peers" / "checkpoint_peer.py"), "--size",
               str(size_bytes), "--block", str(20 * MIB), "--rounds", "1"]
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False,
                              timeout=LIMIT_S)
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as problem:
        return [no_row(name, str(problem))]
    if "rounds" not in found:
        return [no_row(name, found.get("reason", "it said nothing"))]
    out, back = found["rounds"][0]
    size = found["size_bytes"] / GIB
    return [row(f"{name}: out, GiB/s", "", size / out, None, found),
            row(f"{name}: back, GiB/s", "", size / back)]


def main():
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[3] == "sleeps", sys.argv[4] == "quick")
        return
    if sys.argv[1:2] == ["--taker"]:
        take()
        return
    options = parser(__doc__).parse_args()
    pair, why = objects()
    rows, size_bytes = [], 0
    for way in WAYS:
        if pair is None:
            rows.append(no_row(f"{way}: under the preload", why))
            continue
        made_rows, copied = way_rows(way, options, pair)
        rows += made_rows
        size_bytes = max(size_bytes, copied)
    if size_bytes > 0:
        rows += checkpoint_rows(size_bytes)
    write_results(options, "stock", rows)
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
