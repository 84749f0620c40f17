# SPDX-License-Identifier: Apache-2.0
"""One process of verl without a GPU: verl's real files over stubs, or over the real torch, and a
card that is three numbers. Run by tests: verl_world.py RECIPE SCENARIO [JSON].

The card shows wiring and order only. What torch itself does is shown on a real card."""

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import sys
import threading
import time
import types

import stub_packages

GIB = 1 << 30
EVENTS = []


class Card:
    """torch.cuda and the driver, of one process: what torch holds, and what the engine took."""

    index = 0
    total = 100 * GIB
    context = 1 * GIB

    def __init__(self):
        self.live = 20 * GIB
        self.cached = 46 * GIB
        self.engine = 0
        self.is_started = True

    @property
    def free(self):
        return self.total - self.context - self.live - self.cached - self.engine

    def empty_cache(self):
        EVENTS.append("empty_cache")
        self.cached = 0

    def synchronize(self, device=None):
        EVENTS.append("synchronize")

    def stats(self, index):
        figures = {"reserved_bytes": self.live + self.cached, "allocated_bytes": self.live,
                   "active_bytes": self.live, "inactive_split_bytes": 0}
        return {name: {"all": {"current": value}} for name, value in figures.items()}

    def snapshot(self, *_):
        blocks = [{"size": self.cached, "state": "inactive", "address": 0}]
        segment = {"device": self.index, "total_size": self.cached, "blocks": blocks, "address": 0,
                   "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False}
        return {"segments": [segment] if self.cached else [], "device_traces": []}

    def put_under(self, torch):
        """Takes the place of what asks the driver, in the real torch and in its stub alike."""
        def memory(_index=0):
            return self.free, self.total

        for name in ("cuda", "cuda.memory", "version", "_C", "distributed"):
            importlib.import_module(f"torch.{name}")
        cuda = torch.cuda
        cuda.is_initialized, cuda.is_available = lambda: self.is_started, lambda: True
        cuda.current_device = lambda: self.index
        cuda.device_count = lambda: 1
        cuda.mem_get_info = memory
        cuda.memory_reserved = lambda *_: self.live + self.cached
        cuda.memory_allocated = lambda *_: self.live
        cuda.empty_cache, cuda.synchronize = self.empty_cache, self.synchronize
        cuda.ipc_collect = lambda: EVENTS.append("ipc_collect")
        cuda.is_current_stream_capturing = lambda: False
        cuda.cudart = lambda: types.SimpleNamespace(cudaMemGetInfo=memory)
        cuda.memory._set_allocator_settings = lambda text: EVENTS.append(text)
        cuda.memory._snapshot = torch._C._cuda_memorySnapshot = self.snapshot
        torch._C._cuda_memoryStats = self.stats
        torch._C._cuda_getDevice = lambda: self.index
        torch._C._cuda_hasPrimaryContext = lambda index: True
        torch._C._cuda_isHistoryEnabled = lambda: False
        if isinstance(torch, stub_packages.Module):
            torch.__version__ = "2.11.0"
            torch.version.cuda, torch.version.hip = "13.0", None


class DriverCard(Card):
    """The same on a driver that stands in for a GPU's, which other processes share: live and cached
    bytes are chunks of it. Card number RANK."""

    def __init__(self):
        self.index = int(os.environ["RANK"])
        self.is_started = True
        self.live = self.cached = 0
        self.spare = None

    def _device(self):
        from tidegate import devices

        return devices.device(f"cuda:{self.index}")

    @property
    def free(self):
        return self._device().memory()[0]

    @property
    def total(self):
        return self._device().memory()[1]

    def hold(self, live, cached):
        """Takes so much of the driver's memory, as torch would have it."""
        self.live, self.cached = live, cached
        self._take(live)
        self.spare = self._take(cached)

    def _take(self, size_bytes):
        device, chunk = self._device(), ctypes.c_uint64()
        create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32,
                                  ctypes.POINTER(ctypes.c_uint64))(device.ops.create)
        assert size_bytes == 0 or create(device.handle, size_bytes, 0, ctypes.byref(chunk)) == 0
        return chunk.value

    def empty_cache(self):
        if self.cached > 0:
            device = self._device()
            release = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p,
                                       ctypes.c_uint64)(device.ops.release)
            assert release(device.handle, self.spare) == 0
            tell("gave")
        super().empty_cache()


