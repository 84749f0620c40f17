# SPDX-License-Identifier: Apache-2.0
"""Bytes that no honest writer makes, and what a reader should say of them.

`offset` is the byte that the refusal must name (None: any); `kind` is what sort of refusal:
"unsafe" asks to construct an object, "bad" is everything else; "either" may be read or refused,
but must not crash or grow."""

import dataclasses
import struct
import typing

from . import forms, samples


@dataclasses.dataclass
class Bad:
    """One hostile input."""

    name: str
    data: bytes
    kind: str = "bad"
    offset: typing.Optional[int] = None


def _u32(value):
    return struct.pack("<I", value)


def _u64(value):
    return struct.pack("<Q", value)


def constructors():
    """Every opcode that imports, calls, builds or asks the application for an object. Also under a
    key that a reader has no use for: skipping must not mean running or trusting."""
    start = b"\x80\x04"
    under = start + b"}(\x8c\x08segments]\x8c\x05extra"
    forms_ = {
        "global": b"cos\nsystem\n", "global-torch": b"ctorch\nTensor\n",
        "inst": b"(ios\nsystem\n", "obj": b"(cos\nsystem\no",
        "stack-global": b"\x8c\x02os\x8c\x06system\x93",
        "newobj": b"N)\x81", "newobj-ex": b"N)}\x92",
        "reduce": b"N)R", "build": b"}}b", "persid": b"P17\n", "binpersid": b"K\x01Q",
        "ext1": b"\x82\x01", "ext2": b"\x83\x01\x00", "ext4": b"\x84\x01\x00\x00\x00",
        "next-buffer": b"\x97", "readonly-buffer": b"N\x98",
    }
    for name, body in forms_.items():
        # The constructing opcode is the last of the body, or begins it where it has an argument.
        inner = {"inst": 1, "obj": 1, "stack-global": 12, "newobj": 2, "newobj-ex": 3, "reduce": 2,
                 "build": 2, "binpersid": 2, "readonly-buffer": 1}.get(name, 0)
        for where, before in (("top", start), ("under", under)):
            yield Bad(f"{name}-{where}", before + body + b".", "unsafe", len(before) + inner)


def depth():
    """Nesting that would break a reader that recurses."""
    n = 1_000_000
    yield Bad("deep-marks", b"\x80\x04" + b"(" * n + b".")
    yield Bad("deep-lists", b"\x80\x04" + b"]" * n + b"a" * (n - 1) + b".")
    yield Bad("deep-tuples", b"\x80\x04)" + b"\x85" * n + b".")
    yield Bad("deep-dicts", b"\x80\x04" + b"}K\x00" * n + b"}" + b"s" * n + b".")
    yield Bad("deep-mark-tuples", b"\x80\x04" + b"(" * n + b"t" * n + b".")
    yield Bad("many-empty-lists", b"\x80\x04](" + b"]" * n + b"e.", "either")


def counts():
    """Lengths that the rest of the data cannot hold."""
    start = b"\x80\x04"
    for name, body in {
            "binunicode8-2^63": b"\x8d" + _u64(1 << 63) + b"x",
            "binunicode8-max": b"\x8d" + _u64((1 << 64) - 1) + b"x",
            "binunicode-max": b"X" + _u32(0xFFFFFFFF) + b"x",
            "short-binunicode": b"\x8c\xffx",
            "binbytes8": b"\x8e" + _u64(1 << 62) + b"x", "binbytes": b"B" + _u32(1 << 31) + b"x",
            "bytearray8": b"\x96" + _u64((1 << 64) - 8) + b"x",
            "long4-max": b"\x8b" + _u32(0x7FFFFFFF) + b"x",
            "long4-negative": b"\x8b" + _u32(0x80000000) + b"x", "long1": b"\x8a\xff\x01",
            "frame-max": b"\x95" + _u64((1 << 64) - 1) + b"}.",
            "frame-2^62": b"\x95" + _u64(1 << 62) + b"}.",
            "frame-beyond": b"\x95" + _u64(64) + b"}.",
            "no-argument": b"\x95", "half-argument": b"X\x01\x00"}.items():
        yield Bad("count-" + name, start + body)


