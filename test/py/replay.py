# SPDX-License-Identifier: Apache-2.0
"""Live bytes per step, computed in a second way: thirty lines that share no thought with the C
code. It starts at the blocks of the snapshot and undoes the history from its end."""


def live_at(snapshot, cuts, device=0):
    """[{stack: bytes}] at the times `cuts` (ascending), of requested bytes by stack (a tuple of
    (file, line, function)); what was freed before its alloc is known has the stack ()."""
    held = {}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if segment["device"] == device and block["state"] == "active_allocated":
                held[block["address"]] = (block["requested_size"], _stack(block))
    events, out = list(snapshot["device_traces"][device]), []
    for cut in reversed(cuts):
        while events and events[-1]["time_us"] > cut:
            event = events.pop()
            if event["action"] == "alloc":
                held.pop(event["addr"], None)
            elif event["action"] == "free_requested":
                held[event["addr"]] = (event["size"], None)
        out.insert(0, dict(held))
    names = {}  # a block's stack is told where it was allocated
    for event in snapshot["device_traces"][device]:
        if event["action"] == "alloc":
            names.setdefault(event["addr"], []).append((event["time_us"], _stack(event)))
    return [_by_stack(state, cut, names) for state, cut in zip(out, cuts)]


def _stack(entry):
    return tuple((f["filename"], f["line"], f["name"]) for f in entry.get("frames") or ())


def _by_stack(state, cut, names):
    total = {}
    for addr, (size, stack) in state.items():
        if stack is None:
            known = [s for t, s in names.get(addr, ()) if t <= cut]
            stack = known[-1] if known else ()
        total[stack] = total.get(stack, 0) + size
    return total


def marks(snapshot, prefix="Optimizer.step#", stage="START"):
    """The times of an annotation."""
    return [a["time_us"] for a in snapshot["external_annotations"]
            if a["stage"] == stage and a["name"].startswith(prefix)]
