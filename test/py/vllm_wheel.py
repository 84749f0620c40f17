# SPDX-License-Identifier: Apache-2.0
"""Single files of vLLM's own wheel, unpacked for tests; where the wheel is not there, they are
skipped. `make check-engines` brings it."""

import pathlib
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = "0.24.0"
FILES = ("vllm/device_allocator/__init__.py", "vllm/device_allocator/cumem.py",
         "vllm/v1/worker/gpu_worker.py")
_WHEELS = sorted((ROOT / ".cache" / "engines" / "vllm").glob(f"vllm-{VERSION}-*.whl"))

needs_vllm = pytest.mark.skipif(
    not _WHEELS or sys.version_info < (3, 10),
    reason=f"the wheel of vLLM {VERSION} (266 MiB) is for: make check-engines, with Python 3.10")


def unpack(folder):
    """Writes the files under the folder, which can then be put on Python's path."""
    with zipfile.ZipFile(_WHEELS[0]) as wheel:
        for name in FILES:
            wheel.extract(name, folder)
    return folder
