# SPDX-License-Identifier: Apache-2.0
"""Rows of what was measured on a card, and the files that hold them.

A row is what bench/measure.py makes: a value beside its target, with the raw numbers. A file adds
the card, its driver, torch and the commit, without which no figure means anything.
"""
import argparse
import datetime
import json
import os
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))
from measure import machine, output_of, print_row  # noqa: E402  (found by the line above)

GIB = 1 << 30
MIB = 1 << 20
HOLDS = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, "==": lambda a, b: a == b}


def row(name, what, values, target=None, raw=None):
    """values: one number, or those of all rounds, whose median counts; target: (sign, number)."""
    several = list(values) if isinstance(values, (list, tuple)) else [values]
    value = sorted(several)[len(several) // 2]
    operator, wanted = target or ("", None)
    good = HOLDS[operator](value, wanted) if target else None
    made = {"name": name, "what": what, "value": value, "operator": operator, "target": wanted,
            "pass": good, "ratios": several, "raw": raw}
    print_row(made)
    return made


def no_row(name, reason):
    """What could not be measured, with the reason."""
    made = {"name": name, "what": "", "value": None, "operator": "", "target": None,
            "pass": None, "reason": reason}
    print_row(made)
    return made


def card():
    """The card and what drives it; None for what cannot be known here."""
    found = {"name": None, "driver": None, "memory_bytes": None, "torch": None,
             "cuda": None, "transformers": None, "gcc": None}
    said = output_of(["gcc", "--version"])
    if said:
        found["gcc"] = said.split("\n")[0].split()[-1]
    try:
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        found.update(name=str(pynvml.nvmlDeviceGetName(handle)),
                     driver=str(pynvml.nvmlSystemGetDriverVersion()),
                     memory_bytes=pynvml.nvmlDeviceGetMemoryInfo(handle).total)
    except Exception as error:  # no NVML, no card: the figures then say so
        found["driver"] = f"unknown: {error}"
    for package in ("torch", "transformers"):
        try:
            from importlib.metadata import version
            found[package] = version(package)
        except ImportError:
            pass
    return found


def write_results(options, subject, rows, more=None):
    """Writes SUBJECT-DATE.json into the folder that the options name; returns its path."""
    now = datetime.datetime.now(datetime.timezone.utc)
    body = {"schema": "tidegate.results/1", "date": now.isoformat(timespec="seconds"),
            "quick": options.quick, "machine": machine(), "card": card(),
            "kernel": platform.release().split("-")[0],
            "python": platform.python_version(), "commit": commit(options),
            "rows": rows, **(more or {})}
    suffix = "-quick" if options.quick else ""
    path = Path(options.results) / f"{subject}-{now.date()}{suffix}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(body, indent=1, default=str)
    path.write_text(text.replace(f"{ROOT}/", "") + "\n")  # the same wherever it was run
    print(f"written to {os.path.relpath(path)}", flush=True)
    return path


def commit(options):
    """Of the wheel that was carried; a carried checkout's history may be another's."""
    noted = Path(options.carried) / "commit" if options.carried else None
    if noted is not None and noted.exists():
        return noted.read_text().strip()
    return output_of(["git", "rev-parse", "HEAD"])


def parser(description):
    """The options that every part of bench/card has."""
    made = argparse.ArgumentParser(description=description.strip().split("\n")[0])
    made.add_argument("--results", default=ROOT / "bench" / "results")
    made.add_argument("--carried", help="the folder that bench/card/pack made")
    made.add_argument("--quick", action="store_true", help="few steps: shows that it runs")
    return made
