# SPDX-License-Identifier: Apache-2.0
"""The table of verl's functions against verl's own files, by their syntax trees."""
import ast

import pytest

from verl_wheels import CACHE, VERSIONS
from tidegate.verl import versions

pytestmark = pytest.mark.skipif(not CACHE.is_dir(), reason="no verl here: it needs Python 3.10")


def tree(version, module):
    path = CACHE / version / (module.replace(".", "/") + ".py")
    return ast.parse(path.read_text()) if path.is_file() else None


def find(version, target):
    """The function's node in verl's own file, or None."""
    node = tree(version, target.module)
    for name in target.attribute.split("."):
        node = next((child for child in (node.body if node else ())
                     if getattr(child, "name", None) == name), None)
    return node


@pytest.mark.parametrize("version", VERSIONS)
def test_every_row_is_in_its_version(version):
    missing = [str(target) for target in versions.targets(versions.parse(version))
               if find(version, target) is None]
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_other_versions_are_really_gone(version):
    """A row ends where verl has dropped the function, or where another row takes its place."""
    mine = set(versions.targets(versions.parse(version)))
    kept = [str(target) for target in versions.TARGETS
            if target not in mine and find(version, target) is not None]
    # From 0.9 on the platform stands below the one; Ray has made the others its own before 0.7.1.
    if version >= "0.9":
        allowed = {"verl.utils.device.set_expandable_segments"}
    elif version < "0.7.1":
        server = "verl.workers.rollout.sglang_rollout.async_sglang_server.SGLangHttpServer"
        allowed = {f"{server}.sleep", f"{server}.wake_up"}
    else:
        allowed = set()
    assert set(kept) <= allowed


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_trainers_four_seams(version):
    seams = {target.seam for target in versions.targets(versions.parse(version))}
    assert {versions.HAND_OVER, versions.ALLOCATOR, versions.RESUME, versions.STEP} <= seams


@pytest.mark.parametrize("text, version", [
    ("0.9.1", (0, 9, 1)), ("0.10.0.dev", (0, 10, 0)), ("0.9.1rc2", (0, 9, 1)), ("", ()),
    ("main", ()),
])
def test_versions_are_read_as_numbers(text, version):
    assert versions.parse(text) == version


def test_a_version_that_is_too_old_has_no_rows_and_a_newer_one_the_newest():
    assert versions.targets((0, 6, 0)) == ()
    assert versions.targets((0, 10, 0)) == versions.targets((0, 9, 1))
