# SPDX-License-Identifier: Apache-2.0
"""How the CUDA runtime answers what is wrong: the same 40 lines with the preload and without?

    runtime_lines.py [--quick] [--results DIR] [--runtime LIBCUDART]...

Builds test/gpu/runtime_lines.c against each libcudart that is found in the folders of Python's
packages and where CUDA is installed, and runs it twice. Differences between the two runs must be
none; those to test/gpu/runtime_lines.txt, which says what the documentation promises and what was
taken to be so where it is silent, are told. Rows go to runtime_lines-DATE.json.
"""
import difflib
import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from card_results import ROOT, no_row, parser, row, write_results
from stock import objects

SOURCE = ROOT / "test" / "gpu" / "runtime_lines.c"
PATTERNS = ("nvidia/*/lib/libcudart.so.1[23]", "torch/lib/libcudart*.so*")
INSTALLED = ("/usr/local/cuda*/lib64/libcudart.so.1[23]", "/usr/local/lib/libcudart.so.1[23]")
LIMIT_S = 60


def runtimes():
    """One file of each number."""
    places = {sysconfig.get_paths()[name] for name in ("purelib", "platlib")}
    places.update(path for path in sys.path if path.endswith("-packages"))
    found = [path for place in sorted(places) for pattern in PATTERNS
             for path in sorted(Path(place).glob(pattern))]
    found += [path for pattern in INSTALLED for path in sorted(Path("/").glob(pattern[1:]))]
    return list({path.name: path for path in reversed(found)}.values())


def build(runtime, folder):
    program = Path(folder) / f"lines-{runtime.name}"
    done = subprocess.run([os.environ.get("CC", "gcc"), "-std=c17", "-O1", "-o", str(program),
                           str(SOURCE), str(runtime), f"-Wl,-rpath,{runtime.parent}", "-lpthread"],
                          text=True, capture_output=True, check=False)
    return program if done.returncode == 0 else None, done.stderr[-400:]


def said(program, preload=None):
    """(lines, stderr), or None and the reason."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TIDEGATE")}
    if preload is not None:
        env.update(LD_PRELOAD=str(preload), TIDEGATE="on", TIDEGATE_DEFAULT_TAG="lines")
    try:
        done = subprocess.run([str(program)], text=True, capture_output=True, check=False, env=env,
                              timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {LIMIT_S} s"
    if done.returncode != 0:
        return None, f"exit {done.returncode}: {done.stderr[-400:]}"
    return done.stdout.splitlines(), done.stderr


def differences(before, after):
    return [line for line in difflib.unified_diff(before, after, lineterm="", n=0)
            if line[0] in "+-" and line[:3] not in ("+++", "---")]


def rows_of(runtime, preload, folder):
    name = runtime.name
    program, why = build(runtime, folder)
    plain, plain_why = said(program) if program is not None else (None, why)
    if plain is None:
        return [no_row(f"{name}: lines without the preload", plain_why)]
    ours, why = said(program, preload)
    if ours is None:
        failed = no_row(f"{name}: lines under the preload", why)
        failed["pass"] = False
        return [failed]
    expected = SOURCE.with_suffix(".txt").read_text().splitlines()
    changed, other = differences(plain, ours), differences(expected, plain)
    return [row(f"{name}: lines", "", len(plain), ("==", 40), {"plain": plain}),
            row(f"{name}: lines that the preload changes", "", len(changed), ("==", 0), changed),
            row(f"{name}: bytes on stderr under the preload", "", len(why), ("==", 0), why),
            row(f"{name}: lines that differ from those expected", "", len(other), None, other)]


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--runtime", action="append", type=Path)
    options = arguments.parse_args()
    pair, why = objects()
    found = options.runtime or runtimes()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for runtime in found if pair else []:
            rows += rows_of(runtime.absolute(), pair[1], folder)
    if not rows:
        rows.append(no_row("lines under the preload", why or "no libcudart is found here"))
    write_results(options, "runtime_lines", rows)
    sys.exit(any(made["pass"] is False for made in rows))


if __name__ == "__main__":
    main()