def memo():
    """The memo as a way to make a reader reserve or read what is not there."""
    start = b"\x80\x04"
    yield Bad("memo-put-max", start + b"}r" + _u32(0xFFFFFFFF) + b".")
    yield Bad("memo-put-2^31", start + b"}r" + _u32(0x7FFFFFFF) + b".")
    yield Bad("memo-put-text", start + b"}p99999999999999999999\n.")
    yield Bad("memo-get-unset", start + b"h\x05.", offset=2)
    yield Bad("memo-long-get-unset", start + b"j" + _u32(0xFFFFFFFF) + b".", offset=2)
    yield Bad("memo-get-text", start + b"g77\n.")
    yield Bad("memo-put-empty-stack", start + b"q\x00.")
    yield Bad("memo-memoize-empty-stack", start + b"\x94.")
    yield Bad("memo-memoize-mark", start + b"(\x94.")
    yield Bad("memo-sparse", start + b"}" + b"".join(
        b"r" + _u32(i << 20) for i in range(1, 4000)) + b".", "either")


def cycles():
    """Containers inside themselves."""
    start = b"\x80\x04"
    yield Bad("cycle-list", start + b"]\x94h\x00a.")
    yield Bad("cycle-dict", start + b"}\x94\x8c\x08segmentsh\x00s.")
    yield Bad("cycle-segments", start + b"}\x8c\x08segments]\x94h\x00as.")
    yield Bad("cycle-traces",
              start + b"}(\x8c\x08segments]\x8c\x0ddevice_traces]\x94h\x00au.")
    yield Bad("cycle-frames", start + b"}(\x8c\x08segments]\x8c\x0ddevice_traces]]}(\x8c\x06action"
              b"\x8c\x05alloc\x8c\x06frames]\x94h\x00auaau.")
    yield Bad("cycle-tuple", start + b"]\x94(h\x00h\x00h\x00h\x00th\x00b.", "unsafe")


def structure():
    """Well-formed opcodes in an order that means nothing, and pickles of something else."""
    start = b"\x80\x04"
    for name, data in {
            "empty": b"", "one-byte": b"\x80", "only-proto": start, "only-stop": start + b".",
            "no-proto": b".", "text": b"hello, this is no pickle\n", "zeros": bytes(4096),
            "proto-6": b"\x80\x06}.", "proto-255": b"\x80\xff}.", "json": b'{"segments": []}',
            "number": start + b"K\x01.", "none": start + b"N.", "string": start + b"\x8c\x01x.",
            "empty-dict": start + b"}.", "other-dict": start + b"}\x8c\x01aK\x01s.",
            "pop-empty": start + b"0.", "setitem-on-list": start + b"]K\x01K\x02s.",
            "append-on-dict": start + b"}K\x01a.", "appends-no-mark": start + b"]K\x01e.",
            "setitems-odd": start + b"}(K\x01u.", "setitems-no-dict": start + b"(K\x01K\x01u.",
            "tuple2-of-one": start + b"K\x01\x86.", "stop-in-mark": start + b"}(.",
            "unknown-opcode": start + b"\xff.",
            "segments-number": start + b"}\x8c\x08segmentsK\x01s.",
            "segments-text": start + b"}\x8c\x08segments\x8c\x01xs.",
            "trace-of-numbers": start + b"}(\x8c\x08segments]\x8c\x0ddevice_traces](K\x01K\x02eu.",
            "mark-as-key": start + b"}((K\x01us.", "pop-mark-alone": start + b"1.",
            "dup-empty": start + b"2."}.items():
        yield Bad("structure-" + name, data)
    yield Bad("structure-two-tops", start + b"}(" + b"".join(
        b"\x8c\x08segments]" for _ in range(100_000)) + b"u.", "either")


