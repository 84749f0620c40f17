# SPDX-License-Identifier: Apache-2.0
"""torch's caching allocator in miniature: enough of it that its snapshots have the shape of real
ones. Sizes are rounded to 512, blocks split and merge, segments tile exactly, expandable segments
map and unmap, frees of a block that another stream used complete later."""

import bisect

MIB = 1 << 20
SMALL = MIB  # the largest request that the small pool serves
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
           "segment_map", "segment_unmap", "oom", "snapshot", "annotate")


class Clock:
    """Microseconds since 1970, shared by the devices of a process; moves on at every reading."""

    def __init__(self, start=1_796_105_584_000_000, tick=7):
        self.now = start
        self.tick = tick

    def read(self):
        """The time, later than at the last reading."""
        self.now += self.tick
        return self.now


class Block:
    """A piece of a segment."""

    __slots__ = ("addr", "size", "requested", "state", "frames", "segment")

    def __init__(self, addr, size, segment):
        self.addr = addr
        self.size = size
        self.requested = 0
        self.state = "inactive"
        self.frames = None
        self.segment = segment

    def __lt__(self, other):
        return self.addr < other.addr


class Segment:
    """Memory from the driver, tiled by blocks."""

    def __init__(self, addr, total, pool_key, expandable, frames):
        self.addr = addr
        self.total = total
        self.stream, self.pool, self.large = pool_key
        self.expandable = expandable
        self.frames = frames
        self.blocks = [Block(addr, total, self)]

    def __lt__(self, other):
        return self.addr < other.addr

    @property
    def end(self):
        """The first address behind it."""
        return self.addr + self.total


def fresh(text):
    """A string object of its own: torch makes a new one per event, so pickle does not share it."""
    return str(text.encode(), "ascii")


