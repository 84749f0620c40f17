# SPDX-License-Identifier: Apache-2.0
"""SGLang's own files, in a process without the rest of it: empty packages with the right paths, so
that single modules of the wheel import, and a scheduler with just what the real mixin asks for.

    begin() -> the plugin's effects are there, as in a scheduler process of SGLang's"""

import contextlib
import enum
import importlib
import os
import sys
import types

import pool_world as world

PACKAGES = ("sglang", "sglang.srt", "sglang.srt.utils", "sglang.srt.managers",
            "sglang.srt.debug_utils")
MIB = 1 << 20


def _package(name, root):
    module = types.ModuleType(name)
    module.__path__ = [os.path.join(root, *name.split("."))]
    sys.modules[name] = module


class _Anything(types.ModuleType):
    """io_struct: every name is a class whose objects have the fields that they are given."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)

        def __init__(self, tags=None):
            self.tags = tags
        made = type(name, (), {"__init__": __init__})
        setattr(self, name, made)
        return made


def begin(load=True):
    """torch's fake, SGLang's skeleton, and its own way of loading plugins."""
    torch = world.begin()
    torch.distributed = types.SimpleNamespace(barrier=lambda group: None)
    torch.inference_mode = contextlib.nullcontext
    torch.get_device_module = lambda: torch.cuda
    root = os.environ["SGLANG_FILES"]
    for name in PACKAGES:
        _package(name, root)
    for name in ("sglang.srt.managers.io_struct", "sglang.srt.debug_utils.cuda_coredump"):
        sys.modules[name] = _Anything(name)
    if load:
        importlib.import_module("sglang.srt.plugins").load_plugins()
    return torch


def adapter():
    """The real adapter, enabled."""
    module = importlib.import_module("sglang.srt.utils.torch_memory_saver_adapter")
    return module.TorchMemorySaverAdapter.create(enable=True)


class Ways(enum.Enum):
    RELEASE = "release_memory_occupation"
    RESUME = "resume_memory_occupation"


class Outbox:
    def __init__(self):
        self.sent = []

    def send_output(self, output, request):
        self.sent.append(type(output).__name__)


class Model:
    """Named buffers are what the mixin keeps by itself."""

    def named_buffers(self):
        return []


def make_scheduler(saver):
    """A Scheduler over the real mixin; its loop is the real one's, cut to what matters here."""
    mixin = importlib.import_module("sglang.srt.managers.scheduler_update_weights_mixin")

    class Scheduler(mixin.SchedulerUpdateWeightsMixin):
        tp_size = pp_size = 1

        def __init__(self):
            self.offload_tags, self.memory_saver_adapter = set(), saver
            self.tp_cpu_group = None
            self.tp_worker = types.SimpleNamespace(
                model_runner=types.SimpleNamespace(model=Model()))
            self.send_to_tokenizer, self.flushed = Outbox(), 0

        def is_fully_idle(self):
            return True

        def flush_cache(self):
            self.flushed += 1

        def process_input_requests(self, recv_reqs):
            for way, recv_req in recv_reqs:
                output = getattr(self, way.value)(recv_req)
                if output is not None:
                    self.send_to_tokenizer.send_output(output, recv_req)

    module = types.ModuleType("sglang.srt.managers.scheduler")
    module.Scheduler = Scheduler
    return module


def request(way, *tags):
    """One as the tokenizer sends it."""
    return way, types.SimpleNamespace(tags=list(tags) or None)
