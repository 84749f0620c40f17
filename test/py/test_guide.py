# SPDX-License-Identifier: Apache-2.0
"""The example of the guide runs as it stands, and is as short as it is said to be."""

import os
import pathlib
import re
import sys

from conftest import ROOT, run

EXAMPLE = ROOT / "doc" / "guide" / "take_turns.py"


def test_the_example_takes_turns(library, tmp_path):
    result = run(sys.executable, EXAMPLE, cwd=tmp_path, env={
        "PYTHONPATH": str(ROOT / "python"), "TIDEGATE_DIR": str(tmp_path / "node"),
        "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"]})
    assert (result.status, result.err) == (0, "")
    turn = ["trainer: sleep optimizer 48 MiB", "engine:  wake weights, kv_cache 40 MiB"]
    lines = [re.sub(r" in .*", "", line) for line in result.out.splitlines()]
    assert lines == turn * 3


def test_the_example_is_short():
    assert len(pathlib.Path(EXAMPLE).read_text().splitlines()) <= 40
