# SPDX-License-Identifier: Apache-2.0
"""Our own declarations of the GPU driver's interface are those of NVIDIA's headers."""

import os
import pathlib
import shutil
import subprocess
import sysconfig

import pytest
from conftest import ROOT

CHECK = ROOT / "test" / "abi" / "driver_abi_check.cpp"


def headers(name):
    """The folder of a header: the packages of tools/requirements-test.txt bring it."""
    site = pathlib.Path(sysconfig.get_paths()["purelib"])
    found = sorted(site.glob(f"nvidia/*/include/{name}"))
    assert found, f"no {name} below {site}/nvidia: make check installs it"
    return found[0].parent


def compile_check(sources, *flags):
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    header = "nvml.h" if "-DCHECK_NVML" in flags else "cuda.h"
    return subprocess.run(
        [compiler, "-std=c++17", "-fsyntax-only", f"-I{sources / 'src'}", f"-I{sources / 'test'}",
         "-isystem", str(headers(header)), *flags, str(CHECK)],
        capture_output=True, text=True)


@pytest.mark.parametrize("flags", [[], ["-DCHECK_NVML"]], ids=["cuda", "nvml"])
def test_declarations_are_nvidias(flags):
    done = compile_check(ROOT, *flags)
    assert done.returncode == 0, done.stderr


# Each is a mistake that the driver would not tell of.
MISTAKES = {
    "an older form": ("cuda_calls.def", "cuMemGetInfo_v2, 3020", "cuMemGetInfo, 2000", []),
    "a missing parameter": ("cuda_calls.def", "size_t offset, ", "", []),
    "another number": ("cuda_numbers.def", "UNSUPPORTED, 900", "UNSUPPORTED, 902", []),
    "another field": ("cuda_abi.h", "unsigned short usage", "unsigned usage", []),
    "an older struct": ("nvml_abi.h", "gpu_instance_id, compute_instance_id", "gpu_instance_id",
                        ["-DCHECK_NVML"]),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_found(name, tmp_path):
    file, right, wrong, flags = MISTAKES[name]
    shutil.copytree(ROOT / "src" / "device", tmp_path / "src" / "device")
    shutil.copytree(ROOT / "test" / "standin", tmp_path / "test" / "standin")
    path = tmp_path / "src" / "device" / file
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    done = compile_check(tmp_path, *flags)
    assert done.returncode != 0
    assert "error" in done.stderr
