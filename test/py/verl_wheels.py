# SPDX-License-Identifier: Apache-2.0
"""verl's own wheels, as tools/verl-wheels lays them out, and how to run a program on one."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "verl"
VERSIONS = tuple(sorted(path.stem for path in (ROOT / "tools" / "verl").glob("[0-9]*.txt")))
WORLD = pathlib.Path(__file__).with_name("verl_world.py")
TORCH = os.environ.get("TIDEGATE_TEST_TORCH") == "1"

needs_verl = pytest.mark.skipif(not CACHE.is_dir(), reason="no verl here: it needs Python 3.10")
RECIPES = ("stubs", pytest.param("torch", marks=pytest.mark.skipif(
    not TORCH, reason="the real torch (1.5 GB) is for: make check-verl")))


class Ran:
    """How a process of verl ended: what it answered, and the lines it said."""

    def __init__(self, done):
        assert done.returncode == 0, done.stderr
        self.answer = json.loads(done.stdout.splitlines()[-1])
        self.err = done.stderr

    def __getitem__(self, name):
        return self.answer[name]

    def said(self, text):
        """The lines of ours with this in them."""
        return [line for line in self.err.splitlines() if line.startswith("[") and text in line]


def environment(folder, version, recipe, mode, with_plugin=True, verl=None, **more):
    """What a process of verl runs in. folder: its own; verl: another tree of this version."""
    paths = [WORLD.parent, verl or CACHE / version, CACHE / "base"]
    if recipe == "torch":
        paths.append(CACHE / "torch")
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("TIDEGATE", "VERL", "PYTHON", "RANK", "CUDA_VISIBLE"))}
    kept.update({"TIDEGATE_DIR": str(folder / "ledger"), "PYTHONWARNINGS": "ignore",
                 "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"], "RANK": "0"})
    if mode is not None:
        kept["TIDEGATE"] = mode
    if with_plugin:
        paths.append(ROOT / "python")
        if version >= "0.9":
            paths.append(entry_point(folder))
        else:
            kept["VERL_USE_EXTERNAL_MODULES"] = "tidegate.verl"
    kept["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    kept.update(more)
    return kept


def entry_point(folder):
    """A folder with the metadata of the installed package: its entry points as pyproject.toml
    has them, by which verl finds it."""
    lines, table = [], None
    for line in (ROOT / "pyproject.toml").read_text().splitlines():
        if line.startswith("["):
            table = line
        elif table is not None and table.startswith("[project.entry-points.") and "=" in line:
            group = table.split('"')[1]
            lines.append(f"[{group}]\n{line.replace(chr(34), '')}")
    home = folder / "site" / "tidegate-0.1.0.dist-info"
    home.mkdir(parents=True, exist_ok=True)
    (home / "METADATA").write_text("Metadata-Version: 2.1\nName: tidegate\nVersion: 0.1.0\n")
    (home / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return home.parent


def start(folder, version, scenario, options=None, recipe="stubs", mode="observe", **more):
    """A process of verl that plays a scenario of verl_world.py."""
    (folder / "cwd").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, str(WORLD), recipe, scenario, json.dumps(options or {})],
        env=environment(folder, version, recipe, mode, **more), cwd=folder / "cwd", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder, version, scenario, options=None, **more):
    """The same, to its end."""
    process = start(folder, version, scenario, options, **more)
    out, err = process.communicate(timeout=120)
    return Ran(subprocess.CompletedProcess(process.args, process.returncode, out, err))
