# SPDX-License-Identifier: Apache-2.0
"""What a reader should hold of a snapshot, told from Python's own pickle; and the same from the
lines of dump_snapshot. Equal means equal in every field, stack and text."""

ACTIONS = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
           "segment_map", "segment_unmap", "oom", "snapshot", "annotate"}
STATES = {"inactive", "active_allocated", "active_pending_free"}
LOW = (1 << 64) - 1


def text(value):
    """A text as dump_snapshot writes it."""
    raw = value.encode("utf-8", "surrogatepass")
    if not raw:
        return "-"
    if raw == b"-":
        return "%2D"
    return "".join(chr(c) if 0x20 < c < 0x7F and c != 0x25 else f"%{c:02X}" for c in raw)


class FromPickle:
    """The canonical form of a loaded snapshot. Stacks are tuples of (line, file, function)."""

    def __init__(self, snapshot):
        self._frames, self._stacks, self._texts, self._keep = {}, {}, {}, []
        self.is_list = isinstance(snapshot, list)
        top = {"segments": snapshot} if self.is_list else snapshot
        self.segments = [self._segment(s) for s in top.get("segments", [])]
        self.traces = [[self._event(e) for e in t] for t in top.get("device_traces", [])]
        self.annotations = [
            (("START", "END")[a["stage"] == "END"], a["time_us"], a["device"],
             self._text(a["name"])) for a in top.get("external_annotations", [])]

    def _text(self, value):
        found = self._texts.get(value)
        if found is None:
            found = self._texts[value] = text(value)
        return found

    def _stack(self, frames):
        if not frames:
            return ()
        found = self._stacks.get(id(frames))
        if found is None:
            found = self._stacks[id(frames)] = tuple(self._frame(f) for f in frames)
            self._keep.append(frames)
        return found

    def _frame(self, frame):
        found = self._frames.get(id(frame))
        if found is None:
            # torch.compile leaves lines of 2^64 - 1: "none", which the reader writes as 0.
            line = frame["line"] if 0 <= frame["line"] < 1 << 32 else 0
            found = self._frames[id(frame)] = (line, self._text(frame["filename"]),
                                               self._text(frame["name"]))
            self._keep.append(frame)
        return found

    def _event(self, e):
        action = e["action"] if e["action"] in ACTIONS else "other"
        pool = e.get("pool_id", (0, 0))
        return (action, (e["device_free"] if "device_free" in e else e["addr"]) & LOW, e["size"],
                e.get("time_us", 0), self._stack(e.get("frames")),
                (e["stream"] & LOW, pool[0], pool[1], self._text(e.get("user_metadata", "")),
                 self._text(e.get("compile_context", ""))))

    def _segment(self, s):
        pool = s.get("segment_pool_id", (0, 0))
        head = (s["address"], s["total_size"], s["allocated_size"], s["active_size"],
                s.get("requested_size", s["active_size"]), s["stream"] & LOW, pool[0], pool[1],
                s["device"], int(s["segment_type"] == "large"), int(s.get("is_expandable", False)),
                self._stack(s.get("frames")), len(s["blocks"]))
        blocks, addr = [], s["address"]
        for b in s["blocks"]:
            addr = b.get("address", addr)
            frames, asked = b.get("frames"), b.get("requested_size", b["size"])
            if b.get("history"):  # torch 2.0: the newest use comes first
                frames = b["history"][0]["frames"]
                asked = b["history"][0]["real_size"]
            blocks.append((addr, b["size"], asked, b["state"] if b["state"] in STATES else "other",
                           self._stack(frames)))
            addr += b["size"]
        return head, blocks


class FromDump:
    """The same from the lines of dump_snapshot."""

    def __init__(self, lines):
        self.frames, self.stacks, self.contexts = {}, {0: ()}, {}
        self.segments, self.traces, self.annotations = [], [], []
        self.info = {}
        for line in lines.splitlines():
            kind, *rest = line.split(" ")
            getattr(self, "_" + kind)(rest)
        self.is_list = self.info["list"] == "1"

    def _info(self, rest):
        self.info = dict(zip(rest[::2], rest[1::2]))

    def _frame(self, rest):
        self.frames[int(rest[0])] = (int(rest[1]), rest[2], rest[3])

    def _stack(self, rest):
        self.stacks[int(rest[0])] = tuple(self.frames[int(f)] for f in rest[1:])

    def _context(self, rest):
        self.contexts[int(rest[0])] = (int(rest[1]), int(rest[2]), int(rest[3]), rest[4], rest[5])

    def _segment(self, rest):
        head = [int(v) for v in rest]
        head[11] = self.stacks[head[11]]
        self.segments.append((tuple(head), []))

    def _block(self, rest):
        self.segments[-1][1].append((int(rest[0]), int(rest[1]), int(rest[2]), rest[3],
                                     self.stacks[int(rest[4])]))

    def _trace(self, _rest):
        self.traces.append([])

    def _event(self, rest):
        self.traces[-1].append((rest[0], int(rest[1]), int(rest[2]), int(rest[3]),
                                self.stacks[int(rest[4])], self.contexts[int(rest[5])]))

    def _annotation(self, rest):
        self.annotations.append((rest[0], int(rest[1]), int(rest[2]), rest[3]))


def differences(expected, actual):
    """The first few lines in which the two differ; empty: none."""
    out = []
    if expected.is_list != actual.is_list:
        out.append(f"is_list {expected.is_list} {actual.is_list}")
    for name in ("segments", "annotations"):
        out += _compare(name, getattr(expected, name), getattr(actual, name))
    if len(expected.traces) != len(actual.traces):
        out.append(f"devices {len(expected.traces)} {len(actual.traces)}")
    for d, (a, b) in enumerate(zip(expected.traces, actual.traces)):
        out += _compare(f"trace {d}", a, b)
    return out[:6]


def _compare(name, expected, actual):
    if expected == actual:
        return []
    out = []
    if len(expected) != len(actual):
        out.append(f"{name}: {len(expected)} expected, {len(actual)} held")
    for i, (a, b) in enumerate(zip(expected, actual)):
        if a != b:
            out.append(f"{name}[{i}]: expected {a!r}\n  held {b!r}")
            break
    return out
