#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a large PyTorch memory snapshot quickly, in the bytes that Python's pickler would write.

The mix is that of a recorded training run: about 105 bytes an event, one third each of alloc,
free_requested and free_completed; a quarter of the allocations and nearly all frees without a
stack, the others with 15 to 30 frames out of 300 shared ones. Replaying the history is sound:
each free meets its alloc (those of the first batches lie before the window, as in a ring buffer).

One batch of 999 events is laid out once as a struct format; each further batch fills in addresses,
times and memo numbers. About 0.1 GB a second.

    big_snapshot.py OUT --events N | --size BYTES [--step S] [--leak BYTES] [--seed N]

--step S writes the S-th of a row of files whose histories follow each other; with --leak each of
them holds one more block of that size, from train.py:41 keep.
"""
import argparse
import random
import struct

TRIPLES = 333  # alloc + free_requested + free_completed, in a batch
BATCH_EVENTS = 3 * TRIPLES  # Python's pickler appends up to 1000 items at once
GENERATIONS = 9  # a block lives through 8 batches; files hold whole turns of 9
STRIDE = 1 << 20  # between two block addresses; the largest block
BASE = 0x7F20_0000_0000  # low 32 bits clear: only they change between batches
LEAK_BASE = 0x7E00_0000_0000
START_US = 0x06_6000_1000_0000
MEMO_PER_TRIPLE = 8


class Pickler:
    """A pickle of protocol 4 in pieces: bytes so far, and what the memo holds."""

    def __init__(self, out):
        self.out = out
        self.buffer = bytearray()
        self.memo_count = 0
        self.memo = {}
        out.write(b"\x80\x04")

    def put(self, data):
        self.buffer += data

    def flush(self):
        if self.buffer:
            self.out.write(b"\x95" + struct.pack("<Q", len(self.buffer)))
            self.out.write(self.buffer)
            self.buffer.clear()

    def memoize(self, key=None):
        if key is not None:
            self.memo[key] = self.memo_count
        self.memo_count += 1
        return b"\x94"

    def get(self, key):
        index = self.memo[key]
        return b"h%c" % index if index < 256 else b"j" + struct.pack("<I", index)

    def text(self, value):
        if value in self.memo:
            return self.get(value)
        raw = value.encode()
        head = b"\x8c%c" % len(raw) if len(raw) < 256 else b"X" + struct.pack("<I", len(raw))
        return head + raw + self.memoize(value)


def number(value):
    """The opcode that Python's pickler chooses for an int."""
    if 0 <= value < 256:
        return b"K%c" % value
    if 0 <= value < 65536:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a%c" % len(raw) + raw


def open_list(pickler):
    return b"]" + pickler.memoize() + b"("


def open_dict(pickler):
    return b"}" + pickler.memoize() + b"("


def value_bytes(pickler, value):
    if isinstance(value, bool):
        return b"\x88" if value else b"\x89"
    if isinstance(value, int):
        return number(value)
    if isinstance(value, tuple):
        return b"".join(number(v) for v in value) + b"\x86" + pickler.memoize()
    return pickler.text(value)


def items(pickler, pairs):
    """Keys and values of a dict, in order; values are int, bool, str or a pair of ints."""
    return b"".join(pickler.text(k) + value_bytes(pickler, v) for k, v in pairs)


def frame_table(rng):
    """300 frames shaped like those of a model in training."""
    library = ["site-packages/torch/nn/modules/module.py",
               "site-packages/torch/nn/modules/linear.py",
               "site-packages/torch/autograd/function.py",
               "site-packages/torch/utils/checkpoint.py",
               "site-packages/transformers/models/qwen2_5_vl/modeling_qwen2_5_vl.py",
               "site-packages/transformers/utils/generic.py"]
    names = ["forward", "_call_impl", "_wrapped_call_impl", "wrapper", "backward", "apply",
             "_apply", "step", "update", "attention"]
    table = [("train.py", "train_step", 28), ("train.py", "main", 60)]
    while len(table) < 299:
        table.append((rng.choice(library), rng.choice(names), rng.randrange(20, 2000)))
    return table + [("train.py", "keep", 41)]


def stack_table(rng):
    """One stack (frame indices, innermost first) for each allocation of a batch."""
    stacks = []
    for _ in range(TRIPLES):
        deep = rng.random() >= 0.25
        body = [rng.randrange(2, 299) for _ in range(rng.randrange(16, 28))]
        stacks.append(body + [0, 1] if deep else [])
    return stacks


