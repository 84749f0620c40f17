# SPDX-License-Identifier: Apache-2.0
"""Rows of the snapshot reader and `tidegate leak`.

What is compared runs in turns, round by round, on the same bytes. Reader, walker and pickle.load,
which use one thread and wait for nothing, are compared by processor time (wall times are in the
results, too), and of a round's few runs the best counts: what else the machine does can only add.
The command is compared by the wall clock. A row's value is the median of the rounds' ratios.

Needs about 2.5 GB under TMPDIR and, for pickle.load of the 1 GB file, 14 times its size of free
memory; a row that cannot run is null in the results, with the reason. --quick leaves out the 1 GB
file and the 48 files.
"""
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import big_snapshot
from measure import (MIB, BenchError, Rows, free_bytes, null_row, ratio_row, spawn, wait_idle)

LEAK_BYTES = 64 * MIB
FILES, RANKS, STEPS = 48, 8, 6
PICKLE_MEMORY = 14  # pickle.load holds this times the file

PICKLE_PROGRAM = """
import gc, json, pickle, sys, time
if sys.argv[3] == "nogc":
    gc.disable()
runs, cpu = [], []
for _ in range(int(sys.argv[2])):
    with open(sys.argv[1], "rb") as file:
        start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
        held = pickle.load(file)
        runs.append(time.perf_counter_ns() - start)
        cpu.append(time.thread_time_ns() - start_cpu)
    if len(runs) < int(sys.argv[2]):
        del held
print(json.dumps({"runs": len(runs), "first_ns": runs[0], "min_ns": min(runs),
                  "median_ns": sorted(runs)[len(runs) // 2], "first_cpu_ns": cpu[0],
                  "min_cpu_ns": min(cpu)}), flush=True)
import os
os._exit(0)
"""


