#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the fuzzer's seed files in test/fuzz/corpus: small snapshots of every form and opcode.

    make_corpus.py [FOLDER]       writes the files; they are the same each time

ok_*: must be accepted. bad_*: must be refused. any_*: either, but without harm.
"""
import io
import pickle
import struct
import sys
from pathlib import Path

T0 = 1_796_105_577_000_000
A = 0x7F20_0000_0000
FORWARD = {"name": "forward", "filename": "site-packages/torch/nn/modules/linear.py", "line": 134}
STEP = {"name": "train_step", "filename": "train.py", "line": 28}
MAIN = {"name": "<module>", "filename": "train.py", "line": 60}
STACK = [FORWARD, STEP, MAIN]


# ---- snapshots as Python objects ----

def event(action, addr, size, at, **more):
    entry = {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": T0 + at}
    entry.update(more)
    return entry


def block(addr, size, asked=None, state="active_allocated", frames=STACK):
    return {"address": addr, "size": size, "requested_size": size if asked is None else asked,
            "state": state, "frames": frames}


def segment(addr, blocks, device=0, **more):
    live = sum(b["size"] for b in blocks if b.get("state") == "active_allocated")
    entry = {"device": device, "address": addr, "total_size": sum(b["size"] for b in blocks),
             "allocated_size": live, "active_size": live, "requested_size": live, "stream": 0,
             "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False,
             "frames": STACK, "blocks": blocks}
    entry.update(more)
    return entry


def snapshot(segments, *traces, **more):
    top = {"segments": segments, "device_traces": list(traces)}
    top.update(more)
    return top


SETTINGS = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1,
            "garbage_collection_threshold": 0.5, "expandable_segments": False,
            "roundup_power2_divisions": {"1": 0, "32768": 0}}


def small(**more):
    """One live block, one freed."""
    trace = [event("segment_alloc", A, 2 << 20, 0, frames=STACK),
             event("alloc", A, 1000, 1, frames=STACK),
             event("alloc", A + 1024, 70000, 2, frames=[MAIN]),
             event("free_requested", A + 1024, 70000, 3, frames=[]),
             event("free_completed", A + 1024, 70000, 4, frames=[])]
    blocks = [block(A, 1024, 1000),
              block(A + 1024, (2 << 20) - 1024, 70000, "inactive", [])]
    return snapshot([segment(A, blocks)], trace, allocator_settings=SETTINGS, **more)


def span(name, begin, end):
    return [{"stage": stage, "name": name, "device": 0, "time_us": T0 + at}
            for stage, at in (("START", begin), ("END", end))]


def growing(steps, mark=None, metadata=None):
    """A block is kept in each step, another comes and goes; mark: annotations around each."""
    trace, spans, blocks = [], [], []
    for i in range(steps):
        more = {"user_metadata": metadata % i} if metadata else {}
        at = 100 * i
        keep, loan = A + i * 4096, A + (1 << 20)
        trace += [event("alloc", loan, 8192, at + 10, frames=[STEP, MAIN], **more),
                  event("alloc", keep, 4096, at + 20, frames=STACK, **more),
                  event("free_requested", loan, 8192, at + 30, frames=[], **more),
                  event("free_completed", loan, 8192, at + 31, frames=[], **more)]
        if mark:
            spans += span(mark % i if "%" in mark else mark, at + 50, at + 60)
        blocks.append(block(keep, 4096))
    return snapshot([segment(A, blocks)], trace, external_annotations=spans)


def oom():
    full = {"action": "oom", "size": 1 << 30, "device_free": 123 << 20, "stream": 0,
            "time_us": T0 + 9, "frames": STACK}
    marker = {"action": "snapshot", "addr": 0, "size": 1024, "stream": 0, "time_us": T0 + 10}
    top = small()
    top["device_traces"][0] += [full, marker]
    return top


def expandable():
    trace = [event("segment_map", A, 20 << 20, 0, frames=STACK),
             event("alloc", A, 20 << 20, 1, frames=STACK),
             event("segment_map", A + (20 << 20), 2 << 20, 2, frames=[]),
             event("segment_unmap", A + (20 << 20), 2 << 20, 3, frames=[])]
    return snapshot([segment(A, [block(A, 20 << 20)], is_expandable=True)], trace)


def recent_keys():
    """What writers of 2026 add."""
    extra = {"compile_context": "0/0", "user_metadata": "phase=rollout", "pool_id": (1, 7)}
    trace = [event("alloc", A, 512, 1, frames=STACK, **extra),
             event("annotate", A, 0, 2, **{**extra, "user_metadata": "logits"}),
             event("segment_free", A + (4 << 20), 2 << 20, 3, **extra)]
    parts = [segment(A, [block(A, 2 << 20, 512)], segment_pool_id=(1, 7), registration_counter=3)]
    return snapshot(parts, trace, allocator_settings=SETTINGS, host_segments=[], host_traces=[[]],
                    external_annotations=span("nccl:all_reduce", 1, 5))


def oldest():
    """Torch 2.0: no times, no block addresses, frames inside `history`."""
    blocks = [{"size": 1024, "requested_size": 1000, "state": "active_allocated",
               "history": [{"addr": A, "real_size": 1000, "frames": STACK}]},
              {"size": 3072, "state": "active_awaiting_free"}]
    trace = [{"action": "alloc", "addr": A, "size": 1000, "stream": 0, "frames": STACK}]
    part = {"device": 0, "address": A, "total_size": 4096, "allocated_size": 1024,
            "active_size": 1024, "stream": 0, "segment_type": "small", "blocks": blocks}
    return snapshot([part], trace)


def two_devices():
    there = A + (1 << 40)
    return snapshot([segment(A, [block(A, 512)]), segment(there, [block(there, 512)], device=1)],
                    [event("alloc", A, 512, 1, frames=STACK)], [],
                    [event("alloc", there, 512, 2, frames=[MAIN])])


def lost_beginning():
    trace = [event("free_completed", A + 512, 512, 1, frames=[]),
             event("free_requested", A + 1024, 512, 2, frames=[]),
             event("free_completed", A + 1024, 512, 3, frames=[]),
             event("alloc", A + 512, 256, 4)]
    blocks = [block(A, 512), block(A + 512, 512, 256),
              block(A + 1024, 512, 512, "active_pending_free"),
              block(A + 1536, 512, 0, "inactive", [])]
    return snapshot([segment(A, blocks)], trace)


def odd_values():
    """Values that no writer gives for known keys, and unknown keys with all kinds of values."""
    top = small(extra=[None, True, False, 1.5, -1, -(1 << 40), 1 << 70, (), (1,), (1, 2), (1, 2, 3),
                       (1, 2, 3, 4), b"bytes", [], {}, {"deep": [{"deeper": [[[]]]}]}])
    top["device_traces"][0].append({"action": "a new kind", "addr": A, "size": 1, "later": [1]})
    return top


# ---- writers ----

def cpp(value):
    """Protocol 2 as the C++ writer does: one batch, whatever its length; BINPUT behind content."""
    out, memo = [b"\x80\x02"], {}

    def put(key):
        index = memo[key] = len(memo)
        out.append(b"q%c" % index if index < 256 else b"r" + struct.pack("<I", index))

    def get(index):
        out.append(b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index))

    def number(v):
        if 0 <= v < 256:
            out.append(b"K%c" % v)
        elif 0 <= v < 65536:
            out.append(b"M" + struct.pack("<H", v))
        elif -(1 << 31) <= v < 1 << 31:
            out.append(b"J" + struct.pack("<i", v))
        else:
            out.append(b"\x8a\x08" + struct.pack("<q", v))

    def write(v):
        key = v if isinstance(v, str) else id(v)
        if isinstance(v, bool):
            out.append(b"\x88" if v else b"\x89")
        elif isinstance(v, int):
            number(v)
        elif isinstance(v, float):
            out.append(b"G" + struct.pack(">d", v))
        elif key in memo:
            get(memo[key])
        elif isinstance(v, str):
            out.append(b"X" + struct.pack("<I", len(v.encode())) + v.encode())
            put(key)
        elif isinstance(v, tuple):
            for item in v:
                write(item)
            out.append({1: b"\x85", 2: b"\x86", 3: b"\x87"}[len(v)])
            put(key)
        else:
            out.append(b"](" if isinstance(v, list) else b"}(")
            for item in v if isinstance(v, list) else [x for pair in v.items() for x in pair]:
                write(item)
            out.append(b"e" if isinstance(v, list) else b"u")
            put(key)

    write(value)
    return b"".join(out) + b"."


def fast(value):
    """Without a memo: nothing is shared."""
    out = io.BytesIO()
    writer = pickle.Pickler(out, 4)
    writer.fast = True
    writer.dump(value)
    return out.getvalue()


def text8(raw):
    """BINUNICODE8."""
    return b"\x8d" + struct.pack("<Q", len(raw)) + raw


def by_hand(extra=b"", head=b"\x80\x04"):
    """A snapshot in single opcodes: SETITEM, APPEND, PUTs; `extra` is the value of a last key."""
    frame = b"}q\x07(" + b"".join([text8(b"name"), b"\x8c\x04main", text8(b"filename"),
                                   b"X\x05\0\0\0a.py\n", text8(b"line"), b"M\x01\x02"]) + b"u"
    one = b"}" + b"".join([b"\x8c\x06actionq\x01\x8c\x05allocq\x02s",
                           b"\x8c\x04addr\x8b\x06\0\0\0\0\0\0\x20\x7f\0s", b"\x8c\x04sizeM\0\x04s",
                           b"\x8c\x06framesr\x2c\0\0\0]" + frame + b"ah\x07as"])
    segments = b"\x8c\x08segments]s"
    last = b"\x8c\x05extra" + extra + b"s" if extra else b""
    return head + b"}" + segments + b"\x8c\x0ddevice_traces]]" + one + b"aas" + last + b"."


def memo_replaced():
    """The same bytes twice, and between them another frame in the memo: two different stacks."""
    def frame(slot, name):
        return b"}(" + b"".join([text8(b"name"), b"\x8c\x04" + name, text8(b"filename"),
                                 b"\x8c\x04a.py", text8(b"line"), b"K\x07"]) + b"uq" + slot

    def one(stack):
        return b"}(\x8c\x06action\x8c\x05alloc\x8c\x06frames" + stack + b"u"

    stack = b"](" + b"h\x01" * 40 + b"e"
    first = b"](" + frame(b"\x01", b"main") + frame(b"\x02", b"step") + b"e"
    events = one(first) + one(stack) + one(stack) + one(b"](h\x02q\x01e") + one(stack) + one(stack)
    return b"\x80\x02}\x8c\x08segments]s\x8c\x0ddevice_traces](](" + events + b"ees."


def with_extra(code):
    return by_hand(code)


# ---- the files ----

def accepted():
    yield from ((f"p{p}", pickle.dumps(small(), p)) for p in (2, 3, 4, 5))
    yield from ((f"p{p}_by_python", pickle._dumps(recent_keys(), p)) for p in (2, 5))
    yield "cpp", cpp(small())
    yield "cpp_recent", cpp(recent_keys())
    yield "fast", fast(small())
    yield "bare_list", pickle.dumps(small()["segments"], 4)
    yield "bare_list_cpp", cpp(small()["segments"])
    yield "oom", pickle.dumps(oom(), 4)
    yield "expandable", pickle.dumps(expandable(), 4)
    yield "recent", pickle.dumps(recent_keys(), 4)
    yield "oldest", pickle.dumps(oldest(), 4)
    yield "two_devices", pickle.dumps(two_devices(), 4)
    yield "lost_beginning", pickle.dumps(lost_beginning(), 4)
    yield "odd_values", pickle.dumps(odd_values(), 4)
    yield "odd_values_p2", pickle.dumps({k: v for k, v in odd_values().items()}, 3)
    yield "optimizer_steps", pickle.dumps(growing(5, "Optimizer.step#AdamW.step"), 4)
    yield "profiler_steps", pickle.dumps(growing(5, "ProfilerStep#%d"), 4)
    yield "marked_steps", pickle.dumps(growing(4, metadata="step %d"), 4)
    yield "period", pickle.dumps(growing(7), 4)
    yield "single_opcodes", by_hand()
    yield "memo_replaced", memo_replaced()
    yield "long4_extra", with_extra(b"\x8b\x09\0\0\0" + b"\xff" * 8 + b"\x7f")
    yield "tuples_extra", with_extra(b")\x85K\x01K\x02K\x03\x87\x86(NN(tt\x86")
    yield "bytes_extra", with_extra(b"(C\x02abB\x02\0\0\0ab\x8e\x02\0\0\0\0\0\0\0abl")
    yield "no_traces", pickle.dumps({"segments": small()["segments"]}, 4)
    yield "nothing_in_it", pickle.dumps(snapshot([], []), 4)


def refused():
    whole = pickle.dumps(small(), 4)
    yield "empty", b""
    yield "text", b"step 1 loss 2.31\n"
    yield "zip", b"PK\x03\x04" + b"\0" * 26
    yield "gzip", b"\x1f\x8b\x08" + b"\0" * 20
    yield "number", pickle.dumps(7, 4)
    yield "protocol_6", b"\x80\x06" + whole[2:]
    yield "cut", whole[:len(whole) // 2]
    yield "cut_in_text", whole[:40]
    yield "no_stop", whole[:-1]
    yield "global", with_extra(b"cos\nsystem\n")
    yield "stack_global", with_extra(b"\x8c\x02os\x8c\x06system\x93")
    yield "reduce", with_extra(b"cos\nsystem\n\x8c\x02id\x85R")
    yield "build", with_extra(b"}}b")
    yield "newobj", with_extra(b"cbuiltins\nobject\n)\x81")
    yield "newobj_ex", with_extra(b"cbuiltins\nobject\n)}\x92")
    yield "inst", with_extra(b"(ios\nsystem\n")
    yield "obj", with_extra(b"(cos\nsystem\no")
    yield "ext", with_extra(b"\x82\x01\x83\x01\0\x84\x01\0\0\0")
    yield "persid", with_extra(b"Pid\n")
    yield "binpersid", with_extra(b"K\x01Q")
    yield "buffer", with_extra(b"\x97\x98")
    yield "unknown_opcode", with_extra(b"\xff")
    yield "huge_long", with_extra(b"\x8b\xff\xff\xff\x7f")
    yield "negative_long", with_extra(b"\x8b\xff\xff\xff\xff")
    yield "huge_text", with_extra(b"\x8d" + b"\xff" * 8)
    yield "huge_bytes", with_extra(b"\x8e\xff\xff\xff\xff\0\0\0\0")
    yield "memo_missing", with_extra(b"j\xff\xff\xff\x7f")
    yield "memo_huge", with_extra(b"Nr\xff\xff\xff\xff")
    yield "pop_nothing", b"\x80\x040."
    yield "no_mark", with_extra(b"e")
    yield "append_to_number", with_extra(b"K\x01K\x02a")
    yield "odd_items", with_extra(b"}(K\x01u")
    yield "tuple_of_nothing", b"\x80\x04\x87."


def uncertain():
    yield "itself", with_extra(b"]q\x14h\x14a")
    yield "deep", with_extra(b"]" * 1500 + b"a" * 1499)
    yield "deep_tuples", with_extra(b"N" + b"\x85" * 1500)
    laughs = b"]q\x14" + b"".join(b"](" + b"h%c" % i * 60 + b"eq%c" % (i + 1)
                                  for i in range(20, 30))
    yield "laughs", with_extra(b"(" + laughs + b"l")
    trace = b"](" + b"}(\x8c\x06action\x8c\x05allocu" * 30 + b"eq\x01"
    yield "laughs_events", b"\x80\x04}\x8c\x0ddevice_traces](" + trace + b"h\x01" * 1400 + b"es."
    yield "text_protocol", pickle.dumps(snapshot([], []), 0)
    yield "set", with_extra(b"\x8f(K\x01\x90")
    yield "frozenset", with_extra(b"(K\x01\x91")
    yield "bytearray", with_extra(b"\x96\x02\0\0\0\0\0\0\0ab")
    yield "dup_and_pop", with_extra(b"N20(K\x011")
    yield "dict_from_mark", with_extra(b"(K\x01K\x02d")
    yield "wrong_kinds", pickle.dumps({"segments": {"a": 1}, "device_traces": [1, [2, [3]]]}, 4)
    yield "wrong_values", pickle.dumps(snapshot(
        [segment("here", [block(None, -5, 1.5, 7, {"x": 1})], device="0")],
        [event("alloc", -1, 1 << 70, 0, frames=3), {"action": 5}]), 4)


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "corpus")
    folder.mkdir(exist_ok=True)
    count = 0
    for prefix, files in (("ok", accepted()), ("bad", refused()), ("any", uncertain())):
        for name, data in files:
            if len(data) > 4096:
                raise SystemExit(f"{prefix}_{name} has {len(data)} bytes")
            (folder / f"{prefix}_{name}.pickle").write_bytes(data)
            count += 1
    print(count, "files")


if __name__ == "__main__":
    main()
