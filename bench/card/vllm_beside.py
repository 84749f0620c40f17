# SPDX-License-Identifier: Apache-2.0
"""vLLM's sleep mode with its own allocator and with ours, in one run, judged side by side.

    bench/card/run vllm_beside [--carried DIR] [--quick]

Both ways one after the other, the same engine and prompts: 15 GiB of weights (--quick: 0.5), level
1 and back (the last two times a second later), level 2 with the weights woken first, written anew,
then the cache; the tokens must be those of the beginning. Then a third process leaves less memory
than a wake needs: the wake must raise, nothing must have woken, and once that process lets go the
wake must succeed, with the same tokens; with ours 20 times, with vLLM's own once and last, to show
what comes of it.
"""
import statistics
import sys
import time

from card_results import GIB, parser, row, write_results
from rollout_link import Rollout, RolloutFailed, until_it_ends

SHARE = 0.5  # of the card, for the engine
LACKS = 20
LATE, LATE_S = 2, 1  # rounds in which the wake comes later: the driver has cleared what was given
WAYS = {"own": {"TIDEGATE": "off"},
        "ours": {"TIDEGATE": "on", "TIDEGATE_WAIT_SECONDS": "0.5", "TIDEGATE_NAME": "vllm"}}


# ---- one way -------------------------------------------------------------------------------------

def levels(engine, tokens, rounds):
    """[{step: ms, "phases": ours of the sleep and the wake, "tokens": whether they are the same}]
    of each round, by level."""
    first, second = [], []
    for number in range(rounds + LATE):
        one = {"sleep": engine.ask("sleep", 1)[1], "phases": [engine.ask("phases")[0]],
               "free": engine.ask("free")[0]}
        if number >= rounds:
            time.sleep(LATE_S)
        one["wake"] = engine.ask("wake", None)[1]
        one["phases"].append(engine.ask("phases")[0])
        first.append({**one, "tokens": engine.ask("generate")[0] == tokens})
    engine.ask("save_weights")
    for _ in range(rounds):
        one = {"sleep": engine.ask("sleep", 2)[1], "free": engine.ask("free")[0],
               "wake weights": engine.ask("wake", "weights")[1]}
        engine.ask("load_weights")
        one["wake kv_cache"] = engine.ask("wake", "kv_cache")[1]
        second.append({**one, "tokens": engine.ask("generate")[0] == tokens})
    return {"level 1": first, "level 2": second}


def lack(engine, stranger, tokens, needs_bytes):
    """One wake that lacks memory, and what came of it."""
    engine.ask("sleep", 1)
    stranger.ask("take_all_but", needs_bytes // 2)
    before = engine.ask("free")[0]
    said = None
    try:
        engine.ask("wake", None)
    except RolloutFailed as problem:
        said = str(problem)
    after = engine.ask("free")[0]
    stranger.ask("leave")
    engine.ask("wake", None)
    return {"said": said, "woken_bytes": before - after,
            "tokens": engine.ask("generate")[0] == tokens}


def lacks(engine, stranger, tokens, needs_bytes, count):
    """Each round; the last one may be where the engine ended."""
    return until_it_ends(lambda: lack(engine, stranger, tokens, needs_bytes), count,
                         {"woken_bytes": None, "tokens": False})


def run_way(way, options, stranger):
    """Starts the engine, runs everything, ends it."""
    large = [] if options.quick else ["--large"]
    engine = Rollout("vllm_rollout.py", large, WAYS[way])
    try:
        began = time.monotonic()
        facts, _ = engine.ask("start", SHARE, limit_s=300)
        print(f"{way}: vLLM {facts['version']} started in {time.monotonic() - began:.0f} s, "
              f"{facts['needs_bytes'] / GIB:.1f} GiB", flush=True)
        found = {"facts": facts, **levels(engine, facts["tokens"], options.rounds)}
        count = 1 if way == "own" else 2 if options.quick else LACKS
        try:
            found["lacks"] = lacks(engine, stranger, facts["tokens"], facts["needs_bytes"], count)
        finally:
            stranger.ask("leave")
        return found
    finally:
        engine.close()


# ---- judging -------------------------------------------------------------------------------------

def later(found, level, step):
    """The median of all rounds but the first, and those in which the wake waits."""
    rounds = found[level][1:-LATE] if level == "level 1" else found[level][1:]
    return statistics.median(one[step] for one in rounds)


def rows_of(own, ours):
    """What the two ways make side by side."""
    first = own["level 1"][0]["sleep"] / ours["level 1"][0]["sleep"]
    made = [row("level 1: first sleep, own / ours", "times faster", first, (">=", 4),
                {"own_ms": own["level 1"][0]["sleep"], "ours_ms": ours["level 1"][0]["sleep"]})]
    for level, step in (("level 1", "sleep"), ("level 1", "wake"), ("level 2", "sleep"),
                        ("level 2", "wake weights"), ("level 2", "wake kv_cache")):
        raw = {f"{name}_ms": [one[step] for one in found[level]]
               for name, found in (("own", own), ("ours", ours))}
        ratio = later(ours, level, step) / later(own, level, step)
        made.append(row(f"{level}: {step}, ours / own", "time, rounds after the first", ratio,
                        ("<=", 1.0), raw))
    late = {f"{name}_ms": [one["wake"] for one in found["level 1"][-LATE:]]
            for name, found in (("own", own), ("ours", ours))}
    made.append(row("level 1: late wake, ours / own", f"{LATE_S} s later",
                    statistics.median(late["ours_ms"]) / statistics.median(late["own_ms"]),
                    ("<=", 1.0), late))
    for name, found in (("own", own), ("ours", ours)):
        rounds = found["level 1"] + found["level 2"]
        made.append(row(f"{name}: rounds whose tokens are the same", f"of {len(rounds)}",
                        sum(one["tokens"] for one in rounds), ("==", len(rounds))))
    made += rows_of_lacks(own["lacks"], ours["lacks"])
    return made


def rows_of_lacks(own, ours):
    """A good one raised our sentence, woke nothing, and came back with the same tokens."""
    good = [one for one in ours if one["said"] is not None and "TidegateWouldNotFit" in one["said"]
            and one["woken_bytes"] <= 0 and one["tokens"]]
    return [row("ours: wakes that lacked memory, left all asleep and succeeded later",
                f"of {len(ours)}", len(good), ("==", len(ours)), ours),
            row("own: tokens are the same after a wake that lacked memory", f"of {len(own)}",
                sum(one["tokens"] for one in own), None, own)]


def main():
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options = options.parse_args()
    stranger = Rollout("stranger.py")
    try:
        stranger.ask("start")
        found = {way: run_way(way, options, stranger) for way in WAYS}
    finally:
        stranger.close()
    rows = rows_of(found["own"], found["ours"])
    write_results(options, "vllm_beside", rows, {"runs": found})
    return 0 if all(one["pass"] is not False for one in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
