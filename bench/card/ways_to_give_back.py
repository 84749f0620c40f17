# SPDX-License-Identifier: Apache-2.0
"""The ways in which a trainer gives memory back before the rollout wakes.

`plain` is one empty_cache; `helper` is what verl's aggressive_empty_cache is described to do, by
its rule alone: up to three passes, none after one that lowered torch's reserved bytes by less than
1 GiB; `tidegate` gives back what the other side is about to take.
"""
import gc

import torch

import tidegate

GIB = 1 << 30


def plain(_target_of):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return {"passes": 1}


def helper(_target_of, most=3, enough=GIB):
    for number in range(1, most + 1):
        before = torch.cuda.memory_reserved()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.synchronize()
        if before - torch.cuda.memory_reserved() < enough:
            break
    return {"passes": number}


def exact(target_of):
    """target_of(): the bytes that the driver lacks for it; None: all that can go."""
    return tidegate.reclaim(target_of()).to_dict()


WAYS = {"plain": plain, "helper": helper, "tidegate": exact}
