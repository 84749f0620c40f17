# SPDX-License-Identifier: Apache-2.0
"""Trainer and rollout take turns on a card that cannot hold both; ways to give back, compared.

    turns.py [--rollout own|vllm] [--ways plain,helper,tidegate] [--steps 20] [--carried DIR]

Each way does the same work in processes of its own, after a run of the trainer alone: no way may
run out of memory or change a loss. Rows go to turns_ROLLOUT-DATE.json, the picture beside it.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from card_results import GIB, no_row, parser, row, write_results
from line_plot import Panel, picture
from memory_samples import Samples

HERE = Path(__file__).resolve().parent


def run_way(options, way, temp):
    """Runs one way; returns what turn_taking.py wrote, with the samples of the card's memory."""
    out, log = temp / f"{way}.json", temp / f"{way}.log"
    command = [sys.executable, str(HERE / "turn_taking.py"), "--way", way, "--out", str(out),
               "--rollout", options.rollout, "--steps", str(options.steps), "--log", str(log)]
    environment = {**os.environ, "TIDEGATE_DIR": str(temp / f"node-{way}")}
    if options.quick:
        command.append("--quick")
    with Samples(temp / f"{way}.samples") as samples:
        ended = subprocess.run(command, env=environment, timeout=options.limit, check=False)
    if not out.exists():
        said = log.read_text(errors="replace")[-2000:] if log.exists() else ""
        print(f"{way} ended with {ended.returncode}; the rollout said:\n{said}", flush=True)
        return {"way": way, "error": f"ended with {ended.returncode}", "rows": [],
                "rollout_facts": None}
    made = json.loads(out.read_text())
    made["samples"] = samples.rows
    return made


def losses(run):
    return [row["losses"] for row in run["rows"]]


def median(run, name):
    """Of the steps after the first two, in which caches fill."""
    values = [row[name] for row in run["rows"][2:] or run["rows"] if name in row]
    return statistics.median(values) if values else None


def given_back_ms(run):
    """Of each step: both times that memory is given back."""
    return [row["give_weights_ms"] + row["give_kv_cache_ms"] for row in run["rows"]
            if "give_kv_cache_ms" in row]


def kept(run, name):
    return [row["while_rollout_runs"][name] for row in run["rows"] if "while_rollout_runs" in row]


def rows_of_way(run, alone, options):
    """What must hold for one way, and its figures."""
    way = run["way"]
    if run["error"] or len(run["rows"]) < options.steps:
        return [row(f"{way}: steps without an error", run["error"] or "", len(run["rows"]),
                    ("==", options.steps))]
    facts = run["rollout_facts"]
    peak = max(r["peak_bytes"] for r in run["rows"])
    wrong = [w for r in run["rows"] for w in r.get("wrong", [])]
    late = given_back_ms(run)[2:] or given_back_ms(run)
    held = kept(run, "process_bytes")
    made = [
        row(f"{way}: steps without an error", "", len(run["rows"]), ("==", options.steps)),
        row(f"{way}: needed together, by what the card has", "peak of the trainer and the rollout",
            (peak + facts["needs_bytes"]) / facts["total_bytes"], (">=", 1.0),
            {"trainer_peak_bytes": peak, "rollout_bytes": facts["needs_bytes"]}),
        row(f"{way}: losses that differ from the trainer alone", "repr of each",
            sum(a != b for a, b in zip(losses(run), losses(alone))), ("==", 0)),
        row(f"{way}: contents that were not as left", "", len(wrong), ("==", 0), wrong[:5]),
        row(f"{way}: giving back, ms a hand-over", "before the weights and before the cache", late),
        row(f"{way}: trainer reserves while the rollout runs, GiB", "torch",
            [b / GIB for b in kept(run, "reserved_bytes")]),
    ]
    if held and all(held):
        made.append(row(f"{way}: trainer holds while the rollout runs, GiB", "NVML, own process",
                        [b / GIB for b in held]))
    else:
        made.append(no_row(f"{way}: trainer holds while the rollout runs, GiB",
                           "NVML does not show this process"))
    return made


def compared(runs):
    """Our time by the helper's."""
    if not all(runs.get(way, {}).get("rows") for way in ("helper", "tidegate")):
        return []
    ours, theirs = (statistics.median(given_back_ms(runs[way])[2:] or [0])
                    for way in ("tidegate", "helper"))
    return [row("tidegate/helper: giving back", "median time", ours / theirs if theirs else 0)]


def draw(options, runs, path):
    """Memory of the card over time, way by way, and the time of each hand-over."""
    panels = []
    for way, run in runs.items():
        samples = run.get("samples") or []
        if not samples or not run["rows"]:
            continue
        begin = run["rows"][0]["at"]
        rollout = (run["rollout_facts"] or {}).get("pid")
        seen = [s for s in samples if s[0] >= begin - 1]
        curves = [("used on the card", [(s[0] - begin, s[1] / GIB) for s in seen], True)]
        for name, pid in (("trainer", run["pid"]), ("rollout", rollout)):
            curves.append((name, [(s[0] - begin, s[2][pid] / GIB) for s in seen if pid in s[2]],
                           True))
        panels.append(Panel(f"{way}", "GiB", "seconds", curves))
    panels.append(Panel("giving back, each hand-over", "ms", "step", [
        (way, list(enumerate(given_back_ms(run))), False) for way, run in runs.items()]))
    panels.append(Panel("the trainer reserves while the rollout runs", "GiB", "step", [
        (way, [(i, b / GIB) for i, b in enumerate(kept(run, "reserved_bytes"))], False)
        for way, run in runs.items()]))
    path.write_text(picture(f"trainer and {options.rollout} rollout take turns", panels))


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--rollout", choices=["own", "vllm"], default="own")
    arguments.add_argument("--ways", default="plain,helper,tidegate")
    arguments.add_argument("--steps", type=int, default=None, help="20; with --quick 3")
    arguments.add_argument("--limit", type=float, default=240, help="seconds for one way")
    options = arguments.parse_args()
    options.steps = options.steps or (3 if options.quick else 20)
    runs, rows = {}, []
    with tempfile.TemporaryDirectory(prefix="tidegate-turns-") as folder:
        for way in ["alone", *options.ways.split(",")]:
            try:
                runs[way] = run_way(options, way, Path(folder))
            except subprocess.TimeoutExpired:
                runs[way] = {"way": way, "error": f"longer than {options.limit:.0f} s", "rows": [],
                             "rollout_facts": None}
            if way != "alone":
                rows += rows_of_way(runs[way], runs["alone"], options)
    rows += compared(runs)
    for run in runs.values():
        run.pop("samples_path", None)
    written = write_results(options, f"turns_{options.rollout}", rows, {
        "steps": options.steps,
        "runs": {way: {k: v for k, v in run.items() if k != "samples"}
                 for way, run in runs.items()}})
    draw(options, runs, written.with_suffix(".svg"))
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
