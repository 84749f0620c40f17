# SPDX-License-Identifier: Apache-2.0
"""What every part of bench/run does: runs programs, makes rows of ratios, says on what machine.

Python's standard library only.
"""
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20


class BenchError(Exception):
    """A measurement that cannot be made, with the reason."""


def spawn(command, keep_output=True):
    """Runs a command; returns (its output, wall ns, peak bytes as wait4 gives them)."""
    start = time.perf_counter_ns()
    with subprocess.Popen([str(c) for c in command], text=True, stderr=subprocess.PIPE,
                          stdout=subprocess.PIPE if keep_output else subprocess.DEVNULL) as child:
        output = child.stdout.read() if keep_output else ""
        errors = child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        wall_ns = time.perf_counter_ns() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        name = Path(str(command[0])).name
        raise BenchError(f"{name} ended with {child.returncode}: {errors.strip()[-200:]}")
    return output, wall_ns, usage.ru_maxrss * 1024


def busy_share():
    """Of all cores, over half a second."""
    def read():
        fields = [int(f) for f in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]
    total, idle = read()
    time.sleep(0.5)
    total_later, idle_later = read()
    return 1 - (idle_later - idle) / max(1, total_later - total)


def wait_idle(limit_s):
    """What is timed by the wall clock waits a while for others to be done."""
    end = time.monotonic() + limit_s
    while busy_share() > 0.1 and time.monotonic() < end:
        pass


def free_bytes():
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def ratio_row(name, what, pairs, operator, target, raw):
    """pairs: (numerator, denominator) of each round."""
    ratios = [a / b for a, b in pairs]
    value = statistics.median(ratios)
    good = None
    if target is not None:
        good = value >= target if operator == ">=" else value <= target
    return {"name": name, "what": what, "value": round(value, 4), "operator": operator,
            "target": target, "pass": good, "ratios": [round(r, 4) for r in ratios], "raw": raw}


def null_row(name, what, operator, target, reason):
    return {"name": name, "what": what, "value": None, "operator": operator, "target": target,
            "pass": None, "reason": reason}


class Rows:
    """The rows of one subject, measured by the methods in `parts`, each printed as it comes."""

    programs = ()  # of the build folder, built before

    def __init__(self, args, temp):
        self.args = args
        self.temp = temp
        self.build = Path(args.build).resolve()
        self.rows = []

    def parts(self):
        """The methods that add rows, in order."""
        raise NotImplementedError

    def add(self, row):
        """Keeps a row and prints it."""
        self.rows.append(row)
        print_row(row)

    def measure(self):
        """All parts; what cannot be measured becomes a null row with the reason."""
        for part in self.parts():
            try:
                part()
            except BenchError as error:
                self.add(null_row(part.__name__, "", "", None, str(error)))


def print_row(row):
    if row["value"] is None:
        print(f"  null   {row['name']}: {row['reason']}", flush=True)
        return
    mark = {True: "pass", False: "MISS", None: "    "}[row["pass"]]
    target = f"{row['operator']} {row['target']}" if row["target"] is not None else ""
    spread = f"{min(row['ratios']):.3g}-{max(row['ratios']):.3g}"
    print(f"  {mark}   {row['name']:<52} {row['value']:>8.3f}  {target:<8}  ({spread})", flush=True)
    if row.get("reason"):
        print(f"         not judged: {row['reason']}", flush=True)


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=ROOT,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def compiler_of(build):
    """The compiler of the build, in its own words."""
    try:
        commands = json.loads((Path(build) / "compile_commands.json").read_text())
    except (OSError, ValueError):
        return None
    words = commands[0]["command"].split()
    compiler = words[1] if words[0].endswith("ccache") else words[0]
    said = output_of([compiler, "--version"])
    if said is not None and "Free Software Foundation" in said:
        return "gcc " + said.split("\n")[0].split()[-1]
    return None if said is None else said.split("\n")[0]


def machine():
    model = [line.split(":", 1)[1].strip() for line in
             Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {"cpu": model[0] if model else platform.machine(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "load_before": round(os.getloadavg()[0], 2)}


def report(args, rows, started, load):
    status = output_of(["git", "status", "--porcelain", "--untracked-files=no"])
    return {"schema": "tidegate.results/1", "date": started.isoformat(timespec="seconds"),
            "quick": args.quick, "machine": load, "kernel": platform.release().split("-")[0],
            "compiler": compiler_of(args.build), "python": platform.python_version(),
            "commit": output_of(["git", "rev-parse", "HEAD"]),
            "modified": None if status is None else status != "",
            "rounds": args.rounds, "rows": rows}
