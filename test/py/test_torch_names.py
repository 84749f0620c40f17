# SPDX-License-Identifier: Apache-2.0
"""What the package asks of torch is there in the real one, which has no card here: names that are
missing would make a source do nothing in silence. For `make check-verl`."""

import ast

import pytest

from conftest import ROOT
from verl_wheels import CACHE, TORCH

PRIVATE = {"_cuda_memoryStats", "_cuda_hasPrimaryContext", "_cuda_isHistoryEnabled",
           "_cuda_clearCublasWorkspaces", "_host_emptyCache",
           "_cuda_attach_out_of_memory_observer"}
PUBLIC = {"is_initialized", "_is_in_bad_fork", "current_device", "mem_get_info", "empty_cache",
          "ipc_collect", "is_current_stream_capturing", "memory_snapshot", "synchronize", "memory",
          "caching_allocator_alloc", "caching_allocator_delete"}


def named():
    """Names behind torch._C and torch.cuda in what reclaims and accounts, as its source has
    them."""
    found = {"_C": set(), "cuda": set()}
    for name in ("card", "torch_sources", "oom_account", "trimming"):
        tree = ast.parse((ROOT / "python" / "tidegate" / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) \
                    and node.value.attr in found:
                found[node.value.attr].add(node.attr)
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "getattr" \
                    and getattr(node.args[0], "attr", "") == "_C":
                found["_C"].add(node.args[1].value)
    return found


def test_the_lists_are_what_the_source_asks_for():
    assert named() == {"_C": PRIVATE, "cuda": PUBLIC}


@pytest.mark.skipif(not TORCH, reason="the real torch (1.5 GB) is for: make check-verl")
def test_the_real_torch_has_every_name_and_is_not_started(python):
    result = python(f"""
import torch, tidegate
missing = [name for name in {sorted(PRIVATE)!r} if not hasattr(torch._C, name)]
missing += [name for name in {sorted(PUBLIC)!r} if not hasattr(torch.cuda, name)]
try:
    tidegate.reclaim()
except tidegate.NoDevice:
    pass
print(missing, torch.cuda.is_initialized())
""", PYTHONPATH=f"{ROOT / 'python'}:{CACHE / 'torch'}", PYTHONWARNINGS="ignore")
    assert result.out == "[] False\n", result.err


@pytest.mark.skipif(not TORCH, reason="the real torch (1.5 GB) is for: make check-verl")
def test_the_real_torch_takes_the_observer_as_far_as_it_can_without_a_card(python):
    """Its own function starts CUDA, which fails here: said once, and nothing is raised."""
    result = python("""
import inspect, torch
from tidegate import card, oom_account
assert "include_traces" in inspect.signature(torch.cuda.memory_snapshot).parameters
oom_account.attach()
card.current, card.Card.device = lambda: card.at(0, torch), lambda self: None
for _ in range(2):
    oom_account.attach()
print(torch.cuda.is_initialized())
""", PYTHONPATH=f"{ROOT / 'python'}:{CACHE / 'torch'}", PYTHONWARNINGS="ignore", TIDEGATE="on",
                    RANK="")
    assert result.out == "False\n", result.err
    (line,) = result.err.splitlines()
    assert line.startswith("[trainer] tidegate: torch does not tell when it runs out of memory (")
