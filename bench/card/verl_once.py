# SPDX-License-Identifier: Apache-2.0
"""The real verl (GRPO, FSDP2 with offload, hybrid vLLM) for a few steps in one mode of Tidegate.

    verl_once.py --mode without|observe|on [--offload] [--preload] --carried DIR --installed DIR
                 --out FILE.json

`without` has no Tidegate installed at all. --offload: what verl offloads goes through Tidegate's
host copies. --preload: all of it runs under `tidegate run --default-tag`, and so do Ray's
processes, whose weights then travel by handles of our blocks. --profile records verl's own
torch_memory files, which takes time, and where they are recorded observe does not look into
segments. What the run says and measures, what `tidegate status` shows meanwhile and what `tidegate
leak` finds in those files go to one file; verl_beside.py compares the files of several modes.
"""
import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from card_results import card, machine
from measure import free_bytes  # card_results has put it on the path

HERE = Path(__file__).resolve().parent
SMALL = "--hidden 1024 --layers 12 --inter 2816 --heads 8 --kv 2"
OURS = re.compile(r"tidegate|TidegateWouldNotFit|\] (reclaim|sleep|wake|observe) |\] step \d+: ")
MOST_POINTS = 3000
MOST_LINES = 2000


def unpacked(carried, place):
    """Unpacks once those of the engines' archives that are there; returns the folder that holds
    vLLM's site/, and verl's vr/."""
    for name, folder, packages in (("vllm", "site", "site"), ("verl_ray", "vr", "vr/site")):
        archive = Path(carried) / f"{name}.tar.xz"
        if (place / folder).exists() or not archive.exists():
            continue
        place.mkdir(parents=True, exist_ok=True)
        subprocess.run(["tar", "-C", place, "-xJf", archive], check=True)
        subprocess.run([sys.executable, "-m", "compileall", "-q", "-j", "0", place / packages],
                       check=False, stdout=subprocess.DEVNULL)
    return place


def environment(options, place, out):
    """Of the whole run; Ray's processes inherit it."""
    paths = [str(HERE), str(place / "vr" / "site"), str(place / "site")]
    if options.mode != "without":
        paths.insert(0, str(options.installed))
    named = {k: v for k, v in os.environ.items() if not k.startswith("TIDEGATE")}
    named.update({
        "PYTHONPATH": ":".join(paths), "OUT": str(out), "WORK": str(options.work),
        "ENGINE": "vllm", "STRATEGY": "fsdp2", "STEPS": str(options.steps), "UTIL": options.util,
        "LIMIT": str(options.limit), "MODEL": options.model, "BATCH": "8", "N": "4", "RESP": "64",
        "VERL_USE_EXTERNAL_MODULES": "vr_hook,same_seeds", "TIDEGATE_OUT": str(out / "tidegate"),
        "SHOW": OURS.pattern + r"|Error|Traceback|KV cache size|Saved|DUMP"})
    if options.profile:
        steps = ",".join(str(n) for n in range(2, options.steps + 1))
        named.update(PROFILE="1", PENTRIES="30000", PSTEPS=f"[{steps}]")
    return named


def overrides(options):
    """Hydra's, as a user would add them."""
    made = []
    if options.same:
        made += ["actor_rollout_ref.rollout.full_determinism=True",
                 "actor_rollout_ref.actor.fsdp_config.full_determinism=True"]
    if options.mode != "without":
        made.append(f"+ray_kwargs.ray_init.runtime_env.env_vars.TIDEGATE={options.mode}")
    if options.offload:
        made.append("+ray_kwargs.ray_init.runtime_env.env_vars.TIDEGATE_OFFLOAD='1'")
    return made + options.more


class StatusWatch:
    """`tidegate status` every few seconds beside a `with` block."""

    def __init__(self, options, every_s=4.0):
        self.command = [str(options.installed / "bin" / "tidegate"), "status"]
        self.every_s, self.seen, self.stop = every_s, [], threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.active = options.mode != "without"

    def watch(self):
        while not self.stop.wait(self.every_s):
            at = time.time()
            for arguments in ([], ["--json"]):
                done = subprocess.run(self.command + arguments, capture_output=True, text=True,
                                      check=False, timeout=30)
                self.seen.append({"at": at, "json": bool(arguments), "code": done.returncode,
                                  "said": (done.stdout + done.stderr)[:20000]})

    def __enter__(self):
        if self.active:
            self.thread.start()
        return self

    def __exit__(self, *_error):
        self.stop.set()
        if self.active:
            self.thread.join()

    def kept(self):
        """The first, the last, and each that shows something new."""
        kept = []
        for look in self.seen:
            if look["json"] or not kept or look["said"] != kept[-1]["said"]:
                kept.append(look)
        return kept[:8] + kept[8::max(1, len(kept) // 12)]


class HostWatch:
    """By how much less memory the machine has available beside a `with` block, at most."""

    def __init__(self, every_s=0.5):
        self.every_s, self.most_bytes, self.stop = every_s, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch, args=(free_bytes(),))

    def watch(self, before):
        while not self.stop.wait(self.every_s):
            self.most_bytes = max(self.most_bytes, before - free_bytes())

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_error):
        self.stop.set()
        self.thread.join()


