# SPDX-License-Identifier: Apache-2.0
"""The examples of the guide run as they stand, and are as short as they are said to be."""

import os
import pathlib
import re
import sys

import pytest

from conftest import ROOT, run
from verl_wheels import CACHE, TORCH

EXAMPLE = ROOT / "doc" / "guide" / "take_turns.py"
OFFLOADING = ROOT / "doc" / "guide" / "offload_adam.py"


def test_the_example_takes_turns(library, tmp_path):
    result = run(sys.executable, EXAMPLE, cwd=tmp_path, env={
        "PYTHONPATH": str(ROOT / "python"), "TIDEGATE_DIR": str(tmp_path / "node"),
        "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"]})
    assert (result.status, result.err) == (0, "")
    turn = ["trainer: sleep optimizer 48 MiB", "engine:  wake weights, kv_cache 40 MiB"]
    lines = [re.sub(r" in .*", "", line) for line in result.out.splitlines()]
    assert lines == turn * 3


@pytest.mark.skipif(not TORCH, reason="the real torch (1.5 GB) is for: make check-verl")
def test_the_example_over_torch_offloads(library, tmp_path):
    result = run(sys.executable, OFFLOADING, cwd=tmp_path, env={
        "PYTHONPATH": f"{ROOT / 'python'}:{CACHE / 'torch'}", "PYTHONWARNINGS": "ignore",
        "TIDEGATE_DIR": str(tmp_path / "node"),
        "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"]})
    assert (result.status, result.err) == (0, "")
    lines = [re.sub(r" in .*|: loss .*", "", line) for line in result.out.splitlines()]
    one = ["offload model 4.1 MiB", "offload optimizer 8.1 MiB"]
    assert lines == ["step 0", *one, "step 1", *one, "step 2", *one]


@pytest.mark.parametrize("example", [EXAMPLE, OFFLOADING], ids=lambda path: path.stem)
def test_the_example_is_short(example):
    assert len(pathlib.Path(example).read_text().splitlines()) <= 40