def values():
    """Fields of the wrong type, of absurd size, and with bytes that are not UTF-8."""
    good = samples.rich()
    edits = {
        "addr-text": ("device_traces", "addr", "x"), "size-float": ("device_traces", "size", 1.5),
        "size-huge": ("device_traces", "size", 1 << 200),
        "addr-none": ("device_traces", "addr", None),
        "action-number": ("device_traces", "action", 7),
        "frames-text": ("device_traces", "frames", "x"),
        "frames-numbers": ("device_traces", "frames", [1, 2]),
        "pool-triple": ("device_traces", "pool_id", (1, 2, 3)),
        "blocks-text": ("segments", "blocks", "x"), "total-list": ("segments", "total_size", []),
        "device-huge": ("segments", "device", 1 << 40),
        "name-number": ("external_annotations", "name", 3),
    }
    for name, (where, key, value) in edits.items():
        out = dict(good)
        items = out[where][0] if where == "device_traces" else out[where]
        items = list(items)
        items[0] = dict(items[0], **{key: value})
        out[where] = [items] if where == "device_traces" else items
        yield Bad("value-" + name, forms.WRITERS["py4"](out), "either")
    raw = forms.WRITERS["py4"](good)
    yield Bad("value-not-utf8", raw.replace(b"update_policy", b"up\xff\xfe\x00te_po\x80cy"),
              "either")


def _top(traces=b"](]e", segments=b"]", annotations=b"]"):
    return (b"\x80\x02}(X\x08\x00\x00\x00segments" + segments
            + b"X\x0d\x00\x00\x00device_traces" + traces
            + b"X\x14\x00\x00\x00external_annotations" + annotations + b"u.")


def slow(count=60_000):
    """A few megabytes of well-formed snapshot in which something that is usually small is not: a
    reader must not take time by the square of it. All may be read or refused."""
    write = forms.WRITERS["cpp"]
    names = ("Optimizer.step#A", "Optimizer.step#B")
    marks = [{"stage": "END", "name": names[i & 1], "device": 0, "time_us": i + 1}
             for i in range(count)]
    yield Bad("slow-two-optimizers", write({"segments": [], "device_traces": [[]],
                                            "external_annotations": marks}), "either")
    blocks = [{"address": i << 12, "size": 4096, "requested_size": 4096,
               "state": "active_allocated",
               "frames": [{"name": "f", "filename": "/w/a.py", "line": i}]} for i in range(count)]
    segment = {"device": 0, "address": 0, "total_size": count << 12, "allocated_size": 0,
               "active_size": 0, "stream": 0, "segment_type": "large", "blocks": blocks}
    yield Bad("slow-many-lines", write({"segments": [segment], "device_traces": [[]]}), "either")
    event = write([{"action": "alloc", "addr": 1, "size": 2, "stream": 0}] * 3)[2:-1]
    yield Bad("slow-one-trace-many-devices",
              _top(b"](" + event + b"r\x00\x01\x00\x00" + b"j\x00\x01\x00\x00" * count + b"e"),
              "either")
    yield Bad("slow-devices", write({"segments": [dict(segment, device=i, blocks=[])
                                                  for i in range(count)],
                                     "device_traces": [[]] * count}), "either")
    frame = write({"name": "f", "filename": "a.py", "line": 1})[2:-1]
    stack = b"](" + frame + b"r\x00\x01\x00\x00e" + b"j\x00\x01\x00\x00a" * count
    yield Bad("slow-stack-by-frames", _top(
        b"](](}(X\x06\x00\x00\x00actionX\x05\x00\x00\x00allocX\x06\x00\x00\x00frames" + stack
        + b"uee"), "either")
    # Pairs that tell nothing, in one dictionary that is put into a list again and again.
    yield Bad("slow-plain-dictionary", b"\x80\x04](}q\0(" + b"K\1K\1" * count + b"u"
              + b"h\0" * (2 * count) + b"e.", "either")
    texts = [{"action": "alloc", "addr": i, "size": 1, "stream": i, "user_metadata": f"step {i}"}
             for i in range(count)]
    yield Bad("slow-contexts", write({"segments": [], "device_traces": [texts]}), "either")


def everything():
    """All of them."""
    for group in (constructors, depth, counts, memo, cycles, structure, values, slow):
        yield from group()
