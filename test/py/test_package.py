# SPDX-License-Identifier: Apache-2.0
"""The package as such: importing it changes nothing, a library that is missing or damaged is one
clear error, its files are those of the wheel, and what every Python from 3.9 on can read."""

import ast
import os
import pathlib
import re

import pytest

from conftest import ROOT

PACKAGE = ROOT / "python" / "tidegate"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_source_is_of_the_oldest_python(path):
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))


def test_every_file_is_installed():
    listed = set(re.findall(r"^  '(tidegate/[^']+)',$",
                            (ROOT / "python" / "meson.build").read_text(), re.MULTILINE))
    files = {str(path.relative_to(PACKAGE.parent)) for path in PACKAGE.rglob("*")
             if path.is_file() and "__pycache__" not in path.parts}
    assert listed == files


def test_importing_changes_nothing(python, tmp_path):
    """No module of torch's, no thread, no descriptor, no variable, no file, and not the library."""
    result = python("""
import os, sys, threading
def state():
    with open("/proc/self/maps") as maps:
        opened = "libtidegate" in maps.read()
    return (dict(os.environ), threading.active_count(), sorted(os.listdir("/proc/self/fd")), opened)
import ctypes, dataclasses, inspect, pathlib, sysconfig, typing, weakref
before = state()
import tidegate
assert state() == before, (before, state())
assert "torch" not in sys.modules
print(tidegate.mode())
""")
    assert (result.status, result.out, result.err) == (0, "off\n", "")
    assert list(tmp_path.iterdir()) == []


MISSING = """
import tidegate
from tidegate import card, library
print(library.is_usable(), card.is_usable())
for call in (tidegate.reclaim, tidegate.status, tidegate.sleep, lambda: tidegate.tag("x"),
             tidegate.wake):
    try:
        call()
    except tidegate.LibraryMissing as problem:
        print(problem)
tidegate.set_mode("on")
tidegate.off()
"""


@pytest.mark.parametrize("kind", ["missing", "empty", 4000, 0.5, -1, "another"])
def test_a_library_that_cannot_be_used_is_one_clear_error(python, library, tmp_path, kind):
    path = tmp_path / "libtidegate.so"
    whole = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).read_bytes()
    if kind == "another":  # a library, but not ours
        path = pathlib.Path("libc.so.6")
    elif kind != "missing":
        cut = 0 if kind == "empty" else int(len(whole) * kind) if kind == 0.5 else kind
        path.write_bytes(whole[:cut])
    result = python(MISSING, TIDEGATE_LIBRARY=str(path))
    assert result.status == 0, result.err
    lines = result.out.splitlines()
    assert lines[0] == "False False"
    assert len(lines) == 6 and len(set(lines[1:])) == 1
    assert "libtidegate.so cannot be used" in lines[1] and str(path) in lines[1]
    assert "TIDEGATE_LIBRARY" in lines[1]
    assert result.err == ""


@pytest.mark.parametrize("kind", ["pipe", "offset beyond all"])
def test_what_is_no_library_is_not_waited_for_nor_trusted(python, library, tmp_path, kind):
    path = tmp_path / "libtidegate.so"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        head = bytearray(pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).read_bytes()[:4096])
        head[32:40] = b"\xff" * 8  # where its table of segments is
        path.write_bytes(head)
    result = python(MISSING, TIDEGATE_LIBRARY=str(path))
    assert result.status == 0, result.err
    assert f"cannot be used: {path} is {'no file' if kind == 'pipe' else 'cut off'}" in result.out


def test_status_of_a_node_where_nobody_is(python, tmp_path):
    result = python("import tidegate; print(repr(tidegate.status()), tidegate.status(), sep='\\n')")
    assert result.out.splitlines() == ["Status(devices=(), tenants=(), host_bytes=0)",
                                       "no program uses Tidegate on this machine now"], result.err
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize("status", [-1, -22, -4107, -4113, -9999])
def test_errors_carry_status_and_sentence(status):
    from tidegate import errors
    problem = errors.from_status(status, "a sentence", 7)
    assert (problem.status, problem.text, problem.native) == (status, "a sentence", 7)
    assert str(problem) == "a sentence"
    assert isinstance(problem, errors.TidegateError)


def test_an_unknown_tag_is_a_key_error_that_reads_as_a_sentence():
    from tidegate import errors
    problem = errors.UnknownTag(0, "there is no tag 'x'")
    assert isinstance(problem, KeyError) and str(problem) == "there is no tag 'x'"


def test_exported_names_exist():
    import tidegate
    assert all(hasattr(tidegate, name) for name in tidegate.__all__)
