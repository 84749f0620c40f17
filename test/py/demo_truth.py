# SPDX-License-Identifier: Apache-2.0
"""What a recording's steps allocate, told by plain Python: the truth for `tidegate demo`."""
import bisect
import collections
import lzma
import pickle


def steps(path):
    """[(allocations, frees, peak bytes)] of each whole step: from one end of the optimizer that
    stepped most often to the next, the first from the start of the longest history."""
    snapshot = pickle.load(lzma.open(path))
    trace = max(snapshot["device_traces"], key=len)
    ends = collections.defaultdict(list)
    for note in snapshot["external_annotations"]:
        if note["stage"] == "END" and note["name"].startswith("Optimizer.step#"):
            ends[note["name"]].append(note["time_us"])
    times = [event["time_us"] for event in trace]
    found, sizes, live, start = [], {}, 0, 0
    for end in (bisect.bisect_left(times, t) for t in max(ends.values(), key=len)):
        allocations = frees = 0
        peak = live
        for event in trace[start:end]:
            if event["action"] == "alloc":
                live += event["size"] - sizes.pop(event["addr"], 0)
                sizes[event["addr"]] = event["size"]
                allocations += 1
                peak = max(peak, live)
            elif event["action"] == "free_requested" and event["addr"] in sizes:
                live -= sizes.pop(event["addr"])
                frees += 1
        found.append((allocations, frees, peak))
        start = end
    return found
