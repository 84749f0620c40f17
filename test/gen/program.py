# SPDX-License-Identifier: Apache-2.0
"""A training loop in miniature, in verl's or a plain script's shape: micro-batches of forward and
backward, an optimizer with moments, a weight sync through buckets. All that a step allocates it
frees again, except what its plans keep."""

import dataclasses
import typing

from . import kinds
from .allocator import MIB, Allocator, Clock
from .stacks import Stacks, where


@dataclasses.dataclass
class Site:
    """A plan and the line that it is charged to."""

    plan: kinds.Plan
    stack: typing.List[dict]
    where: str
    held: typing.Dict[int, object] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Shape:
    """What kind of program it is."""

    file: str = "rl_actor.py"
    micro_batches: int = 2
    layers: int = 3
    unit: int = 1 * MIB     # bytes of a layer's weight
    native: bool = False    # C++ frames as well
    expandable: bool = False
    tiny: int = 0           # bytes of a scalar kept in each step: far below what matters
    bucket: bool = False    # weight sync
    flush: bool = False     # empty_cache at the end of each step
    device: int = 0
    streams: bool = False   # a second stream, a private pool, frees that complete later


_BEFORE = [("compute_log_prob", "rl_actor.py", 61), ("compute_advantage", "core.py", 120),
           ("masked_mean", "core.py", 14), ("split", "rl_actor.py", 66)]
_AFTER = [("clip_grad_norm_", "rl_actor.py", 70), ("norm", "core.py", 31),
          ("append_to_dict", "core.py", 44)]