def tell(what):
    """A line for the test, with the moment, which all processes of a machine share."""
    sys.stdout.write(json.dumps({"told": what, "at": time.monotonic()}) + "\n")
    sys.stdout.flush()


CARD = DriverCard() if "TIDEGATE_STANDIN" in os.environ else Card()


def begin(recipe):
    """Stubs for what the recipe lacks, and the card under torch."""
    with_torch = recipe == "torch"
    stub_packages.install(stub_packages.ALWAYS
                          + ([] if with_torch else stub_packages.WITHOUT_TORCH))
    import torch
    CARD.put_under(torch)
    return torch


# ---- verl's objects, over fakes ------------------------------------------------------------------

class Settings(dict):
    """A configuration: items as attributes, absent ones are not there."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def rollout_settings(name, **more):
    return Settings({"name": name, "free_cache_engine": True, "tensor_model_parallel_size": 1,
                     "data_parallel_size": 1, "pipeline_model_parallel_size": 1,
                     "gpu_memory_utilization": 0.7,
                     "checkpoint_engine": Settings(backend="naive",
                                                   update_weights_bucket_megabytes=2048), **more})


class Engine:
    """The rollout engine: wakes what it is asked for, and takes its memory."""

    sizes = {"weights": 14 * GIB, "kv_cache": 61 * GIB}

    async def wake(self, tags):
        EVENTS.append(f"wake {' '.join(tags)}")
        CARD.engine += sum(self.sizes[tag] for tag in tags)

    async def resume_memory_occupation(self, tags):
        await self.wake(tags)

    class _Remote:
        def __init__(self, call):
            self.remote = call

    @property
    def wake_up(self):
        return self._Remote(lambda tags: self.wake(tags))

    @property
    def collective_rpc(self):
        return self._Remote(lambda method, timeout=None, args=(), kwargs=None:
                            self.wake(kwargs["tags"]))


class Mesh:
    """A device mesh whose every axis has this rank at the given place."""

    def __init__(self, place):
        self.place = place

    def __getitem__(self, axis):
        return self

    def get_local_rank(self):
        return self.place


def adapter(name, place=0, **more):
    """verl's own client of the engine, made without its constructor."""
    module = importlib.import_module(f"verl.workers.rollout.{name}_rollout.{name}_rollout")
    made = object.__new__(module.ServerAdapter)
    made.config = rollout_settings(name, **more)
    made.sleep_level, made.replica_rank, made.rollout_rank, made.node_rank = 2, 0, place, 0
    made._pd_role, made.device_mesh = None, Mesh(place)
    made._has_server = name == "sglang" or place == 0
    made._engine = made.server_handle = Engine()

    async def update_weights(weights, **_):
        EVENTS.append(f"update of {len(list(weights))}")

    made.update_weights = update_weights
    return made


class Model:
    """What an engine trains: moved about, and asked for its parameters."""

    buffers, expert_parallel_buffers = [], []

    def to(self, device, **_):
        EVENTS.append(f"model to {device}")
        if device == "cpu":
            CARD.cached, CARD.live = CARD.cached + 4 * GIB, CARD.live - 4 * GIB
        else:
            CARD.live += 4 * GIB
        return self

    def cpu(self):
        return self.to("cpu")

    def state_dict(self):
        return {"weight": "tensor"}

    def named_parameters(self):
        return iter(())

    def modules(self):
        return iter(())


