# SPDX-License-Identifier: Apache-2.0
"""The report for people, to the letter, on the recordings. Seconds are masked.

A wanted change of the report: `UPDATE_EXPECTED=1 pytest test/py/test_text.py`, then read the
difference before it is committed."""

import os
import pathlib
import re

import pytest

from conftest import DATA

EXPECTED = pathlib.Path(__file__).parent / "expected"
REPORTS = {
    "leak_logits": ["qwen_vl_leak_logits.pickle.xz"],
    "no_leak": ["qwen_vl_no_leak.pickle.xz"],
    "oom": ["qwen_vl_oom.pickle.xz"],
    "cpp_stacks": ["qwen_vl_cpp_stacks.pickle.xz"],
    "verl_logits": ["verl_logits"],
    "verl_rank1": ["verl_rank1"],
    "verl_march": ["verl_march"],
    "verl_now": ["verl_now"],
    "verl_now_capacity": ["--capacity", "24GiB", "verl_now"],
    "no_steps": ["real/state_only.pickle.xz"],
    "several_runs": ["verl_march", "verl_now"],
    "help": ["--help"],
}


def masked(text):
    """Seconds change from run to run."""
    return re.sub(r"\b\d+\.\d+ s$", "N.N s", text, flags=re.M)


@pytest.mark.parametrize("name", sorted(REPORTS))
def test_report(tidegate, name):
    """Every character."""
    result = tidegate("leak", *REPORTS[name], cwd=DATA)
    assert result.status == 0, result.err
    assert result.err == ""
    path = EXPECTED / f"{name}.txt"
    if os.environ.get("UPDATE_EXPECTED"):
        path.write_text(masked(result.out), encoding="utf-8")
    assert masked(result.out) == path.read_text(encoding="utf-8")
    assert max(map(len, result.out.splitlines())) <= 160