def stack_bytes(pickler, frames, stack):
    if not stack:
        return b"]" + pickler.memoize()
    parts = [open_list(pickler)]
    for index in stack:
        key = ("frame", index)
        if key in pickler.memo:
            parts.append(pickler.get(key))
            continue
        file, name, line = frames[index]
        parts.append(b"}" + pickler.memoize(key) + b"(")
        parts.append(items(pickler, [("name", name), ("filename", file), ("line", line)]) + b"u")
    return b"".join(parts) + b"e"


def block_bytes(pickler, addr, size, asked, state, stack):
    head = open_dict(pickler) + items(pickler, [("address", addr), ("size", size),
                                                ("requested_size", asked), ("state", state)])
    return head + pickler.text("frames") + stack() + b"u"


def segment_bytes(pickler, addr, blocks, stack, expandable):
    """blocks: (address, size, requested or 0, stack function), which tile the segment."""
    total = sum(b[1] for b in blocks)
    live = sum(b[1] for b in blocks if b[2])
    asked = sum(b[2] for b in blocks)
    head = open_dict(pickler) + items(pickler, [
        ("device", 0), ("address", addr), ("total_size", total), ("allocated_size", live),
        ("active_size", live), ("requested_size", asked), ("stream", 0),
        ("segment_type", "large"), ("segment_pool_id", (0, 0)), ("is_expandable", expandable)])
    parts = [head, pickler.text("frames"), stack(), pickler.text("blocks"), open_list(pickler)]
    for block_addr, size, requested, block_stack in blocks:
        state = "active_allocated" if requested else "inactive"
        parts.append(block_bytes(pickler, block_addr, size, requested, state, block_stack))
    return b"".join(parts) + b"eu"


def tiles(sizes, make_stack):
    """The blocks of the large segment: generation 0 is free at a file's end, the others live."""
    blocks = []
    for generation in range(GENERATIONS):
        for i, size in enumerate(sizes):
            addr = BASE + (generation * TRIPLES + i) * STRIDE
            rounded = (size + 511) // 512 * 512
            if generation == 0:
                blocks.append((addr, STRIDE, 0, make_stack(None)))
                continue
            blocks.append((addr, rounded, size, make_stack(i)))
            if rounded < STRIDE:
                blocks.append((addr + rounded, STRIDE - rounded, 0, make_stack(None)))
    return blocks


def event_bytes(pickler, action, addr, size, time_us, stack):
    pairs = [("action", action), ("addr", addr), ("size", size), ("stream", 0),
             ("time_us", time_us)]
    head = open_dict(pickler) + items(pickler, pairs) + pickler.text("compile_context")
    head += b"\x8c\x03N/A" + pickler.memoize()
    return head + pickler.text("user_metadata") + pickler.text("") + pickler.text("frames") \
        + stack() + b"u"


class Batch:
    """999 events as a struct format; what changes between batches are 4-byte fields."""

    FIELDS = 17

    def __init__(self, pickler, stacks, sizes, time_us, no_stack):
        for word in ("free_requested", "free_completed"):
            pickler.put(event_bytes(pickler, word, BASE - STRIDE, 512, time_us, no_stack))
        self.args = []
        for stack, size in zip(stacks, sizes):
            code = b"".join(pickler.get(("frame", i)) for i in stack)
            code = b"]\x94(" + code + b"e" if stack else b"]\x94"
            self.args += self.event(pickler, "alloc", size, code + b"u")
            self.args += self.event(pickler, "free_requested", size, b"]\x94u")
            self.args += self.event(pickler, "free_completed", size, b"j") + [0, b"u"]
        self.args = [b"("] + self.args + [b"e"]
        self.packer = struct.Struct("<" + "".join(
            f"{len(a)}s" if isinstance(a, bytes) else "I" for a in self.args))

    @staticmethod
    def event(pickler, action, size, tail):
        get = pickler.get
        head = b"}\x94(" + get("action") + get(action) + get("addr") + b"\x8a\x06"
        middle = (BASE >> 32).to_bytes(2, "little") + get("size") + number(size) + get("stream") \
            + b"K\x00" + get("time_us") + b"\x8a\x07"
        end = (START_US >> 32).to_bytes(3, "little") + get("compile_context") + b"\x8c\x03N/A\x94" \
            + get("user_metadata") + get("") + get("frames") + tail
        return [head, 0, middle, 0, end]

    def fill(self, number_of_batch, memo, time_low):
        """The bytes of one batch; time_low are the low 32 bits of its first event's time."""
        args, step = self.args, self.FIELDS
        born = BASE + number_of_batch % GENERATIONS * TRIPLES * STRIDE & 0xFFFFFFFF
        dead = BASE + (number_of_batch + 1) % GENERATIONS * TRIPLES * STRIDE & 0xFFFFFFFF
        for field, start in ((2, born), (7, dead), (12, dead)):
            args[field:-1:step] = range(start, start + TRIPLES * STRIDE, STRIDE)
        for field, late in ((4, 0), (9, 7), (14, 9)):
            args[field:-1:step] = range(time_low + late, time_low + late + TRIPLES * 20, 20)
        args[16:-1:step] = range(memo + 5, memo + 5 + TRIPLES * MEMO_PER_TRIPLE, MEMO_PER_TRIPLE)
        return self.packer.pack(*args)


