# SPDX-License-Identifier: Apache-2.0
"""The project's own checks find what is planted for them: a check that cannot fail is none."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN_TESTS = ROOT / "tools" / "run-tests"


@pytest.mark.parametrize("name", ["check-layers", "check-size", "check-symbols"])
def test_check_finds_planted_faults(name):
    done = subprocess.run([sys.executable, ROOT / "tools" / name, "--self-test"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planted faults found" in done.stdout


def run_tests(tmp_path, monkeypatch, c_log, c_status, pytest_file=None):
    """tools/run-tests with a stand-in `meson` that leaves this log and status."""
    build = tmp_path / "build"
    (build / "meson-logs").mkdir(parents=True)
    stand_in = tmp_path / "bin" / "meson"
    stand_in.parent.mkdir()
    stand_in.write_text(f"#!/bin/sh\ncat >{build}/meson-logs/testlog.json <<'EOF'\n{c_log}EOF\n"
                        f"exit {c_status}\n")
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", str(stand_in.parent), prepend=":")
    command = [sys.executable, RUN_TESTS, build]
    if pytest_file is not None:
        path = tmp_path / "test_sample.py"
        path.write_text(pytest_file)
        command += ["--pytest", sys.executable, "--", "-p", "no:cacheprovider", path]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()[-1]


CHECK_OK = '{"result": "OK", "stdout": "Running\\n100%: Checks: 12, Failures: 0, Errors: 0\\n"}\n'
CHECK_BAD = '{"result": "FAIL", "stdout": "50%: Checks: 4, Failures: 1, Errors: 1\\n"}\n'
PLAIN_OK = '{"result": "OK", "stdout": ""}\n'
PLAIN_SKIP = '{"result": "SKIP", "stdout": ""}\n'
DIED_AFTER_COUNT = '{"result": "FAIL", "stdout": "100%: Checks: 3, Failures: 0, Errors: 0\\n"}\n'


@pytest.mark.parametrize("log, meson_status, status, line", [
    (CHECK_OK + PLAIN_OK + PLAIN_SKIP, 0, 0, "13 passed, 0 failed, 1 skipped"),
    (CHECK_OK + CHECK_BAD, 1, 1, "14 passed, 2 failed, 0 skipped"),
    (DIED_AFTER_COUNT, 1, 1, "3 passed, 1 failed, 0 skipped"),
    (PLAIN_OK, 1, 2, "1 passed, 0 failed, 0 skipped"),
    ("", 0, 2, "0 passed, 0 failed, 0 skipped"),
])
def test_run_tests_counts_c_tests(tmp_path, monkeypatch, log, meson_status, status, line):
    assert run_tests(tmp_path, monkeypatch, log, meson_status) == (status, line)


def test_run_tests_counts_pytest(tmp_path, monkeypatch):
    sample = ("import pytest\n"
              "def test_good(): pass\n"
              "def test_bad(): assert False\n"
              "@pytest.mark.skip\ndef test_skipped(): pass\n"
              "@pytest.fixture\ndef broken(): raise ValueError\n"
              "def test_error(broken): pass\n")
    assert run_tests(tmp_path, monkeypatch, CHECK_OK, 0, sample) == (
        1, "13 passed, 2 failed, 1 skipped")


def test_run_tests_fails_when_pytest_collects_nothing(tmp_path, monkeypatch):
    assert run_tests(tmp_path, monkeypatch, CHECK_OK, 0, "") == (
        2, "12 passed, 0 failed, 0 skipped")
