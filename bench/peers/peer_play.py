# SPDX-License-Identifier: Apache-2.0
"""What the process of every peer does: reads its orders, plays, and prints one object."""
import argparse
import json
import os
import sys
import time


class NotHere(Exception):
    """The peer cannot be measured on this machine, with the reason."""


def orders(description):
    made = argparse.ArgumentParser(description=description.strip().split("\n")[0])
    made.add_argument("--peer", default="")
    made.add_argument("--kind", default="")
    made.add_argument("--size", type=int, required=True, help="bytes in all")
    made.add_argument("--block", type=int, required=True, help="bytes of each block")
    made.add_argument("--rounds", type=int, default=3)
    return made


def block_count(options):
    count = options.size // options.block
    if count == 0:
        raise NotHere(f"a block of {options.block >> 20} MiB is more than this run moves: "
                      f"{options.size >> 20} MiB (--size)")
    return count


def timed(call):
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def seen(options, rounds, wrong):
    """rounds: [[seconds out, seconds back], ...]; wrong: blocks with other content, or None."""
    count = block_count(options)
    return {"rounds": rounds, "wrong": wrong, "blocks": count,
            "size_bytes": count * options.block}


def tell(call, options):
    """Prints what the play has seen, or why there was none. Peers may not end in order."""
    try:
        found = call(options)
    except NotHere as problem:
        found = {"reason": str(problem)}
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)