def log_lines(path):
    """Our lines of the run's log, as they are."""
    if not path.exists():
        return []
    lines = path.read_text(errors="replace").splitlines()
    return [line[:600] for line in lines if OURS.search(line)][:MOST_LINES]


def used_curve(path):
    """[(seconds, MiB)] of NVML, thinned so that no peak is lost."""
    if not path.exists():
        return []
    points = []
    for line in path.read_text().splitlines()[1:]:
        with contextlib.suppress(ValueError):
            seconds, used = line.split(",")
            points.append((float(seconds), int(used)))
    size = -(-len(points) // MOST_POINTS) or 1
    return [max(points[i:i + size], key=lambda p: p[1]) for i in range(0, len(points), size)]


def json_lines(folder):
    """What observe wrote, file by file."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")) if folder.exists() else []:
        found[path.name] = [json.loads(line) for line in path.read_text().splitlines()
                            if line.endswith("}")][:200]
    return found


def leak_found(options, profile):
    """`tidegate leak` on verl's own files: its words, its answer, its time."""
    if not profile.exists():
        return None
    command = str(options.installed / "bin" / "tidegate")
    start = time.perf_counter()
    said = subprocess.run([command, "leak", str(profile)], capture_output=True, text=True,
                          check=False)
    files = list(profile.rglob("*.pickle"))
    return {"code": said.returncode, "said": said.stdout[-4000:], "errors": said.stderr[-2000:],
            "seconds": time.perf_counter() - start, "files": len(files),
            "bytes": sum(f.stat().st_size for f in files)}


def ended(command, named, limit_s):
    """Its exit status; 124 where it did not even keep to its own limit."""
    try:
        return subprocess.run(command, env=named, check=False, timeout=limit_s).returncode
    except subprocess.TimeoutExpired:
        return 124


def run(options):
    place = unpacked(options.carried, options.place)
    out = options.work / Path(options.out).stem
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(place / "vr" / "verl_run.py"), "--", *overrides(options)]
    if options.preload:
        command = [str(options.installed / "bin" / "tidegate"), "run", "--default-tag", "stock",
                   "--", *command]
    start = time.time()
    with StatusWatch(options) as status, HostWatch() as host:
        code = ended(command, environment(options, place, out), options.limit + 40)
    metrics = out / "metrics.jsonl"
    log = out / "run.log"
    mode = ", ".join([options.mode, *(what for what in ("offload", "preload")
                                      if getattr(options, what))])
    return {"mode": mode, "card": card(), "machine": machine(), "code": code,
            "seconds": time.time() - start,
            "command": command, "asked_steps": options.steps,
            "steps": [json.loads(line) for line in metrics.read_text().splitlines()]
            if metrics.exists() else [],
            "host_bytes": host.most_bytes,
            "lines": log_lines(log), "used_mib": used_curve(out / "gpu_mem.csv"),
            "tail": log.read_text(errors="replace")[-6000:] if code and log.exists()
            else "",
            "observed": json_lines(out / "tidegate"), "status": status.kept(),
            "leak": leak_found(options, out / "profile")}


def main():
    parser = argparse.ArgumentParser(description="the real verl in one mode of Tidegate")
    parser.add_argument("--mode", choices=["without", "observe", "on"], required=True)
    parser.add_argument("--carried", required=True, help="the folder that bench/card/pack made")
    parser.add_argument("--installed", type=Path, required=True, help="pip's --target")
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--limit", type=float, default=280, help="seconds for all of it")
    parser.add_argument("--util", default="0.3", help="the engine's share of the card")
    parser.add_argument("--model", default=SMALL)
    parser.add_argument("--place", type=Path, default=Path("/tmp/e"))
    parser.add_argument("--work", type=Path, default=Path("/tmp/card-verl"))
    parser.add_argument("--not-same", dest="same", action="store_false",
                        help="without verl's full determinism, as users run it")
    parser.add_argument("--profile", action="store_true",
                        help="record verl's torch_memory files")
    parser.add_argument("--offload", action="store_true",
                        help="verl's offloading through Tidegate's host copies")
    parser.add_argument("--preload", action="store_true",
                        help="all of it under the preload, with a default tag")
    parser.add_argument("more", nargs="*", help="Hydra's overrides")
    options = parser.parse_args()
    if options.preload and options.mode != "on":
        parser.error("--preload wants --mode on")
    result = run(options)
    Path(options.out).write_text(json.dumps(result))
    print(f"{options.mode}: {len(result['steps'])} steps in {result['seconds']:.0f} s, "
          f"exit {result['code']}, {len(result['lines'])} lines of ours", flush=True)
    return result["code"]


if __name__ == "__main__":
    sys.exit(main())
