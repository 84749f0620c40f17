# SPDX-License-Identifier: Apache-2.0
"""A trainer that keeps 0.5 GiB a step: does watch say where, and who keeps it, by step 6?

    leak_kept.py [--carried DIR]

The same steps run twice in processes of their own, TIDEGATE=observe: once keeping, once not, where
nothing may be said. Rows go to leak_kept-DATE.json.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from card_results import no_row, parser, row, write_results

KEPT_BYTES = 512 << 20
STEPS = 8
SAID = re.compile(r"step (\d+): \+([\d.]+) ([MG]iB)/step.*")


class Actor:
    """Trains, and keeps what it should not."""

    def __init__(self):
        from vl_trainer import Trainer
        self.trainer = Trainer("quick")
        self.trainer.to("cuda")
        self.metrics = {"outputs": []}

    def entropy_of(self, number):
        import torch
        return torch.full((KEPT_BYTES // 4,), float(number), device="cuda")  # kept: made here

    def update(self, number, keeps):
        self.trainer.step(number)
        entropy = self.entropy_of(number)
        if keeps:
            self.metrics["outputs"].append(entropy)


def train(keeps):
    """One run, in the process of its own; prints how long step marks take without growth."""
    import torch

    import tidegate
    actor = Actor()
    marks = []
    for number in range(STEPS):
        actor.update(number, keeps)
        torch.cuda.synchronize()
        start = time.perf_counter()
        tidegate.step()
        marks.append((time.perf_counter() - start) * 1e6)
    print("MARKS " + json.dumps(marks), flush=True)


def run(keeps, out):
    environment = {**os.environ, "TIDEGATE": "observe", "TIDEGATE_OUT": str(out), "RANK": "0",
                   "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    done = subprocess.run([sys.executable, __file__, "--train", str(int(keeps))], text=True,
                          env=environment, capture_output=True, check=False, timeout=180)
    lines = [json.loads(line) for path in sorted(out.glob("*.jsonl"))
             for line in path.read_text().splitlines()] if out.exists() else []
    marks = re.search(r"^MARKS (.*)$", done.stdout, re.M)
    return {"code": done.returncode, "said": [line for line in done.stderr.splitlines()
                                              if SAID.search(line) or "tidegate" in line][:40],
            "errors": done.stderr[-3000:] if done.returncode else "", "lines": lines,
            "marks_us": json.loads(marks.group(1)) if marks else []}


def made_at():
    """The line that makes what is kept: found by its comment, so that edits do not matter."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith("# kept: made here"))


def judge(kept, clean):
    """What a user must have read by step 6."""
    at = f"leak_kept.py:{made_at()}"
    growth = [(int(m.group(1)), m.group(0)) for m in map(SAID.search, kept["said"]) if m]
    with_line = [step for step, text in growth if at in text]
    with_holder = [step for step, text in growth if "'outputs'" in text and "list" in text]
    rows = [row("kept: runs to its end", "exit status", kept["code"], ("==", 0), kept["errors"])]
    for name, steps in (("names the line", with_line), ("names the holder", with_holder)):
        if steps:
            rows.append(row(f"kept: {name} by step", at, min(steps), ("<=", 6), kept["said"]))
        else:
            rows.append(no_row(f"kept: {name}", f"never said: {kept['said'][-3:]}"))
            rows[-1]["pass"] = False
    rows.append(row("clean: growth said", "times", len([s for s in clean["said"]
                                                        if SAID.search(s)]), ("==", 0),
                    clean["said"]))
    if clean["marks_us"]:
        rows.append(row("clean: a step mark between training steps, us", "",
                        clean["marks_us"][2:]))
    return rows


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--train", type=int, help="for itself: one run")
    options = arguments.parse_args()
    if options.train is not None:
        train(bool(options.train))
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-leak-") as folder:
        kept = run(True, Path(folder) / "kept")
        clean = run(False, Path(folder) / "clean")
    rows = judge(kept, clean)
    write_results(options, "leak_kept", rows, {"kept": kept, "clean": clean})
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
