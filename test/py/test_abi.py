# SPDX-License-Identifier: Apache-2.0
"""What the package says of the public headers is what the headers say: sizes and offsets of structs
by a program that is compiled here, constants and error codes by the same, arguments by counting."""

import ctypes
import json
import re
import shutil
import subprocess

import pytest

from conftest import ROOT
from tidegate import abi, errors
from tidegate.library import VERSION

HEADERS = sorted((ROOT / "include" / "tidegate").glob("*.h"))
CONSTANTS = {
    "TG_LEDGER_DEVICES": abi.LEDGER_DEVICES,
    "TG_LEDGER_TENANTS": abi.LEDGER_TENANTS,
    "TG_TENANT_TAGS": abi.TENANT_TAGS,
    "TG_TENANT_NAME_BYTES": abi.TENANT_NAME_BYTES,
    "TG_TENANT_ROLE_BYTES": abi.TENANT_ROLE_BYTES,
    "TG_TENANT_SEAMS_BYTES": abi.TENANT_SEAMS_BYTES,
    "TG_TAG_NAME_BYTES": abi.TAG_NAME_BYTES,
    "TG_RECEIPT_ITEMS": abi.RECEIPT_ITEMS,
    "TG_START_NONE": abi.START_NONE,
    "TG_START_UP": abi.START_UP,
    "TG_START_GIVING": abi.START_GIVING,
    "TG_BACKUP_NONE": abi.BACKUP_NONE,
    "TG_BACKUP_HOST": abi.BACKUP_HOST,
    **{f"TG_MODE_{name.upper()}": number for number, name in enumerate(abi.MODES)},
    **{f"TG_TAG_{name.upper()}": number for number, name in enumerate(abi.TAG_STATES)},
    **{f"TG_GROWTH_{name.upper()}": number for number, name in enumerate(abi.GROWTH_KINDS)},
    "TG_LIST_LEAKS": abi.LIST_LEAKS, "TG_LIST_UNKNOWN": abi.LIST_UNKNOWN,
    **errors.CODES,
}


def _fields(struct):
    return [field[0] for field in struct._fields_]


def _program():
    """Prints one JSON object: what the compiler makes of the headers."""
    lines = ["#include <stddef.h>", "#include <stdio.h>"]
    lines += [f"#include <tidegate/{path.name}>" for path in HEADERS]
    lines += ["int main(void) {", '    puts("{");']
    for name, struct in abi.structs().items():
        lines.append(f'    printf("\\"{name}\\": %zu,\\n", sizeof(struct {name}));')
        for field in _fields(struct):
            lines.append(f'    printf("\\"{name}.{field}\\": %zu,\\n", '
                         f'offsetof(struct {name}, {field}));')
    for name in CONSTANTS:
        lines.append(f'    printf("\\"{name}\\": %d,\\n", {name});')
    return "\n".join([*lines, '    puts("\\"\\": 0}");', "    return 0;", "}", ""])


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("abi")
    (folder / "abi.c").write_text(_program())
    subprocess.run([compiler, "-std=c17", "-I", ROOT / "include", "-o", folder / "abi",
                    folder / "abi.c"], check=True)
    return json.loads(subprocess.run([folder / "abi"], check=True, capture_output=True).stdout)


@pytest.mark.parametrize("name", sorted(abi.structs()))
def test_struct_lies_as_the_compiler_lays_it(compiled, name):
    struct = abi.structs()[name]
    assert ctypes.sizeof(struct) == compiled[name]
    for field in _fields(struct):
        assert getattr(struct, field).offset == compiled[f"{name}.{field}"], field


def test_constants_and_error_codes(compiled):
    assert {name: compiled[name] for name in CONSTANTS} == CONSTANTS


def test_every_error_code_has_a_name():
    listed = re.findall(r"^TG_ERROR\((\w+),", (ROOT / "include/tidegate/errors.def").read_text(),
                        re.MULTILINE)
    assert sorted(listed) == sorted(errors.CODES)


def _declared():
    """Name -> number of arguments of every exported function."""
    found = {}
    for path in HEADERS:
        text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
        text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
        for declaration in re.findall(r"\bTG_API\b([^;]*);", text):
            name, arguments = re.search(r"(\w+)\s*\((.*)\)", declaration, re.DOTALL).groups()
            found[name] = 0 if arguments.strip() == "void" else arguments.count(",") + 1
    return found


@pytest.mark.parametrize("name", sorted(abi.FUNCTIONS))
def test_function_takes_as_many_arguments(name):
    declared = _declared()
    assert name in declared
    assert len(abi.FUNCTIONS[name][1]) == declared[name]


def test_version_is_that_of_the_headers(library):
    text = (ROOT / "include/tidegate/tidegate.h").read_text()
    parts = [re.search(rf"TG_VERSION_{part} (\d+)", text).group(1)
             for part in ("MAJOR", "MINOR", "PATCH")]
    assert VERSION == ".".join(parts)
    assert library.call("tg_version").decode() == VERSION