class Allocator:
    """One device. Stacks are sequences of frames; each event gets a list of its own."""

    def __init__(self, clock, device=0, expandable=False, base=0x7F1500000000):
        self.clock = clock
        self.device = device
        self.expandable = expandable
        self.metadata = ""
        self.context = "N/A"
        self.events = []
        self.segments = []
        self.recording = True
        self._next = base + device * (1 << 40)

    # ---- events

    def _event(self, action, addr, size, stream, pool, frames):
        if not self.recording:
            return
        event = {"action": action}
        event["device_free" if action == "oom" else "addr"] = addr
        event["size"] = size
        event["stream"] = stream
        event["time_us"] = self.clock.read()
        event["compile_context"] = fresh(self.context)
        event["user_metadata"] = self.metadata
        event["pool_id"] = pool
        if frames is not None:
            event["frames"] = frames
        self.events.append(event)

    def oom(self, size, free, stack):
        """A request that failed."""
        self._event("oom", free, size, 0, (0, 0), list(stack))

    def mark_snapshot(self):
        """What torch leaves in the history when a snapshot was taken."""
        active = sum(b.size for s in self.segments for b in s.blocks if b.state != "inactive")
        self._event("snapshot", 0, active, 0, (0, 0), None)

    def annotate(self, block, text):
        """A note of the program on a live block."""
        saved, self.metadata = self.metadata, text
        self._event("annotate", block.addr, block.requested, block.segment.stream,
                    block.segment.pool, None)
        self.metadata = saved

    # ---- blocks

    def alloc(self, size, stack, stream=0, pool=(0, 0)):
        """Hands out a block; stack None: recorded without frames."""
        frames = None if stack is None else list(stack)
        rounded = max(512, (size + 511) // 512 * 512)
        key = (stream, pool, rounded > SMALL)
        block = self._best_fit(rounded, key)
        if block is None:
            block = self._grow(rounded, key, frames)
        self._split(block, rounded)
        block.requested = size
        block.state = "active_allocated"
        block.frames = frames
        self._event("alloc", block.addr, size, stream, pool, frames)
        return block

    def free(self, block, stack=None, complete=True):
        """Frees a block; without `complete` it stays pending, until complete()."""
        frames = None if stack is None else list(stack)
        segment = block.segment
        self._event("free_requested", block.addr, block.requested, segment.stream, segment.pool,
                    frames)
        block.state = "active_pending_free"
        if complete:
            self.complete(block, frames)

    def complete(self, block, frames=None):
        """The streams are done with it: reusable, merged with its free neighbours."""
        segment = block.segment
        self._event("free_completed", block.addr, block.requested, segment.stream, segment.pool,
                    frames)
        block.state = "inactive"
        block.frames = None
        at = bisect.bisect_left(segment.blocks, block)
        for left in (at, at - 1):
            if left < 0 or left + 1 >= len(segment.blocks):
                continue
            first, second = segment.blocks[left:left + 2]
            if first.state == second.state == "inactive":
                first.size += second.size
                del segment.blocks[left + 1]

    def _best_fit(self, size, key):
        best = None
        for segment in self.segments:
            if (segment.stream, segment.pool, segment.large) != key:
                continue
            if segment.expandable != self.expandable:
                continue
            for block in segment.blocks:
                if block.state == "inactive" and block.size >= size:
                    if best is None or block.size < best.size:
                        best = block
        return best

    def _split(self, block, size):
        rest = block.size - size
        if rest < 512 or (block.segment.large and not block.segment.expandable and rest <= MIB):
            return
        tail = Block(block.addr + size, rest, block.segment)
        tail.requested = block.requested  # torch leaves a stale figure on free blocks, too
        block.size = size
        bisect.insort(block.segment.blocks, tail)

    # ---- segments

    def _grow(self, size, key, frames):
        unit = 20 * MIB if key[2] else 2 * MIB
        if self.expandable:
            return self._map(size, key, unit, frames)
        total = max(unit, (size + 2 * MIB - 1) // (2 * MIB) * 2 * MIB)
        if key[2] and size < 10 * MIB:
            total = 20 * MIB
        segment = Segment(self._reserve(total), total, key, False, frames)
        self._event("segment_alloc", segment.addr, total, key[0], key[1], frames)
        bisect.insort(self.segments, segment)
        return segment.blocks[0]

    def _reserve(self, total):
        addr = self._next
        self._next += total + 2 * MIB
        return addr

    def _map(self, size, key, unit, frames):
        """Expandable: the segment of this pool grows at its end, by whole units."""
        mine = [s for s in self.segments
                if s.expandable and (s.stream, s.pool, s.large) == key]
        if not mine:
            grow = (size + unit - 1) // unit * unit
            segment = Segment(self._reserve(1 << 36), grow, key, True, frames)
            bisect.insort(self.segments, segment)
            block = segment.blocks[0]
        else:
            segment = mine[-1]
            last = segment.blocks[-1]
            have = last.size if last.state == "inactive" else 0
            grow = (size - have + unit - 1) // unit * unit
            if have:
                block = last
                block.size += grow
            else:
                block = Block(segment.addr + segment.total, grow, segment)
                segment.blocks.append(block)
            segment.total += grow
        self._event("segment_map", segment.end - grow, grow, key[0], key[1], frames)
        return block

    def empty_cache(self, stack=None):
        """Whole free segments go back; of expandable ones, the free tail in whole granules."""
        frames = None if stack is None else list(stack)
        kept = []
        for segment in self.segments:
            if segment.expandable:
                self._unmap_tail(segment, frames)
                if segment.total:
                    kept.append(segment)
            elif len(segment.blocks) == 1 and segment.blocks[0].state == "inactive":
                self._event("segment_free", segment.addr, segment.total, segment.stream,
                            segment.pool, frames)
            else:
                kept.append(segment)
        self.segments = kept

    def _unmap_tail(self, segment, frames):
        last = segment.blocks[-1]
        if last.state != "inactive":
            return
        cut = last.size // (2 * MIB) * 2 * MIB
        if not cut:
            return
        last.size -= cut
        segment.total -= cut
        if not last.size:
            segment.blocks.pop()
        self._event("segment_unmap", segment.end, cut, segment.stream, segment.pool, frames)

    # ---- what the program and the snapshot see

    def live(self):
        """Requested bytes that the program holds."""
        return sum(b.requested for s in self.segments for b in s.blocks
                   if b.state == "active_allocated")

    def reserved(self):
        """Bytes held from the driver."""
        return sum(s.total for s in self.segments)

    def clear_history(self):
        """As _record_memory_history(enabled=None) and on again: the events are gone, blocks and
        their frames stay."""
        self.events = []

    def export_segments(self):
        """The list under "segments", in the shape of torch 2.11."""
        return [self._export(s) for s in self.segments]

    def _export(self, segment):
        blocks = []
        allocated = active = requested = 0
        for block in segment.blocks:
            blocks.append({"address": block.addr, "size": block.size,
                           "requested_size": block.requested, "state": block.state,
                           "frames": block.frames if block.frames is not None else []})
            if block.state == "active_allocated":
                allocated += block.size
            if block.state != "inactive":
                active += block.size
                requested += block.requested
        return {"device": self.device, "address": segment.addr, "total_size": segment.total,
                "allocated_size": allocated, "active_size": active, "requested_size": requested,
                "stream": segment.stream,
                "segment_type": "large" if segment.large else "small",
                "segment_pool_id": segment.pool, "is_expandable": segment.expandable,
                "frames": segment.frames if segment.frames is not None else [],
                "blocks": blocks}
