# SPDX-License-Identifier: Apache-2.0
"""What does a tensor of 2 GiB cost on its way through torch.multiprocessing, under the preload?

    ipc.py [--quick] [--results DIR]

Two processes: one puts the tensor into a queue, the other takes it, compares its sum, fills it anew
and lets it go; then the first compares what was written. Rounds with native segments, first without
the preload, then under it on both sides; the time of a round is from the put to the answer. Target:
at most twice the time without. Rows go to ipc-DATE.json.
"""
import json
import os
import statistics
import subprocess
import sys
import time

from card_results import GIB, MIB, no_row, parser, row, write_results
from stock import objects

ROUNDS = 6
LIMIT_S = 240
PLACE = "transfer"  # the argument of the process that carries tensors


def take(tensors, answers):
    """The other process: each tensor is right, is filled with the round's number, and goes."""
    import torch
    for number in range(ROUNDS):
        tensor = tensors.get(timeout=LIMIT_S)
        is_right = bool((tensor == number).all())
        tensor.fill_(number + 100)
        torch.cuda.synchronize()
        del tensor
        torch.cuda.ipc_collect()
        answers.put(is_right)


def transfer(size_bytes):
    """{times, faults} of all rounds, as JSON on stdout."""
    import torch
    import torch.multiprocessing as processes
    context = processes.get_context("spawn")
    tensors, answers = context.Queue(), context.Queue()
    other = context.Process(target=take, args=(tensors, answers), daemon=True)
    other.start()
    tensor = torch.empty(size_bytes // 4, dtype=torch.float32, device="cuda:0")
    times, faults = [], 0
    for number in range(ROUNDS):
        tensor.fill_(number)
        torch.cuda.synchronize()
        start = time.monotonic()
        tensors.put(tensor)
        is_right = answers.get(timeout=LIMIT_S)
        times.append(time.monotonic() - start)
        faults += not is_right or not bool((tensor == number + 100).all())
    other.join(LIMIT_S)
    print(json.dumps({"times_s": times, "faults": faults}))


def measured(options, pair):
    """What a pair of processes says, under the preload if there is one; or None and the reason."""
    env = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "TIDEGATE")}
    if pair is not None:
        env.update(LD_PRELOAD=str(pair[1]), TIDEGATE="on", TIDEGATE_DEFAULT_TAG="sender")
    size_bytes = 64 * MIB if options.quick else 2 * GIB
    try:
        done = subprocess.run([sys.executable, __file__, PLACE, str(size_bytes)], text=True,
                              env=env, capture_output=True, check=False, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return None, f"it took more than {LIMIT_S} s"
    if done.returncode != 0:
        return None, f"exit {done.returncode}: {done.stderr[-400:]}"
    return json.loads(done.stdout.splitlines()[-1]), ""


def rows_of(options):
    plain, why = measured(options, None)
    if plain is None:
        return [no_row("a tensor through torch.multiprocessing", why)]
    pair, why = objects()
    ours, why = measured(options, pair) if pair is not None else (None, why)
    if ours is None:
        failed = no_row("a tensor through torch.multiprocessing, under the preload", why)
        failed["pass"] = False
        return [failed]
    later = [ours["times_s"][i] / statistics.median(plain["times_s"][1:])
             for i in range(1, ROUNDS)]
    raw = {"plain": plain, "preload": ours}
    return [row("a tensor through torch.multiprocessing: the first round", "x plain",
                ours["times_s"][0] / plain["times_s"][0], None, raw),
            row("a tensor through torch.multiprocessing: later rounds", "x plain", later,
                ("<=", 2), raw),
            row("wrong rounds, of both", "", plain["faults"] + ours["faults"], ("==", 0))]


def main():
    if sys.argv[1:2] == [PLACE]:
        transfer(int(sys.argv[2]))
        return 0
    options = parser(__doc__).parse_args()
    rows = rows_of(options)
    write_results(options, "ipc", rows)
    return 1 if any(made["pass"] is False for made in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
