# SPDX-License-Identifier: Apache-2.0
"""trim and refill under PyTorch itself: what comes back from a cache with live tensors in every
segment, how long it takes by the live run, and whether training goes on as if nothing had been.

    trims.py [--quick] [--results DIR]

Two processes train the same small transformer among segments that each hold one live tensor, both
under the preload with the default tag `trainer`; one of them trims and refills ten times between
two steps. Losses must be the same, and every live tensor what it was, while trimmed and afterwards.
Rows go to trims-DATE.json.
"""
import json
import os
import sys
import time

from card_results import GIB, MIB, no_row, parser, row, write_results
from stock import objects, seen_by_child, trained

ROUNDS = 10
BUDGET_S, RUN_S = 0.020, 0.0002  # a trim, and each live run more
LIMIT_S = 240


def mixed(torch, count):
    """Segments of 20 MiB, each with a live tensor in its middle. Nothing is freed before all are
    there: the next would go where it was."""
    kept, fillers = [], []
    for number in range(count):
        fillers.append(torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"))
        kept.append(torch.full((3 * MIB,), number % 251, dtype=torch.uint8, device="cuda"))
        fillers.append(torch.empty(11 * MIB, dtype=torch.uint8, device="cuda"))
    return kept


def are_whole(kept):
    return all(bool((tensor == number % 251).all()) for number, tensor in enumerate(kept))


def one_round(torch, tidegate, kept):
    free = torch.cuda.mem_get_info()[0]
    began = time.perf_counter()
    trimmed = tidegate.trim()
    between = time.perf_counter()
    gained = torch.cuda.mem_get_info()[0] - free
    whole = are_whole(kept)
    start = time.perf_counter()
    tidegate.refill()
    return {"gained_bytes": trimmed.gained_bytes, "driver_bytes": gained,
            "copied_bytes": trimmed.copied_bytes, "trim_s": between - began,
            "refill_s": time.perf_counter() - start,
            "whole": whole and are_whole(kept)}


def child(trims, quick):
    import torch
    import tidegate
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    torch.zeros(1, device="cuda")
    count = 50 if quick else 1000
    kept, rounds = mixed(torch, count), []

    def at_boundary(step, model):
        if trims and step == 6:
            rounds.extend(one_round(torch, tidegate, kept) for _ in range(ROUNDS))

    losses, _ = trained(torch, "native", (2, 512) if quick else (10, 2048), 12, at_boundary)
    print("SEEN " + json.dumps({"losses": losses, "rounds": rounds, "runs": count,
                                "whole": are_whole(kept)}), flush=True)


def run(trims, options, pair):
    """As seen_by_child, of a training."""
    env = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LD_PRELOAD": str(pair[1]),
           "TIDEGATE": "on", "TIDEGATE_DEFAULT_TAG": "trainer",
           "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
    words = [str(int(trims)), str(int(options.quick))]
    return seen_by_child(__file__, words, env, LIMIT_S)


def rows_of(ours, plain):
    rounds, runs = ours["rounds"], ours["runs"]
    first, tenth = rounds[0], rounds[-1]
    differ = sum(a != b for a, b in zip(ours["losses"], plain["losses"]))
    budget = BUDGET_S + RUN_S * runs
    return [
        row("losses that differ from those without a trim", f"of {len(plain['losses'])}, repr",
            differ, ("==", 0), {"ours": ours["losses"], "plain": plain["losses"]}),
        row("rounds in which a live tensor was not whole", f"of {ROUNDS}",
            sum(not one["whole"] for one in rounds), ("==", 0)),
        row("a trim gives, GiB", f"{runs} segments of 20 MiB, a live tensor in each",
            first["gained_bytes"] / GIB, None, rounds),
        row("of that the driver has", "", first["driver_bytes"] / max(1, first["gained_bytes"]),
            (">=", 0.99)),
        row("the first trim, of its budget", f"{budget * 1e3:.0f} ms for {runs} live runs",
            first["trim_s"] / budget, ("<=", 1)),
        row("the tenth gives what the first gave", "", int(tenth["gained_bytes"] ==
                                                           first["gained_bytes"]), ("==", 1)),
        row("the tenth, beside the first", "", tenth["trim_s"] / first["trim_s"], ("<=", 2)),
        row("a refill, ms", "", [one["refill_s"] * 1e3 for one in rounds])]


def main():
    options = parser(__doc__).parse_args()
    pair, why = objects()
    seen = []
    for trims in (False, True) if pair else ():
        found, why = run(trims, options, pair)
        if found is None:
            break
        seen.append(found)
    if len(seen) == 2:
        rows = rows_of(seen[1], seen[0])
    else:
        rows = [no_row("trim and refill under torch", why)]
        rows[0]["pass"] = False
    write_results(options, "trims", rows)
    return int(any(one["pass"] is False for one in rows))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2] == "1", sys.argv[3] == "1")
    else:
        sys.exit(main())
