# SPDX-License-Identifier: Apache-2.0
"""verl's own wheels, as tools/verl-wheels lays them out, and how to run a program on one."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python"
sys.path.insert(0, str(PACKAGE))
CACHE = ROOT / ".cache" / "verl"
VERSIONS = tuple(sorted(path.stem for path in (ROOT / "tools" / "verl").glob("[0-9]*.txt")))
