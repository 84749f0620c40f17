# SPDX-License-Identifier: Apache-2.0
"""What all tests share: where the programs are, how to run them, the recordings.

A program that is missing is an error, never a skipped test: a suite that skips what was not built
is green for the wrong reason."""

import json
import lzma
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DATA = ROOT / "test" / "data"
sys.path.insert(0, str(ROOT / "test"))
sys.path.insert(0, str(ROOT / "python"))

MIB = 1 << 20


def _program(variable, default):
    path = pathlib.Path(os.environ.get(variable) or ROOT / default)
    if not os.access(path, os.X_OK):
        pytest.exit(f"{path} is not there or cannot be run: build it (make all), or set {variable}",
                    returncode=2)
    return str(path)


def pytest_configure(config):
    """Finds the programs before anything runs."""
    config.tidegate = _program("TIDEGATE_BIN", "build/cli/tidegate")
    config.dump = _program("TIDEGATE_DUMP", "build/test/dump_snapshot")
    # The library of the same build is what the package opens, here and in children.
    os.environ["TIDEGATE_LIBRARY"] = str(
        pathlib.Path(config.tidegate).resolve().parents[1] / "src" / "libtidegate.so")


class Result:
    """How a run ended."""

    def __init__(self, status, out, err, peak_bytes):
        self.status = status  # negative: died of this signal
        self.out = out.decode("utf-8", "surrogateescape")
        self.err = err.decode("utf-8", "surrogateescape")
        self.peak_bytes = peak_bytes

    def json(self):
        """The one object on stdout."""
        assert self.status in (0, 3), f"status {self.status}: {self.err}"
        return json.loads(self.out)


def clean_env(**more):
    """The environment without what would change the command's answers; `more` is added."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE")}
    return {**env, "LC_ALL": "C", **more}


def run(program, *args, stdin=None, limit_bytes=None, timeout=120, cwd=None, env=None):
    """Runs a program. With limit_bytes it gets no more address space than that."""
    def bound():
        if limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    env = clean_env(**(env or {}))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            [program, *map(str, args)], stdout=out, stderr=err, preexec_fn=bound, env=env, cwd=cwd,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE)
        timer = threading.Timer(timeout, child.kill)
        timer.start()
        if stdin is not None:
            _feed(child.stdin, stdin)
        _, status, usage = os.wait4(child.pid, 0)  # subprocess does not tell the peak
        timer.cancel()
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        return Result(child.returncode, out.read(), err.read(), usage.ru_maxrss * 1024)


def _feed(pipe, data):
    """A reader may stop reading: that is its right."""
    try:
        pipe.write(data)
        pipe.close()
    except BrokenPipeError:
        pass


@pytest.fixture(scope="session")
def tidegate(request):
    """tidegate(*args, stdin=…, limit_bytes=…) -> Result"""
    def call(*args, **kw):
        return run(request.config.tidegate, *args, **kw)

    call.program = request.config.tidegate
    return call


@pytest.fixture(scope="session")
def dump(request):
    """dump(*args) -> Result of the program that prints what the reader holds"""
    return lambda *args, **kw: run(request.config.dump, *args, **kw)


@pytest.fixture(scope="session")
def preloadable():
    """The preload stands before programs of this build: one without a sanitizer's runtime cannot
    have an object with one preloaded."""
    preload = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parent / "libtidegate-preload.so"
    if not preload.exists():
        pytest.fail(f"{preload} is not there: build it (make all)")
    if b"__asan_init" in preload.read_bytes():
        pytest.skip("this build's preload needs a sanitizer's runtime")


@pytest.fixture(scope="session")
def library(request):
    """The package's loader. A library that was built with a sanitizer can only be opened by a
    program that was, too."""
    if b"__asan_init" in pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).read_bytes():
        pytest.skip("this build's library needs a sanitizer's runtime, which Python has not")
    from tidegate import library as loader
    return loader


@pytest.fixture
def python(library, tmp_path):
    """python(code, **environment) -> Result of a Python of its own with the package on its path,
    in an empty folder, with a ledger of its own."""
    def call(code, *arguments, **env):
        env = {"PYTHONPATH": str(ROOT / "python"), "TIDEGATE_DIR": str(tmp_path / "node"),
               "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"], **env}
        return run(sys.executable, "-c", code, *arguments, cwd=tmp_path, env=env)

    return call


@pytest.fixture
def tell(python, request):
    """tell(code, …) -> what the code printed as JSON, run behind the module's BEGIN; over the
    driver that stands in, where the module says in STANDIN what it has, or the call in standin=…"""
    usual = getattr(request.module, "STANDIN", None)
    driver = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1] / "test" / "standin"
    if usual is not None and not (driver / "libcuda.so.1").exists():
        pytest.fail(f"{driver} has no driver: build it (make all)")

    def call(code, standin=usual, **env):
        if standin is not None:
            env = {"TIDEGATE_STANDIN": standin, "LD_LIBRARY_PATH": str(driver), **env}
        result = python(request.module.BEGIN + code, **env)
        assert result.status == 0, result.err
        return json.loads(result.out)

    return call


@pytest.fixture(scope="session")
def raw(tmp_path_factory):
    """raw(name) -> path of a recording without its compression"""
    folder = tmp_path_factory.mktemp("raw")

    def unpack(name):
        path = folder / re.sub(r"\.xz$", "", name).replace("/", "+")
        if not path.exists():
            path.write_bytes(lzma.open(DATA / name).read())
        return path

    return unpack


@pytest.fixture(scope="session")
def bounded(request):
    """bounded(bytes of the file) -> address space to run in. A sanitizer needs terabytes of it:
    there the bound is off, and the sanitizer itself watches."""
    data = pathlib.Path(request.config.tidegate).read_bytes()
    if b"__asan_init" in data or b"__msan_init" in data or b"__tsan_init" in data:
        return lambda size: None
    return lambda size: 64 * MIB + 2 * size + 320 * MIB


def crashed(result):
    """Died of a signal, or a sanitizer's word."""
    return result.status < 0 or result.status > 3 or "Sanitizer" in result.err