class Program:
    """Runs on an allocator of its own; `annotations` is what torch calls external_annotations."""

    def __init__(self, shape, clock=None, stacks=None):
        self.shape = shape
        self.clock = clock or Clock()
        self.stacks = stacks or Stacks()
        self.alloc = Allocator(self.clock, shape.device, shape.expandable)
        self.annotations = []
        self.sites = []
        self.weights, self.moments, self.grads, self.scalars = [], [], [], []
        self._pending = []
        self._main = [self.stacks.own("update_policy", shape.file, 19),
                      self.stacks.own("<module>", "main.py", 12)]

    def site(self, plan, line, through="linear", function="_forward_micro_batch"):
        """Plants a plan at a line of the user's code, below torch's linear or in plain sight; or
        with no frame of the user's code at all."""
        own = self.stacks.own(function, self.shape.file, line)
        inner = self.stacks.lib("forward", "torch/nn/modules/linear.py", 134)
        name = where(own)
        if through == "linear":
            model = [self.stacks.lib("forward", "transformers/models/qwen2_5_vl/modeling.py", 1398)]
            stack = self.stacks.through_module([inner]) + self.stacks.through_module(model)
            stack += [own] + self._main
        elif through == "own":
            stack = [own] + self._main
        else:
            inner = self.stacks.lib("_engine_run_backward", "torch/autograd/graph.py", 824 + line)
            stack, name = [inner], where(inner) + " (library)"
        found = Site(plan, self._dress(stack), name)
        self.sites.append(found)
        return found

    def _dress(self, stack):
        return self.stacks.with_native(stack) if self.shape.native else stack

    def _layer(self, index, what, line):
        inner = [self.stacks.lib("forward", f"transformers/models/qwen2_5_vl/{what}.py",
                                 line + index)]
        stack = self.stacks.through_module(inner, 2)
        return self._dress(stack + [self.stacks.own("_forward_micro_batch", self.shape.file, 14)]
                           + self._main)

    def _optim(self, line):
        return self._dress([
            self.stacks.lib("_init_group", "torch/optim/adam.py", line),
            self.stacks.lib("step", "torch/optim/adam.py", 238),
            self.stacks.lib("wrapper", "torch/optim/optimizer.py", 533),
            self.stacks.own("update_policy", self.shape.file, 33),
            self.stacks.own("<module>", "main.py", 12)])

    def annotate(self, stage, name):
        """A line of external_annotations, now."""
        self.annotations.append({"stage": stage, "name": name, "device": self.shape.device,
                                 "time_us": self.clock.read()})

    def build(self):
        """The model's weights."""
        stack = self._dress([
            self.stacks.lib("convert", "torch/nn/modules/module.py", 1370),
            self.stacks.lib("to", "transformers/modeling_utils.py", 3706),
            self.stacks.own("build", "main.py", 8), self.stacks.own("<module>", "main.py", 10)])
        for index in range(self.shape.layers):
            self.weights.append(self.alloc.alloc(self.shape.unit * (2 + index % 2), stack))
            self.weights.append(self.alloc.alloc(4096 + 512 * index, stack))

    def step(self, t):
        """One step of training."""
        for site in self.sites:
            self._drop(site, site.plan.steps[t].drop_before)
        self._touch(_BEFORE)
        for micro in range(self.shape.micro_batches):
            self._micro_batch(t, micro)
        self._optimizer_step()
        if self.shape.bucket:
            self._sync_weights()
        for site in self.sites:
            self._drop(site, site.plan.steps[t].drop_after)
        for block in self._pending:
            self.alloc.complete(block)
        self._pending = []
        if self.shape.flush:
            self.alloc.empty_cache([self.stacks.lib("empty_cache", "torch/cuda/memory.py", 224)]
                                   + self._main[1:])

    def load_batch(self):
        """The very first thing of a step, for marks."""
        self._touch([("__next__", "data.py", 55)])

    def _touch(self, places):
        """Temporaries of lines that run once in a step, as every real loop has dozens of."""
        for index, (function, file, line) in enumerate(places):
            stack = self._dress([self.stacks.own(function, file, line)] + self._main[1:])
            self.alloc.free(self.alloc.alloc(4096 * (index + 1), stack), stack)

    def _drop(self, site, gone):
        for t in gone:
            block = site.held.pop(t, None)
            if block is not None:
                self.alloc.free(block, self._main)

    def _micro_batch(self, t, micro):
        acts = []
        ids = self.alloc.alloc(8192, self._dress([self.stacks.own("batch", "data.py", 7)]
                                                 + self._main))
        for index in range(self.shape.layers):
            acts.append(self.alloc.alloc(self.shape.unit // 2 + 65536 * index,
                                         self._layer(index, "modeling", 700)))
            norm = self.alloc.alloc(2048, self._layer(index, "norm", 90))
            self.alloc.free(norm, self._main)
        kept = micro == self.shape.micro_batches - 1
        for site in self.sites:
            step = site.plan.steps[t]
            block = self.alloc.alloc(step.size, site.stack)
            if kept and step.keep:
                site.held[t] = block
            else:
                acts.append(block)
        if self.shape.streams:
            self._side_stream()
        self._backward(acts, micro)
        self.alloc.free(ids, self._main)
        if self.shape.tiny and kept:
            self.scalars.append(self.alloc.alloc(
                self.shape.tiny, [self.stacks.own("update_policy", self.shape.file, 30)]))

    def _backward(self, acts, micro):
        # The engine runs in a thread of its own; metadata are the calling thread's.
        metadata, self.alloc.metadata = self.alloc.metadata, ""
        stack = self._dress([self.stacks.lib("backward", "torch/_tensor.py", 581)] + self._main)
        for index, act in enumerate(reversed(acts)):
            if micro == 0 and index < self.shape.layers:
                self.grads.append(self.alloc.alloc(self.shape.unit * (2 + index % 2), stack))
            temp = self.alloc.alloc(self.shape.unit // 4 + 512, stack)
            self.alloc.free(act, stack)
            self.alloc.free(temp, stack)
        self.alloc.metadata = metadata

    def _side_stream(self):
        block = self.alloc.alloc(3 * MIB, self._layer(0, "comm", 40), stream=0x55D0C0DE)
        self.alloc.free(block, self._main, complete=False)
        self._pending.append(block)
        graph = self.alloc.alloc(1 << 16, self._layer(0, "graph", 41), pool=(0, 7))
        self.alloc.free(graph, self._main)

    def _optimizer_step(self):
        self._touch(_AFTER)
        self.annotate("START", "Optimizer.step#AdamW.step")
        if not self.moments:
            for weight in list(self.weights):
                for line in (178, 182):
                    self.moments.append(self.alloc.alloc(weight.requested, self._optim(line)))
        for _ in range(2):
            temp = self.alloc.alloc(self.shape.unit, self._optim(791))
            self.alloc.free(temp, self._optim(791))
        self.annotate("END", "Optimizer.step#AdamW.step")
        self.annotate("START", "Optimizer.zero_grad#AdamW.zero_grad")
        for grad in self.grads:
            self.alloc.free(grad, self._optim(1050))
        self.grads = []
        self.annotate("END", "Optimizer.zero_grad#AdamW.zero_grad")

    def _sync_weights(self):
        stack = self._dress([self.stacks.own("sync_weights", self.shape.file, 40)]
                            + self._main[1:])
        old = None
        for _ in range(2):
            bucket = self.alloc.alloc(12 * MIB, stack)
            if old is not None:
                self.alloc.free(old, stack)
            old = bucket
        self.alloc.free(old, stack)

    def snapshot(self, devices=None):
        """The dict that torch.cuda.memory._snapshot() returns, in the shape of torch 2.11."""
        traces = [[] for _ in range(devices or self.shape.device + 1)]
        traces[self.shape.device] = list(self.alloc.events)
        return {"segments": self.alloc.export_segments(), "device_traces": traces,
                "allocator_settings": settings(self.shape.expandable),
                "external_annotations": list(self.annotations)}

    def clear(self):
        """The history starts anew. Annotations are part of it."""
        self.alloc.clear_history()
        self.annotations = []


def settings(expandable):
    """The value of allocator_settings."""
    return {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if expandable else "",
            "max_split_size": -1, "garbage_collection_threshold": 0.0,
            "expandable_segments": expandable, "pinned_num_register_threads": 1,
            "release_lock_on_cudamalloc": False, "pinned_use_cuda_host_register": False,
            "graph_capture_record_stream_reuse": False,
            "roundup_power2_divisions": {str(1 << i): 0 for i in range(16)}}
