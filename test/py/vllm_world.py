# SPDX-License-Identifier: Apache-2.0
"""One worker of vLLM without a GPU: its own allocator modules and its own GPU worker, over stubs
and a driver that stands in for a GPU's. Tests import it in a Python of their own.

torch is a stub whose pools are pool_world's: bytes and figures are the driver's, and what torch
itself does is shown on a card."""

import ctypes
import importlib
import importlib.machinery
import os
import sys
import types
import weakref

import stub_packages

MIB = 1 << 20
PACKAGES = "vllm torch numpy regex".split()


class RealFiles:
    """Finds the modules that were unpacked under $VLLM_FILES, before any stub."""

    def find_spec(self, name, path=None, target=None):
        base = os.path.join(os.environ["VLLM_FILES"], *name.split("."))
        for file in (base + ".py", os.path.join(base, "__init__.py")):
            if os.path.exists(file):
                return importlib.util.spec_from_file_location(name, file)
        return None


def driver():
    from tidegate import devices

    return devices.device("cuda:0")


class Tensors:
    """What was allocated in the regions of our pools."""

    def __init__(self):
        self.held = []

    def new(self, size, fill):
        """A tensor of one value in the region that this thread is in."""
        import pool_world

        tensor = pool_world.Tensor(size)
        tensor.address, tensor.size_bytes = tensor.data_ptr(), size
        self.held.append(weakref.ref(tensor))
        self.write(tensor, fill)
        return tensor

    @staticmethod
    def write(tensor, fill):
        ctypes.memset(tensor.address, fill, tensor.size_bytes)

    @staticmethod
    def content(tensor):
        """The one byte that all of it is; None: it differs."""
        found = set(ctypes.string_at(tensor.address, tensor.size_bytes))
        return found.pop() if len(found) == 1 else None

    def segments(self):
        alive = [tensor for tensor in (one() for one in self.held) if tensor is not None]
        return [{"device": 0, "address": tensor.address, "total_size": tensor.size_bytes}
                for tensor in alive]


TENSORS = Tensors()
CALLS = []


def _memory(*_):
    return driver().memory()


def put_under(torch):
    """A card under the stub of torch, and pools."""
    import pool_world

    for name in ("cuda", "cuda.memory", "version", "_C", "distributed", "accelerator"):
        importlib.import_module(f"torch.{name}")
    torch.__version__, torch.version.cuda, torch.version.hip = "2.11.0", "13.0", None
    cuda = torch.cuda
    cuda.is_initialized = cuda.is_available = lambda: True
    cuda.current_device, cuda.device_count = lambda: 0, lambda: 1
    cuda.mem_get_info = _memory
    cuda.empty_cache = lambda: CALLS.append("empty_cache") or pool_world.empty_cache()
    cuda.synchronize = lambda *_: None
    cuda.memory.CUDAPluggableAllocator = pool_world.Pluggable
    cuda.MemPool, cuda.use_mem_pool = pool_world.MemPool, pool_world.use_mem_pool
    cuda.memory_snapshot = lambda *_: TENSORS.segments()
    cuda.is_current_stream_capturing = lambda: False
    cuda.cudart = lambda: types.SimpleNamespace(cudaMemGetInfo=_memory)
    torch._C._cuda_hasPrimaryContext = lambda index: True
    torch._C._cuda_getDevice = lambda: 0
    torch._C._cuda_memoryStats = lambda index: {
        name: {"all": {"current": 0}} for name in ("reserved_bytes", "allocated_bytes",
                                                   "active_bytes", "inactive_split_bytes")}
    torch.inference_mode = lambda: lambda function: function
    torch.nn.Module, torch.Tensor = object, object
    torch._C._cuda_memorySnapshot = lambda *_: {"segments": [], "allocator_settings": {}}
    torch._C._accelerator_setAllocatorSettings = pool_world.set_settings


def begin():
    """As it is when vLLM has loaded its plugins; returns what installs the seams."""
    stub_packages.install(PACKAGES)
    sys.meta_path.insert(0, RealFiles())
    import torch
    put_under(torch)
    import vllm
    vllm.__version__ = "0.24.0"
    from tidegate.compat import vllm as compat
    compat.plugin()
    from tidegate.compat import vllm_installing
    return vllm_installing


def worker(**settings):
    """vLLM's own worker, made without its constructor."""
    module = importlib.import_module("vllm.v1.worker.gpu_worker")
    module.current_platform = types.SimpleNamespace(
        is_cuda_alike=lambda: True, is_xpu=lambda: False, is_cpu=lambda: False,
        is_cuda=lambda: False)
    sys.modules["vllm.device_allocator"].current_platform = module.current_platform
    module.format_gib = lambda size: f"{size / (1 << 30):.2f}"
    made = object.__new__(module.Worker)
    made._sleep_saved_buffers = {}
    made.vllm_config = types.SimpleNamespace(
        model_config=types.SimpleNamespace(enable_cumem_allocator=True, enable_sleep_mode=True))
    made.model_runner = types.SimpleNamespace(model=Model(),
                                              post_kv_cache_wake_up=lambda: CALLS.append("post"))
    return made


class Model:
    """Its one buffer is a tensor as well."""

    def __init__(self):
        self.buffer = None

    def named_buffers(self):
        return [] if self.buffer is None else [("rope", Buffer(self.buffer))]


class Buffer:
    def __init__(self, block):
        self.block = self.data = block
        self.data.copy_ = lambda saved: TENSORS.write(block, saved)

    def cpu(self):
        value = TENSORS.content(self.block)
        return types.SimpleNamespace(clone=lambda: types.SimpleNamespace(data=value))


def load(made, weights=24 * MIB, cache=40 * MIB):
    """(weights, cache): what a worker has after its start."""
    with made._maybe_get_memory_pool_context("weights"):
        held = TENSORS.new(weights, 7)
        made.model_runner.model.buffer = TENSORS.new(2 * MIB, 5)
    with made._maybe_get_memory_pool_context("kv_cache"):
        return held, TENSORS.new(cache, 9)


class Stranger:
    """A program that knows nothing of us, and holds the card's memory."""

    def __init__(self, size):
        create = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32,
                                  ctypes.POINTER(ctypes.c_uint64))(driver().ops.create)
        chunk = ctypes.c_uint64()
        assert create(driver().handle, size, 0, ctypes.byref(chunk)) == 0
        self.chunk = chunk.value

    def leave(self):
        release = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p,
                                   ctypes.c_uint64)(driver().ops.release)
        assert release(driver().handle, self.chunk) == 0
