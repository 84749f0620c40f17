# SPDX-License-Identifier: Apache-2.0
"""Once the library is loaded it stays: a thread of it may run until the process ends."""

import subprocess
import sys

import pytest

from conftest import clean_env
from test_preload import LIBRARY, PRELOAD

CLOSE = """
import _ctypes, sys
_ctypes.dlclose(_ctypes.dlopen(sys.argv[1], 2))
with open("/proc/self/maps") as maps:
    print(sys.argv[2] in maps.read())
"""


@pytest.mark.parametrize("library", [LIBRARY, PRELOAD], ids=["library", "preload"])
def test_what_is_closed_is_mapped_still(preloadable, library):
    out = subprocess.check_output([sys.executable, "-c", CLOSE, library, library.name],
                                  env=clean_env(), text=True)
    assert out == "True\n"