class SnapshotRows(Rows):
    """The reader against a walker and pickle.load, and the whole command."""

    programs = ("bench/reader", "bench/walker", "cli/tidegate")

    def __init__(self, args, temp):
        super().__init__(args, temp)
        self.reader = self.build / "bench" / "reader"
        self.walker = self.build / "bench" / "walker"
        self.tidegate = self.build / "cli" / "tidegate"

    def parts(self):
        return self.recordings, self.leak_alone, self.big_file, self.many_files

    # -- one file: pickle.load, reader, walker in turns --

    def pickle_load(self, path, runs, collector="gc"):
        command = [sys.executable, "-c", PICKLE_PROGRAM, path, runs, collector]
        output, _, peak = spawn(command)
        return {**json.loads(output), "peak_bytes": peak}

    def program(self, program, path, runs):
        output, _, peak = spawn([program, path, runs])
        return {**json.loads(output), "wait4_peak_bytes": peak}

    def compare_readers(self, label, path, rounds, runs, pickle_runs):
        """Rows reader-pickle and reader-walker for one file; pickle_runs 0: without pickle.load."""
        rounds_raw = []
        for i in range(rounds):
            turn = {}
            steps = [("reader", lambda: self.program(self.reader, path, runs)),
                     ("walker", lambda: self.program(self.walker, path, runs))]
            if pickle_runs:
                steps.append(("pickle", lambda: self.pickle_load(path, pickle_runs)))
                if not self.args.quick and pickle_runs > 1:
                    steps.append(("pickle_nogc",
                                  lambda: self.pickle_load(path, pickle_runs, "nogc")))
            for name, step in steps[i % len(steps):] + steps[:i % len(steps)]:
                turn[name] = step()
            rounds_raw.append(turn)
        raw = {"bytes": os.path.getsize(path), "rounds": rounds_raw}
        if pickle_runs:
            self.add(ratio_row(f"reader/pickle.load {label}", "times as fast as pickle.load",
                               [(t["pickle"]["min_cpu_ns"], t["reader"]["min_cpu_ns"])
                                for t in rounds_raw], ">=", 6, raw))
            self.add(ratio_row(f"reader/pickle.load {label}, first parse",
                               "a fresh process's first parse against its first load",
                               [(t["pickle"]["first_cpu_ns"], t["reader"]["first_cpu_ns"])
                                for t in rounds_raw], ">=", None, None))
        self.add(ratio_row(f"reader/walker {label}", "share of a bare opcode walker's speed",
                           [(t["walker"]["min_cpu_ns"], t["reader"]["min_cpu_ns"])
                            for t in rounds_raw], ">=", 0.35, None if pickle_runs else raw))
        return rounds_raw

    def recordings(self):
        folder = Path(self.args.recordings)
        files = sorted(folder.glob("*.pickle.xz")) + \
            sorted(folder.glob("verl_logits/step3/*rank0*.pickle.xz"))
        if not files:
            self.add(null_row("recordings", "", ">=", 6, f"none in {folder.name}"))
        for packed in files:
            path = self.temp / packed.name[:-3]
            path.write_bytes(lzma.open(packed).read())
            inner = packed.parent != folder
            label = f"{packed.parent.parent.name} {packed.parent.name}" if inner \
                else path.name[:-len(".pickle")]
            self.compare_readers(label, path, self.args.rounds, 5, 2)

    # -- the whole command on one recording --

    def leak_alone(self):
        name, what = "leak/pickle.load", "whole `leak`, 77 k events, against pickle.load alone"
        path = self.temp / "qwen_vl_leak_logits.pickle"
        if not path.exists():
            self.add(null_row(name, what, "<=", 0.5, "the recording is missing"))
            return
        pairs, raw = [], []
        for i in range(self.args.rounds):
            wait_idle(self.args.wait)
            order = ["leak", "pickle"] if i % 2 == 0 else ["pickle", "leak"]
            turn = {}
            for step in order:
                if step == "leak":
                    _, wall, peak = spawn([self.tidegate, "leak", path], keep_output=False)
                    turn["leak"] = {"wall_ns": wall, "peak_bytes": peak}
                else:
                    turn["pickle"] = self.pickle_load(path, 1)
            pairs.append((turn["leak"]["wall_ns"], turn["pickle"]["first_ns"]))
            raw.append(turn)
        self.add(ratio_row(name, what, pairs, "<=", 0.5, raw))

    # -- 1 GB --

    def big_file(self):
        names = [("reader/pickle.load 1 GB", ">=", 6), ("reader/walker 1 GB", ">=", 0.35),
                 ("peak/file reader 1 GB", "<=", 1.5), ("peak/file leak 1 GB", "<=", 1.5)]
        if self.args.quick:
            for name, operator, target in names:
                self.add(null_row(name, "", operator, target, "--quick"))
            return
        path = self.temp / "big.pickle"
        big_snapshot.write_snapshot(path, size_bytes=10**9)
        size = path.stat().st_size
        room = free_bytes() > PICKLE_MEMORY * size
        if not room:
            self.add(null_row(*names[0][:1], "", *names[0][1:],
                              f"needs {PICKLE_MEMORY} x the file of free memory"))
        if room:
            self.compare_readers("1 GB", path, 1, 3, 1)
        else:
            self.compare_readers("1 GB", path, 3, 1, 0)
        turns = [self.program(self.reader, path, 1) for _ in range(2)]
        self.add(ratio_row(names[2][0], "peak memory, the mapped file included, by file size",
                           [(t["wait4_peak_bytes"], size) for t in turns], "<=", 1.5, turns))
        pairs, raw = [], []
        for _ in range(2):
            _, wall, peak = spawn([self.tidegate, "leak", path], keep_output=False)
            pairs.append((peak, size))
            raw.append({"wall_ns": wall, "peak_bytes": peak})
        self.add(ratio_row(names[3][0], "the same of the whole `leak`", pairs, "<=", 1.5, raw))
        path.unlink()

    # -- 48 files on one core and on two --

    def many_files(self):
        name, what = "jobs 2/jobs 1", f"{FILES} files of 250 k events, time on two cores by one"
        if self.args.quick or len(os.sched_getaffinity(0)) < 2:
            reason = "--quick" if self.args.quick else "one core"
            self.add(null_row(name, what, "<=", 0.6, reason))
            return
        folder = self.temp / "profile"
        events = make_profile(folder)
        check_profile(spawn([self.tidegate, "leak", "--json", folder])[0])
        rounds = [self.many_round(folder, i) for i in range(5)]
        row = ratio_row(name, what, [(t["jobs_2"], t["jobs_1"]) for t in rounds], "<=", 0.6,
                        {"files": FILES, "events": events, "contents": STEPS, "rounds": rounds})
        control = statistics.median(t["control"] / t["jobs_1"] for t in rounds)
        row["control"] = round(control, 4)
        if control > 0.6 and not row["pass"]:
            row["pass"] = None
            row["reason"] = "no second core to be had: two processes with half each need " \
                f"{control:.2f} of the time"
        self.add(row)
        shutil.rmtree(folder)

    def many_round(self, folder, i):
        """Wall ns with one job, with two, and of two processes at once with half of the files each:
        what the machine has to give to anybody."""
        halves = [[folder / f"step{s}" for s in steps] for steps in ((1, 2, 3), (4, 5, 6))]
        turn = {}
        wait_idle(self.args.wait)
        for kind in (("jobs_1", "jobs_2", "control") if i % 2 == 0 else
                     ("control", "jobs_2", "jobs_1")):
            if kind == "control":
                start = time.perf_counter_ns()
                both = [subprocess.Popen([self.tidegate, "leak", "--jobs", "1", *half],
                                         stdout=subprocess.DEVNULL) for half in halves]
                if any([child.wait() != 0 for child in both]):
                    raise BenchError("leak failed on half of the files")
                turn[kind] = time.perf_counter_ns() - start
            else:
                command = [self.tidegate, "leak", "--jobs", kind[-1], folder]
                _, turn[kind], turn[kind + "_peak_bytes"] = spawn(command, keep_output=False)
        return turn


def make_profile(folder):
    """48 files as verl writes them: 6 steps of 8 ranks; ranks of a step are copies of one file.
    (Links to it would not do: the command reads a file once, by whatever names.)"""
    events = 0
    for step in range(1, STEPS + 1):
        place = folder / f"step{step}"
        place.mkdir(parents=True)
        first = place / "torch_memory_rank0_pid4000.pickle"
        events += RANKS * big_snapshot.write_snapshot(first, events=250_000, step=step,
                                                      leak=LEAK_BYTES)
        for rank in range(1, RANKS):
            shutil.copyfile(first, place / f"torch_memory_rank{rank}_pid{4000 + 13 * rank}.pickle")
    return events


def check_profile(text):
    """What was timed must also have been right."""
    answer = json.loads(text)
    if len(answer["inputs"]) != FILES:
        raise BenchError(f"{len(answer['inputs'])} of {FILES} files were read")
    if answer["verdict"] != "leak" or abs(answer["bytes_per_step"] / LEAK_BYTES - 1) > 0.02:
        raise BenchError(f"the 48 files answer {answer['verdict']}, "
                         f"{answer['bytes_per_step']} bytes a step instead of {LEAK_BYTES}")
