# SPDX-License-Identifier: Apache-2.0
"""Gives each answer that verl's agent loop asks for a seed of its own, the same in every run.

Loaded by verl in its processes (VERL_USE_EXTERNAL_MODULES). verl's own full_determinism gives all
answers of a group one seed: they come out equal, and GRPO's advantages are zero. Nothing is
imported here; the class is changed when the process that needs it imports it.
"""
import functools
import importlib.abc
import importlib.machinery
import sys

MODULE = "verl.experimental.agent_loop.agent_loop"


def seed_of(trajectory, named):
    """Of one answer, by step, prompt and place in its group: session_id where the answers of a
    group share their trajectory."""
    step, sample = int(trajectory["step"]), int(trajectory["sample_index"])
    turn = int(named.get("session_id", trajectory["rollout_n"]))
    return (step * 1_000_003 + sample * 1_009 + turn) % (1 << 31)


def seeded(run):
    @functools.wraps(run)
    async def wrapper(self, sampling_params, trajectory, **named):
        own = {**sampling_params, "seed": seed_of(trajectory, named)}  # theirs may be shared
        return await run(self, own, trajectory, **named)
    return wrapper


class WhenLoaded(importlib.abc.MetaPathFinder):
    """Finds MODULE as the others would, and changes it once its code has run."""

    def find_spec(self, name, path, _target=None):
        if name != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            worker = module.AgentLoopWorker
            worker._run_agent_loop = seeded(worker._run_agent_loop)

        spec.loader.exec_module = exec_module
        return spec


if not any(isinstance(finder, WhenLoaded) for finder in sys.meta_path):
    sys.meta_path.insert(0, WhenLoaded())
