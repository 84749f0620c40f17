# SPDX-License-Identifier: Apache-2.0
"""The table of verl's functions against verl's own files, by their syntax trees."""
import ast

import pytest

from verl_wheels import CACHE, ROOT, TORCH, VERSIONS, needs_verl
from tidegate.verl import versions

pytestmark = needs_verl
OURS = ROOT / "python" / "tidegate" / "verl"
# Those that only pass on take anything.
PASSING = {versions.STEP, versions.SERVER}


def rows(version):
    """The table's rows for a version, with those that only a user's word brings."""
    return versions.targets(versions.parse(version), versions.ASKED)


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
    missing = [str(target) for target in rows(version)
               if find(version, target) is None]
    assert missing == []


@pytest.mark.parametrize("version", VERSIONS)
def test_rows_of_other_versions_are_really_gone(version):
    """A row ends where verl has dropped the function, or where another row takes its place."""
    mine = set(rows(version))
    kept = [str(target) for target in versions.TARGETS
            if target not in mine and find(version, target) is not None]
    # From 0.9 on the platform stands below the one; Ray has made the others its own before 0.7.1.
    if version >= "0.9":
        allowed = {"verl.utils.device.set_expandable_segments"}
    elif version < "0.7.1":
        server = "verl.workers.rollout.sglang_rollout.async_sglang_server.SGLangHttpServer"
        allowed = {f"{server}.sleep", f"{server}.wake_up"}
        # Megatron's took fewer arguments: that old, nothing is offloaded for it.
        allowed |= {str(target) for target in versions.TARGETS if target.seam == versions.OFFLOAD}
    else:
        allowed = set()
    assert set(kept) <= allowed


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_has_the_trainers_four_seams(version):
    seams = {target.seam for target in versions.targets(versions.parse(version))}
    assert {versions.HAND_OVER, versions.ALLOCATOR, versions.RESUME, versions.STEP} <= seams


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_not_asked_for_has_no_rows(version):
    plain = versions.targets(versions.parse(version))
    assert {target.seam for target in plain}.isdisjoint(versions.ASKED)
    asked = [target for target in rows(version) if target not in plain]
    assert len(asked) == (8 if version >= "0.7.1" else 0)


@pytest.mark.parametrize("text, version", [
    ("0.9.1", (0, 9, 1)), ("0.10.0.dev", (0, 10, 0)), ("0.9.1rc2", (0, 9, 1)), ("", ()),
    ("main", ()),
])
def test_versions_are_read_as_numbers(text, version):
    assert versions.parse(text) == version


def test_a_version_that_is_too_old_has_no_rows_and_a_newer_one_the_newest():
    assert versions.targets((0, 6, 0)) == ()
    assert versions.targets((0, 10, 0)) == versions.targets((0, 9, 1))


# ---- what stands for a function takes what it takes ----------------------------------------------

def functions(tree):
    return [node for node in ast.walk(tree)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def ours(name):
    """Our function of this name, inside the one that makes it."""
    found = [node for path in OURS.glob("*.py") for maker in functions(ast.parse(path.read_text()))
             for node in functions(maker) if node.name == name and node is not maker]
    assert len(found) == 1, f"{len(found)} functions {name}"
    return found[0]


@pytest.mark.parametrize("version", VERSIONS)
def test_ours_take_what_verls_take(version):
    compared = 0
    for target in rows(version):
        theirs = find(version, target)
        if any(getattr(mark, "id", "") == "property" for mark in theirs.decorator_list):
            continue
        if target.seam in PASSING:
            continue
        mine = ours(target.attribute.split(".")[-1])
        assert type(mine) is type(theirs), str(target)
        assert ast.unparse(mine.args) == ast.unparse(theirs.args), str(target)
        compared += 1
    assert compared >= 3


@pytest.mark.parametrize("version", VERSIONS)
def test_what_only_passes_on_is_awaited_where_verl_awaits(version):
    passing = [find(version, target) for target in versions.targets(versions.parse(version))
               if target.seam in PASSING]
    assert passing and all(isinstance(node, ast.AsyncFunctionDef) for node in passing)


@pytest.mark.skipif(not TORCH, reason="the real torch (1.5 GB) is for: make check-verl")
@pytest.mark.parametrize("name, file", [("empty_cache", "memory.py"),
                                        ("synchronize", "__init__.py")])
def test_the_doors_take_what_torch_takes(name, file):
    def names_and_defaults(node):
        return [arg.arg for arg in node.args.args], [ast.unparse(one) for one in node.args.defaults]

    source = (CACHE / "torch" / "torch" / "cuda" / file).read_text()
    theirs = next(node for node in ast.parse(source).body if getattr(node, "name", "") == name)
    tree = ast.parse((OURS / "platform_door.py").read_text())
    mine = next(node for node in functions(tree) if node.name == name)
    names, defaults = names_and_defaults(mine)
    assert (names[1:], defaults) == names_and_defaults(theirs)