def trained_by(kind):
    """verl's own engine class for FSDP or Megatron, made without its constructor."""
    module = importlib.import_module(f"verl.workers.engine.{kind}.transformer_impl")
    engine = object.__new__(module.FSDPEngine if kind == "fsdp" else module.MegatronEngine)
    model = Model()
    engine.module = model if kind == "fsdp" else [model]
    engine._is_offload_param, engine.optimizer = True, None
    engine._uses_fsdp2_cpu_offload_policy = False
    engine.engine_config = Settings(forward_only=False)
    engine.model_config = Settings(lora=Settings(), hf_config=Settings(model_type="qwen2"))
    engine.peft_cls, engine.vanilla_bridge, engine._qat_enabled = None, True, False
    engine.bridge = types.SimpleNamespace(export_weights=lambda _: iter([("weight", "tensor")]))
    return engine


def worker(kind, rollout):
    """verl's own ActorRolloutRefWorker, made without its constructor."""
    from verl.workers import engine_workers

    made = object.__new__(engine_workers.ActorRolloutRefWorker)
    made.config = Settings(rollout=rollout.config)
    made.layered_summon = made.peft_merge = made.base_sync_done = False
    made.rollout, made.actor = rollout, types.SimpleNamespace(engine=trained_by(kind))
    return made


def hand_weights(made):
    """One weight sync, by verl's own code."""
    import torch

    torch.distributed.barrier = lambda *_, **__: EVENTS.append("barrier")
    asyncio.run(made.update_weights(global_steps=1))


# ---- what can be seen ----------------------------------------------------------------------------

def seen():
    """What the plugin has installed and counted, if there is one."""
    process = sys.modules.get("tidegate.verl.process")
    if process is None or process.SEAMING is None:
        return {"seams": None}
    return {"seams": list(process.SEAMING.counts()), "arrived": process.SYNC.arrived,
            "hand_overs": process.SYNC.hand_overs, "settings": process.allocator_settings}


def files_of(attributes):
    """Which file each function comes from, by its code."""
    found = {}
    for path in attributes:
        module, name = path.split(":")
        value = importlib.import_module(module)
        for step in name.split("."):
            value = inspect.getattr_static(value, step)
        value = value.fget if isinstance(value, property) else value
        found[f"{path} marks"] = sorted(set(vars(value)) - {"__wrapped__"})
        found[f"{path} is awaited"] = inspect.iscoroutinefunction(value)
        code = value.__code__.co_filename.split(os.sep)
        found[path] = code[-1] if "tidegate" in code else "/".join(code[code.index("verl") + 1:])
    return found


def process_state():
    """What a plugin must not touch: threads, files, environment, the import system."""
    return {"threads": sorted(thread.name for thread in threading.enumerate()),
            "environment": dict(os.environ),
            "descriptors": sorted(os.readlink(f"/proc/self/fd/{name}").split(":")[0]
                                  for name in os.listdir("/proc/self/fd")
                                  if os.path.exists(f"/proc/self/fd/{name}")),
            "finders": [type(finder).__name__ for finder in sys.meta_path],
            "folder": sorted(os.listdir("."))}


# ---- scenarios: each returns what the test looks at ----------------------------------------------

def sync(kinds, rollouts, rounds=1, then_off=False, **more):
    """Weight syncs; between them the engine sleeps and the trainer's cache fills."""
    import verl  # noqa: F401: loads the plugin

    syncs = []
    for kind in kinds:
        for rollout in rollouts:
            made = worker(kind, adapter(rollout, **more))
            for _ in range(rounds):
                EVENTS.clear()
                CARD.engine, CARD.live, CARD.cached = 0, 20 * GIB, 46 * GIB
                before = seen().get("arrived", 0)
                hand_weights(made)
                syncs.append({"events": list(EVENTS), "free": CARD.free, "cached": CARD.cached,
                              "arrived": seen().get("arrived", 0) - before})
    return {"syncs": syncs, **seen()}


