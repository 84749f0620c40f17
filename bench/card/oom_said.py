# SPDX-License-Identifier: Apache-2.0
"""Out of memory beside another tenant: is it said who holds the card, and is torch's error its own?

    oom_said.py [--carried DIR] [--quick]

A tenant "rollout" holds a quarter of the card in a tag. A trainer keeps tensors, then asks for more
than the card has: once without Tidegate, then five times in one go with TIDEGATE=observe, while
torch records stacks. Rows go to oom_said-DATE.json.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from card_results import GIB, no_row, parser, row, write_results

TRIES = 5
PIECES = 4
NUMBER = re.compile(r"\d+(\.\d+)?")


def hold(share):
    """The other tenant: holds until its stdin ends."""
    import torch

    import tidegate
    torch.zeros(1, device="cuda")
    size = int(torch.cuda.mem_get_info()[1] * share)
    block = tidegate.tag("weights").alloc(size)
    tidegate.reclaim(0)  # tells the ledger what the context takes
    print(json.dumps({"bytes": block.size_bytes}), flush=True)
    sys.stdin.read()


def fail():
    """One error of torch's: its class, its text, and how long it took."""
    import torch
    begun = time.perf_counter()
    try:
        torch.empty(2 * torch.cuda.mem_get_info()[1], dtype=torch.uint8, device="cuda")
    except Exception as problem:
        kind = type(problem)
        return {"class": f"{kind.__module__}.{kind.__name__}",
                "is_torchs": kind is torch.OutOfMemoryError, "text": str(problem),
                "ms": (time.perf_counter() - begun) * 1e3}
    return None


def starve(quick):
    """The trainer."""
    import torch

    import tidegate
    torch.cuda.memory._record_memory_history("state", context="state", stacks="python")
    size = GIB // 8 if quick else 2 * GIB
    kept = [torch.ones(size, dtype=torch.uint8, device="cuda") for _ in range(PIECES)]  # kept
    plain = fail()
    tidegate.set_mode("observe")
    tidegate.step()
    before = torch.cuda.memory_reserved()
    errors = [fail() for _ in range(TRIES)]
    print("SEEN " + json.dumps({
        "plain": plain, "errors": errors, "kept_bytes": sum(map(len, kept)),
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": [before, torch.cuda.memory_reserved()]}), flush=True)


def run(quick, folder):
    """Both processes; returns what the trainer saw and said, and what the other one holds."""
    environment = {**os.environ, "TIDEGATE_DIR": str(folder / "ledger"), "RANK": ""}
    command = [sys.executable, __file__]
    other = subprocess.Popen([*command, "--hold", "0.05" if quick else "0.25"], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             env={**environment, "TIDEGATE": "observe",
                                  "TIDEGATE_NAME": "rollout"})
    try:
        line = other.stdout.readline()
        done = subprocess.run([*command, "--starve", *(["--quick"] if quick else [])], text=True,
                              env={**environment, "TIDEGATE": "off",
                                   "TIDEGATE_OUT": str(folder / "out")},
                              capture_output=True, check=False, timeout=180)
    finally:
        other.communicate(timeout=60)
    seen = re.search(r"^SEEN (.*)$", done.stdout, re.M)
    lines = [json.loads(text) for path in sorted((folder / "out").glob("*.jsonl"))
             for text in path.read_text().splitlines()]
    return {"held_bytes": json.loads(line)["bytes"] if line else 0,
            "seen": json.loads(seen.group(1)) if seen else None,
            "said": done.stderr.splitlines()[-40:],
            "lines": [one for one in lines if one["event"] == "oom"]}


def made_at():
    """The line that makes what is kept: found by its comment, so that edits do not matter."""
    lines = Path(__file__).read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if line.endswith("# kept"))


def rows_of_errors(seen):
    """torch's own errors are what they were."""
    errors, plain = seen["errors"], seen["plain"]
    texts = {NUMBER.sub("N", one["text"]) for one in [plain, *errors]}
    return [
        row("oom: errors that are torch.OutOfMemoryError", plain["class"],
            sum(bool(one and one["is_torchs"]) for one in errors), ("==", TRIES)),
        row("oom: texts of torch's error, with and without, but for figures", "",
            len(texts), ("==", 1), sorted(texts)),
        row("oom: what telling has allocated on the card, MiB", "torch's reserved memory",
            (seen["reserved_bytes"][1] - seen["reserved_bytes"][0]) / 2 ** 20, ("==", 0)),
        row("oom: the first error with its account, ms", f"without {plain['ms']:.1f} ms",
            errors[0]["ms"]),
    ]


def rows_of_account(result, account):
    """What was said of who holds the card, by the truth."""
    own = {item["item"]: item["size_bytes"] for item in account["account"]["own"]}
    others = {one["name"]: sum(tag["occupied_bytes"] for tag in one["tags"]
                               if tag["name"] == "weights")
              for one in account["account"]["others"]}
    site = f"oom_said.py:{made_at()}"
    at = [one["size_bytes"] for one in account["sites"] if one["where"].startswith(site)]
    seen = result["seen"]
    return [
        row("oom: the other tenant's tag, by the truth", "rollout: weights",
            abs(others.get("rollout", 0) / result["held_bytes"] - 1), ("<=", 0.01), others),
        row("oom: live, by torch's count", "",
            abs(own.get("live", 0) / seen["allocated_bytes"] - 1), ("<=", 0.01), own),
        row("oom: the line that holds most, by the truth", site,
            abs((at[0] if at else 0) / seen["kept_bytes"] - 1), ("<=", 0.01), account["sites"]),
        row("oom: unattributed, of what is used", "with tenants alone on the card",
            account["account"]["unattributed_bytes"] / account["driver_used_bytes"],
            ("<=", 0.01)),
    ]


def judge(result):
    """All rows of a run."""
    if result["seen"] is None or None in [result["seen"]["plain"], *result["seen"]["errors"]]:
        failed = no_row("oom", f"the trainer did not run out of memory: {result['said'][-3:]}")
        failed["pass"] = False
        return [failed]
    said = [line for line in result["said"] if "out of memory on " in line]
    rows = rows_of_errors(result["seen"])
    rows.append(row("oom: accounts said for errors in one go", "the rest are counts",
                    len([line for line in said if " times in " not in line]), ("==", 1), said))
    rows.append(row("oom: counts said", "the second and the fourth",
                    len([line for line in said if " times in " in line]), ("==", 2), said))
    accounts = [line for line in result["lines"] if line["account"] is not None]
    if len(accounts) != 1:
        rows.append(no_row("oom: who holds the card", f"{len(accounts)} accounts are written"))
        rows[-1]["pass"] = False
        return rows
    return rows + rows_of_account(result, accounts[0])


def main():
    arguments = parser(__doc__)
    arguments.add_argument("--hold", type=float, help="for itself: the other tenant")
    arguments.add_argument("--starve", action="store_true", help="for itself: the trainer")
    options = arguments.parse_args()
    if options.hold is not None:
        hold(options.hold)
        return
    if options.starve:
        starve(options.quick)
        return
    with tempfile.TemporaryDirectory(prefix="tidegate-oom-") as folder:
        os.mkdir(Path(folder) / "ledger", 0o700)
        result = run(options.quick, Path(folder))
    rows = judge(result)
    write_results(options, "oom_said", rows, result)
    sys.exit(any(r["pass"] is False for r in rows))


if __name__ == "__main__":
    main()
