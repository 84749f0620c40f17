# SPDX-License-Identifier: Apache-2.0
"""Compares runs of the real verl: without Tidegate, with it in observe, with it on.

    verl_beside.py OBSERVE.json ON.json WITHOUT.json [WITHOUT_AGAIN.json] [--results DIR]
                   [--name NAME]

The files are verl_once.py's, of one set of options. A second run without tells how far two runs of
verl are apart anyhow. Of an earlier result of this program, the runs without Tidegate are taken: on
another machine of the same kind, then, and each row's raw figures say of which. Needs no card.
"""
import json
import re
import statistics
import sys
from pathlib import Path

from card_results import GIB, no_row, parser, row, write_results
from line_plot import Panel, picture

FIRST = ("actor/entropy", "training/rollout_probs_diff_mean", "response_length/mean")
FIGURES = ("critic/rewards/mean", "actor/entropy", "actor/pg_loss", "actor/grad_norm")
AS_FAR = 4  # times: a largest difference of a few steps varies that much
TIMES = ("timing_s/update_weights", "timing_s/gen", "timing_s/update_actor",
         "timing_s/old_log_prob")
ANNOUNCED = re.compile(r"\[[^\]\[]+\] tidegate (observe|on): ")
OURS = "sleep and wake are Tidegate's"  # says the engine's worker
RECLAIMED = re.compile(r"\] reclaim for .*: (?:needed|got) ")
# By how Ray and vLLM mark the lines of their processes.
ENGINE = re.compile(r"EngineCore|\(Worker[_ ]")
SERVER = re.compile(r"HttpServer")


def series(run, name):
    return [step[name] for step in run["steps"] if name in step]


def distance(run, base, name):
    """How far two runs are apart in one figure, at most over the steps that both have."""
    return max((abs(ours - theirs) for ours, theirs in zip(series(run, name), series(base, name))),
               default=0.0)


def role(line):
    """Of the process that printed a line of the log."""
    if ENGINE.search(line):
        return "engine"
    return "server" if SERVER.search(line) else "trainer"


def announced(run):
    """{role: [the lines in which its processes say what is active]}."""
    found = {"trainer": [], "server": [], "engine": []}
    for line in run["lines"]:
        if ANNOUNCED.search(line):
            found[role(line)].append(line)
    return found


def events(run, kind):
    """What the processes of a run wrote down, of one kind."""
    return [line for lines in run["observed"].values() for line in lines
            if line.get("event") == kind]


def said(run):
    """The reclaims that did something: with `on` each is said."""
    return [line for line in run["lines"] if RECLAIMED.search(line)]


def first_step(run, base):
    """Before the first update nothing depends on the order in which answers arrived."""
    raw = {name: {"here": series(run, name)[:1], "without": series(base, name)[:1]}
           for name in FIRST}
    differ = sum(repr(pair["here"]) != repr(pair["without"]) for pair in raw.values())
    return row(f"{run['mode']}: first step, figures that differ from without",
               f"of {len(FIRST)}, repr", differ, ("==", 0), raw)


def later_steps(run, base, again):
    """verl's answers arrive in no fixed order, and sums follow it: two runs without Tidegate differ
    too, and that is the measure."""
    name = f"{run['mode']}: rewards and losses, by how far two runs without differ"
    if again is None:
        return no_row(name, "there is one run without")
    raw = {figure: {"here": series(run, figure), "without": series(base, figure),
                    "again": series(again, figure), "distance": distance(run, base, figure),
                    "of two without": distance(again, base, figure)} for figure in FIGURES}
    ratios = [one["distance"] / max(one["of two without"], 1e-12) for one in raw.values()]
    return row(name, "the largest of " + ", ".join(FIGURES), max(ratios), ("<=", AS_FAR), raw)


def learns(run):
    """Without a gradient that is not zero, equal losses would say nothing."""
    moved = sum(norm != 0 for norm in series(run, "actor/grad_norm"))
    return row(f"{run['mode']}: steps with a gradient", "", moved, (">=", 1))


def late(values):
    """Without the first step, in which everything is compiled."""
    return values[1:] or values


def step_seconds(run):
    """Each step's time, less that of writing verl's own memory files."""
    extra = ("timing_s/start_profile", "timing_s/stop_profile")
    return [step["timing_s/step"] - sum(step.get(name, 0) for name in extra)
            for step in run["steps"] if "timing_s/step" in step]


def times(run, base):
    pairs = [("step", step_seconds(run), step_seconds(base))]
    pairs += [(name, series(run, name), series(base, name)) for name in TIMES]
    return [row(f"{run['mode']}/without: seconds of {name}", "median of the steps after the first",
                statistics.median(late(ours)) / max(statistics.median(late(theirs)), 1e-9), None,
                {"here": ours, "without": theirs})
            for name, ours, theirs in pairs if ours and theirs]


