# SPDX-License-Identifier: Apache-2.0
"""The 40 lines of test/gpu/runtime_lines.c over the toy runtimes, with the preload and without; and
the part of bench/card that compares them on a card."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from card_scripts import CARD as SCRIPTS
from conftest import ROOT, run

BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
TOYS = BUILD / "test" / "toycudart"
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
CARD = "capacity=64MiB,context=0"
ON = {"TIDEGATE": "on", "TIDEGATE_DEFAULT_TAG": "lines", "LD_PRELOAD": str(PRELOAD)}
EXPECTED = (ROOT / "test/gpu/runtime_lines.txt").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def built(preloadable):
    if not (TOYS / "lines12").exists():
        pytest.fail(f"{TOYS}/lines12 is not there: build it (make all)")


def environment(tmp_path, **more):
    return {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"), "TIDEGATE_STANDIN": CARD,
            "TIDEGATE_DIR": str(tmp_path / "node"), **more}


@pytest.mark.parametrize("number", ["12", "13"])
@pytest.mark.parametrize("card", ["64MiB,context=0", "1GiB,context=2"])
@pytest.mark.parametrize("mode", ["without", "off", "on"])
def test_the_lines_are_the_same(tmp_path, number, card, mode):
    env = environment(tmp_path, TIDEGATE_STANDIN=f"capacity={card}")
    env.update({"without": {}, "off": {**ON, "TIDEGATE": "off"}, "on": ON}[mode])
    seen = run(TOYS / f"lines{number}", env=env)
    assert (seen.status, seen.out, seen.err) == (0, EXPECTED, "")
    assert len(seen.out.splitlines()) == 40
    # A tenant has joined: the lines are ours then.
    assert (tmp_path / "node" / "ledger").exists() == (mode == "on")


def test_without_a_card_it_says_so(tmp_path):
    seen = run(TOYS / "lines12", env=environment(tmp_path, TIDEGATE_STANDIN=""))
    assert (seen.status, seen.out) == (77, "") and "no card can be used: 100" in seen.err


# ---- the part for a card ------------------------------------------------------------------------

def compared(tmp_path, *runtimes, **env):
    """Exit status and rows by name of bench/card/runtime_lines.py."""
    words = [word for runtime in runtimes for word in ("--runtime", runtime)]
    done = subprocess.run(
        [sys.executable, "-B", SCRIPTS / "runtime_lines.py", "--results", tmp_path / "results",
         *words], text=True, capture_output=True, check=False,
        env={**os.environ, "TIDEGATE_LIBRARY": str(BUILD / "src" / "libtidegate.so"),
             **environment(tmp_path, **env)})
    assert done.stderr == ""
    result = next((tmp_path / "results").iterdir())
    rows = json.loads(result.read_text(encoding="utf-8"))["rows"]
    return done.returncode, {row["name"]: row for row in rows}


def test_both_runs_are_compared(tmp_path):
    status, rows = compared(tmp_path, TOYS / "libcudart.so.12", TOYS / "libcudart.so.13")
    assert status == 0
    assert {name: (row["value"], row["pass"]) for name, row in rows.items()} == {
        f"libcudart.so.{number}: {what}": answer for number in ("12", "13") for what, answer in (
            ("lines", (40, True)), ("lines that the preload changes", (0, True)),
            ("bytes on stderr under the preload", (0, True)),
            ("lines that differ from those expected", (0, None)))}


def test_a_line_that_the_preload_changes_fails(tmp_path):
    """Here one that is not ours and keeps an error to itself."""
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "libtidegate.so").write_bytes(b"")
    source = "int cudaPeekAtLastError(void) { return 0; }"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libtidegate-preload.so", "-x", "c",
                    "-"], input=source, text=True, check=True)
    status, rows = compared(tmp_path, TOYS / "libcudart.so.12",
                            TIDEGATE_LIBRARY=str(folder / "libtidegate.so"))
    row = rows["libcudart.so.12: lines that the preload changes"]
    wrong = sum(" last error 0 " not in line for line in EXPECTED.splitlines())
    assert (status, row["value"], row["pass"]) == (1, 2 * wrong, False)
    assert "+ 2 cudaMalloc into NULL: 1, last error 0 1 0" in row["raw"]


def test_what_the_preload_says_fails(tmp_path):
    """Here that the ledger cannot be used."""
    (tmp_path / "node" / "ledger").mkdir(parents=True)
    (tmp_path / "node").chmod(0o700)
    status, rows = compared(tmp_path, TOYS / "libcudart.so.12")
    row = rows["libcudart.so.12: bytes on stderr under the preload"]
    assert status == 1 and row["pass"] is False and "without the ledger" in row["raw"]


def test_without_a_card_there_are_no_figures(tmp_path):
    status, rows = compared(tmp_path, TOYS / "libcudart.so.12", TIDEGATE_STANDIN="")
    row = rows["libcudart.so.12: lines without the preload"]
    assert (status, row["value"]) == (0, None) and "no card can be used: 100" in row["reason"]