def old(rollout_class, **more):
    """What stands for a sync before 0.7.1: verl's helper, and `resume` of a client."""
    import verl  # noqa: F401: loads the plugin
    from verl.utils import device
    from verl.workers import fsdp_workers

    module, name = rollout_class.split(":")
    kind = getattr(importlib.import_module(module), name)
    made = object.__new__(kind)
    made.config = rollout_settings("any", **more)
    made.device_mesh, made.rollout_rank, made._engine = Mesh(0), 0, Engine()
    made.inference_engine = types.SimpleNamespace(
        wake_up=lambda tags: EVENTS.append(f"wake {' '.join(tags)}"))
    device.is_cuda_available = True  # verl has asked before the card was there
    device.set_expandable_segments(False)
    fsdp_workers.aggressive_empty_cache(force_sync=True)
    asyncio.run(made.resume(tags=["weights"]))
    asyncio.run(made.resume(tags=["kv_cache"]))
    return {"events": EVENTS, **seen()}


def load(modules, attributes=(), off=False):
    """Imports modules of verl, and tells where the functions are from that it has now."""
    import verl  # noqa: F401: loads the plugin
    for name in modules:
        importlib.import_module(name)
    result = {"files": files_of(attributes), **seen()}
    if off:
        import tidegate

        tidegate.off()
        result["files_off"] = files_of(attributes)
        result["finders_off"] = [type(finder).__name__ for finder in sys.meta_path]
    from verl.utils import memory_utils

    clean_up = getattr(memory_utils, "aggressive_empty_cache", None) or memory_utils.clean_up
    clean_up(force_sync=True)
    result.update(process_state(), events=EVENTS, arrived=seen().get("arrived"))
    return result


def before_cuda():
    """Everything is called while CUDA has not started in this process."""
    CARD.is_started = False
    return sync(["fsdp"], ["vllm"])


def broken():
    """A plugin that cannot be imported."""
    sys.modules["tidegate.verl.installing"] = None
    return load([])


def server():
    """The engine's server, in a process that knows the trainer's modules as well, falls asleep on
    a node that is not the first: nothing to do."""
    import verl.workers.engine_workers  # noqa: F401
    from verl.workers.rollout.vllm_rollout import vllm_async_server

    made = object.__new__(vllm_async_server.vLLMHttpServer)
    made.node_rank = 1
    asyncio.run(made.sleep())
    return seen()


def main():
    begin(sys.argv[1])
    more = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    result = SCENARIOS[sys.argv[2]](**more)
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()
    os._exit(0)  # stubs need not come apart in order


def rank(live, cached, calls="resume", **more):
    """One rank of a replica on a GPU that it shares: joins, waits to be told, and asks the engine
    to wake its KV cache, or calls verl's helper. It may hold its memory until it is told again."""
    import verl  # noqa: F401: loads the plugin
    from verl.utils import memory_utils
    from verl.workers import engine_workers  # noqa: F401: what makes this process a trainer

    memory_utils.aggressive_empty_cache(force_sync=True)
    CARD.hold(live, cached)
    tell("ready")
    sys.stdin.readline()
    if calls == "helper":
        memory_utils.aggressive_empty_cache(force_sync=True)
        tell("called")
        return {"free": CARD.free, **seen()}
    made = adapter("vllm", place=CARD.index, **more)

    async def wake(tags):
        tell("asked")

    made.server_handle.wake = wake
    try:
        asyncio.run(made.resume(["kv_cache"]))
        raised = None
    except Exception as problem:
        raised = [type(problem).__name__, str(problem)]
    if calls == "resume and hold":
        sys.stdin.readline()
    return {"raised": raised, "free": CARD.free, **seen()}


SCENARIOS = {call.__name__: call for call in (sync, old, load, before_cuda, broken, server,
                                               rank)}

if __name__ == "__main__":
    main()
