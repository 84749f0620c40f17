# SPDX-License-Identifier: Apache-2.0
"""SGLang's release and resume with torch_memory_saver and with ours, in one run, side by side.

    bench/card/run sglang_beside --carried DIR [--quick]

Both ways one after the other, the same engine and prompts: release kv_cache, release weights,
resume weights, resume kv_cache; the tokens must be those of the beginning. Then a third process
leaves less memory than the cache needs: the resume must wait, nothing must have woken, and once
that process lets go it must be answered, with the same tokens; with ours 20 times, with
torch_memory_saver once and last, to show what comes of it. The engine is the packed SGLang of DIR.
"""
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from card_results import GIB, parser, row, write_results
from rollout_link import Rollout, until_it_ends

LACKS = 20
PLACE = Path("/tmp/sg")  # where the engine unpacks: its caches hold this path
ARCHIVE = "sglang-0.5.12-sm90.tar.xz"
WAYS = {"own": {"TIDEGATE": "off"},
        "ours": {"TIDEGATE": "on", "TIDEGATE_WAIT_SECONDS": "1", "TIDEGATE_NAME": "sglang"}}
STEPS = (("release", "kv_cache"), ("release", "weights"), ("resume", "weights"),
         ("resume", "kv_cache"))


def packed_environment(carried):
    """Unpacks the engine once; returns what its own env.sh sets, with Tidegate before it."""
    if not (PLACE / "run").exists():
        PLACE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", PLACE, "-xJf", Path(carried) / ARCHIVE], check=True)
    told = subprocess.run(["bash", "-c", f". {PLACE}/run/env.sh && env -0"], check=True,
                          capture_output=True, text=True).stdout
    found = dict(line.split("=", 1) for line in told.split("\0") if "=" in line)
    paths = [os.environ.get("PYTHONPATH", ""), found["PYTHONPATH"]]
    found["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return found


# ---- one way -------------------------------------------------------------------------------------

def rounds(engine, tokens, count):
    """[{step: ms, "freed weights": bytes, …, "tokens": whether they are the same}] of each."""
    found = []
    for _ in range(count):
        one = {}
        for what, tag in STEPS:
            before = engine.ask("free")[0]
            one[f"{what} {tag}"] = engine.ask(what, tag)[1]
            one[f"{what} {tag} bytes"] = engine.ask("free")[0] - before
        found.append({**one, "tokens": engine.ask("generate")[0] == tokens})
    return found


def lack(engine, stranger, tokens, needs_bytes):
    """One resume of the cache that lacks memory, and what came of it."""
    engine.ask("release", "kv_cache")
    stranger.ask("take_all_but", needs_bytes // 2)
    before = engine.ask("free")[0]
    engine.ask("begin_resume", "kv_cache")
    is_waiting = engine.ask("is_resuming", 2.5)[0]
    woken_bytes = before - engine.ask("free")[0]
    stranger.ask("leave")
    engine.ask("end_resume")
    return {"waited": is_waiting, "woken_bytes": woken_bytes,
            "tokens": engine.ask("generate")[0] == tokens}


def lacks(engine, stranger, tokens, needs_bytes, count):
    """Each round; the last one may be where the engine ended."""
    return until_it_ends(lambda: lack(engine, stranger, tokens, needs_bytes), count,
                         {"waited": None, "woken_bytes": None, "tokens": False})


def run_way(way, options, stranger, packed):
    """Starts the engine, runs everything, ends it."""
    small = ["--cache-tokens", "32768"] if options.quick else []
    engine = Rollout("sglang_rollout.py", small, {**packed, **WAYS[way]})
    try:
        began = time.monotonic()
        facts, _ = engine.ask("start", limit_s=300)
        print(f"{way}: SGLang {facts['version']} started in {time.monotonic() - began:.0f} s",
              flush=True)
        found = {"facts": facts, "rounds": rounds(engine, facts["tokens"], options.rounds)}
        needs_bytes = found["rounds"][0]["release kv_cache bytes"]
        print(f"{way}: the cache has {needs_bytes / GIB:.1f} GiB", flush=True)
        count = 1 if way == "own" else 2 if options.quick else LACKS
        try:
            found["lacks"] = lacks(engine, stranger, facts["tokens"], needs_bytes, count)
        finally:
            stranger.ask("leave")
        return found
    finally:
        engine.close()


# ---- judging -------------------------------------------------------------------------------------

def rows_of(own, ours):
    """What the two ways make side by side."""
    first = {name: found["rounds"][0]["release weights"]
             for name, found in (("own_ms", own), ("ours_ms", ours))}
    made = [row("release weights: first, own / ours", "times faster",
                first["own_ms"] / first["ours_ms"], (">=", 4), first)]
    for what, tag in STEPS:
        step = f"{what} {tag}"
        raw = {"own_ms": [one[step] for one in own["rounds"]],
               "ours_ms": [one[step] for one in ours["rounds"]]}
        ratio = (statistics.median(raw["ours_ms"][1:]) / statistics.median(raw["own_ms"][1:]))
        made.append(row(f"{step}, ours / own", "time, rounds after the first", ratio,
                        ("<=", 1.0), raw))
    for name, found in (("own", own), ("ours", ours)):
        count = len(found["rounds"])
        made.append(row(f"{name}: rounds whose tokens are the same", f"of {count}",
                        sum(one["tokens"] for one in found["rounds"]), ("==", count)))
    return made + rows_of_lacks(own["lacks"], ours["lacks"])


def rows_of_lacks(own, ours):
    """A good one waited, woke nothing, and came back with the same tokens."""
    good = [one for one in ours
            if one["waited"] and one["woken_bytes"] <= 0 and one["tokens"]]
    return [row("ours: resumes that lacked memory, left it asleep and were answered later",
                f"of {len(ours)}", len(good), ("==", len(ours)), ours),
            row("own: tokens are the same after a resume that lacked memory", f"of {len(own)}",
                sum(one["tokens"] for one in own), None, own)]


def main():
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    packed = packed_environment(options.carried)
    stranger = Rollout("stranger.py")
    try:
        stranger.ask("start")
        found = {way: run_way(way, options, stranger, packed) for way in WAYS}
    finally:
        stranger.close()
    rows = rows_of(found["own"], found["ours"])
    write_results(options, "sglang_beside", rows, {"runs": found})
    return 0 if all(one["pass"] is not False for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
