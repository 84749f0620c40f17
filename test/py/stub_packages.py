# SPDX-License-Identifier: Apache-2.0
"""Stands for packages that are not installed, so that verl's own files can be imported and run.

Every name below one of the given packages is an empty module. What is asked of it is made on
demand: a class that can be subclassed, called with anything, used as a decorator with and without
arguments, and asked for attributes in turn. It shows wiring and nothing else."""
import importlib.abc
import importlib.machinery
import importlib.metadata
import sys
import types

# What no recipe installs, and what only the one without torch lacks.
ALWAYS = ("ray tensordict transformers peft accelerate datasets pandas PIL fastapi uvicorn "
          "starlette pydantic codetiming orjson click sglang vllm aiohttp requests zmq msgspec "
          "safetensors huggingface_hub torchdata hydra cachetools pybind11 pylatexenc dill "
          "megatron cloudpickle filelock flash_attn qwen_vl_utils triton").split()
WITHOUT_TORCH = "torch numpy tqdm psutil".split()


class _Made(type):
    """A class whose attributes are classes like it, made when they are asked for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = _make(name)
        setattr(cls, name, made)
        return made

    def __call__(cls, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]) and "_is_stub" in cls.__dict__:
            return args[0]
        return super().__call__(*args, **kwargs)

    def __or__(cls, other):
        return cls

    __ror__ = __getitem__ = __or__

    def __neg__(cls):
        return cls

    def __iter__(cls):
        return iter(())


def _make(name):
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else type(self)()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(type(self), name)

    def __init_subclass__(cls, **kwargs):
        pass

    return _Made(name, (), {
        "__init__": __init__, "__call__": __call__, "__getattr__": __getattr__,
        "__init_subclass__": __init_subclass__, "__module__": __name__, "_is_stub": True,
        "__enter__": lambda self: self, "__exit__": lambda self, *_: None,
        "__gt__": lambda self, other: False, "__lt__": lambda self, other: False})


class Module(types.ModuleType):
    def __getattr__(self, name):
        if name == "__version__":
            return "99.0"
        if name.startswith("__") or (self.__name__, name) in ABSENT:
            raise AttributeError(name)
        made = _make(name)
        setattr(self, name, made)
        return made


# What verl takes another branch for when it finds it.
ABSENT = {("torch", "npu"), ("torch", "musa"), ("torch", "xpu")}


class _Distribution(importlib.metadata.Distribution):
    def read_text(self, filename):
        return "Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n"

    def locate_file(self, path):
        return path


class StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, packages):
        self.packages = set(packages)

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.packages and name not in ABSENT_MODULES:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []

    def find_distributions(self, context):
        """verl asks the metadata which vLLM is there before it imports what is made for it."""
        return [_Distribution()] if context.name == "vllm" else []


ABSENT_MODULES = {"torch.npu", "torch_npu"}


def install(packages):
    sys.meta_path.insert(0, StubFinder(packages))