def speaks(run):
    """What it must say: seams in every kind of process, a receipt for each hand-over."""
    made = [row(f"{run['mode']}: seams announced, {who}", "lines", len(lines), (">=", 1), lines)
            for who, lines in announced(run).items()]
    handed, steps = events(run, "handover"), max(1, len(run["steps"]))
    made.append(row(f"{run['mode']}: hand-overs written down", "by weight syncs",
                    len(handed) / steps, (">=", 2), handed))
    made.append(row(f"{run['mode']}: reclaims said", "", len(said(run)), None, said(run)))
    looks = [look for look in run["status"] if look["code"] == 0 and not look["json"]]
    made.append(row(f"{run['mode']}: status shown while it runs", "different ones", len(looks),
                    (">=", 1), looks[-1:]))
    return made


def both_are_tenants(run):
    """With `on` the engine's memory lies in tags, which the ledger shows beside the trainer."""
    if not run["mode"].startswith("on"):
        return []
    workers = [line for line in run["lines"] if OURS in line]
    looks = [look for look in run["status"] if not look["json"] and "kv_cache" in look["said"]]
    return [row(f"{run['mode']}: workers of the engine whose memory is ours", "lines", len(workers),
                (">=", 1), workers),
            row(f"{run['mode']}: looks at the ledger that show the engine's tags",
                f"of {len(run['status'])}", len(looks), (">=", 1), looks[-1:])]


def host_memory(run):
    """What the whole run takes of the machine's own memory: engine, Ray and all."""
    if "host_bytes" not in run:
        return [no_row(f"{run['mode']}: host memory", "it was not watched")]
    return [row(f"{run['mode']}: host memory, GiB, most", "", run["host_bytes"] / GIB)]


def memory(run):
    used = [mib for _, mib in run["used_mib"]]
    if not used:
        return [no_row(f"{run['mode']}: used by NVML", "no samples")]
    return [row(f"{run['mode']}: used by NVML, GiB, most", "", max(used) / 1024),
            row(f"{run['mode']}: used by NVML, GiB, median", "", statistics.median(used) / 1024)]


def leaks(run):
    found = run["leak"]
    if found is None:
        return [no_row(f"{run['mode']}: tidegate leak on verl's files", "no files were written")]
    return [row(f"{run['mode']}: tidegate leak on verl's files",
                "exit status, 0 or 1: it read them", found["code"], ("<=", 1), found)]


def draw(runs, path):
    panels = [Panel(f"used on the card, {run['mode']}", "GiB", "seconds",
                    [("NVML", [(t, mib / 1024) for t, mib in run["used_mib"]], True)])
              for run in runs]
    panels.append(Panel("a step", "s", "step", [
        (run["mode"], list(enumerate(step_seconds(run), 1)), False) for run in runs]))
    panels.append(Panel("handing over the weights, waking the engine", "s", "step", [
        (run["mode"], list(enumerate(series(run, "timing_s/update_weights"), 1)), False)
        for run in runs]))
    path.write_text(picture("verl 0.9.1, GRPO, FSDP2 with offload, hybrid vLLM 0.24.0", panels))


def runs_of(path):
    """The run in a file of verl_once.py; those without Tidegate in an earlier result."""
    found = json.loads(path.read_text())
    if "runs" not in found:
        return [found]
    return [{**run, "mode": "without", "used_mib": []} for mode, run in found["runs"].items()
            if mode.startswith("without")]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("files", nargs="+", type=Path)
    arguments.add_argument("--name", default="verl", help="of the result's file")
    options = arguments.parse_args()
    runs = [run for path in options.files for run in runs_of(path)]
    without = sorted((run for run in runs if run["mode"] == "without"),
                     key=lambda run: run["leak"] is not None)  # writing memory files takes time
    base, again = (without + [None, None])[:2]
    if base is None:
        sys.exit("one of the runs must be without Tidegate")
    if again is not None:
        again["mode"] = "without, again"
    rows = []
    for run in runs:
        rows.append(row(f"{run['mode']}: steps", run["tail"][-400:], len(run["steps"]),
                        None if run in (base, again) else (">=", 4)))
        rows += memory(run) + host_memory(run) + leaks(run)
        if run is not base:
            rows += [first_step(run, base), learns(run)] + times(run, base)
        if run not in (base, again):
            rows += [later_steps(run, base, again)] + speaks(run) + both_are_tenants(run)
    written = write_results(options, options.name, rows, {
        "card": base["card"], "machine": base["machine"],  # this may be another machine
        "runs": {run["mode"]: {k: v for k, v in run.items() if k != "used_mib"} for run in runs}})
    draw(runs, written.with_suffix(".svg"))
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