def write_tail(pickler, end_us):
    put = pickler.put
    put(pickler.text("allocator_settings") + open_dict(pickler))
    put(items(pickler, [("PYTORCH_CUDA_ALLOC_CONF", ""), ("max_split_size", -1),
                        ("expandable_segments", True)]) + b"u")
    put(pickler.text("external_annotations") + open_list(pickler))
    for stage, time_us in (("START", end_us - 40), ("END", end_us - 10)):
        put(open_dict(pickler) + items(pickler, [
            ("stage", stage), ("name", "Optimizer.step#AdamW.step"), ("device", 0),
            ("time_us", time_us)]) + b"u")
    put(b"eu.")
    pickler.flush()


def write_segments(pickler, make_stack, sizes, step, leak):
    put = pickler.put
    put(pickler.text("segments") + open_list(pickler))
    if leak:
        for i in range(step):
            addr = LEAK_BASE + i * leak
            put(segment_bytes(pickler, addr, [(addr, leak, leak, make_stack(-1))],
                              make_stack(-1), False))
    put(segment_bytes(pickler, BASE, tiles(sizes, make_stack), make_stack(None), True))
    put(b"e")
    pickler.flush()


def write_snapshot(path, events=None, size_bytes=None, step=1, leak=0, seed=1):
    """Writes one file and returns its number of events; step counts from 1."""
    rng = random.Random(seed)
    frames, stacks = frame_table(rng), stack_table(rng)
    sizes = [min(STRIDE, rng.choice((16, 512, 2048, 40960, 526336, STRIDE)) + 4 * rng.randrange(99))
             for _ in range(TRIPLES)]
    with open(path, "wb") as out:
        pickler = Pickler(out)

        def make_stack(i):
            stack = [] if i is None else [299, 0, 1] if i < 0 else stacks[i]
            return lambda: stack_bytes(pickler, frames, stack)

        no_stack = make_stack(None)
        pickler.put(open_dict(pickler))
        write_segments(pickler, make_stack, sizes, step, leak)
        pickler.put(pickler.text("device_traces") + open_list(pickler) + open_list(pickler))
        count = 3
        # times go on from file to file: room for 10 million events in each
        turn = START_US + (step - 1) * 240_000_000
        pickler.put(event_bytes(pickler, "alloc", BASE - STRIDE, 512, turn, no_stack))
        batch = Batch(pickler, stacks, sizes, turn, no_stack)
        if leak:
            addr = LEAK_BASE + (step - 1) * leak
            for action in ("segment_alloc", "alloc"):
                pickler.put(event_bytes(pickler, action, addr, leak, turn, make_stack(-1)))
                count += 1
        pickler.put(b"e")
        batches = (events or 0) // BATCH_EVENTS + GENERATIONS
        if size_bytes is not None:
            batches = (size_bytes - out.tell() - len(pickler.buffer)) // batch.packer.size
        batches = max(GENERATIONS, batches // GENERATIONS * GENERATIONS)
        for i in range(batches):
            time_us = turn + 100 + i * TRIPLES * 20
            pickler.put(batch.fill(i, pickler.memo_count, time_us & 0xFFFFFFFF))
            pickler.memo_count += TRIPLES * MEMO_PER_TRIPLE
            pickler.flush()
        pickler.put(b"e")
        write_tail(pickler, turn + 200 + batches * TRIPLES * 20)
    return count + batches * BATCH_EVENTS


def main():
    parser = argparse.ArgumentParser(description="write a large PyTorch memory snapshot")
    parser.add_argument("out")
    parser.add_argument("--events", type=int)
    parser.add_argument("--size", type=int, help="bytes, nearly")
    parser.add_argument("--step", type=int, default=1)
    parser.add_argument("--leak", type=int, default=0, help="bytes of one more block each step")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if (args.events is None) == (args.size is None):
        parser.error("one of --events and --size")
    events = write_snapshot(args.out, args.events, args.size, args.step, args.leak, args.seed)
    print(events, "events")


if __name__ == "__main__":
    main()
