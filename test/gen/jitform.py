# SPDX-License-Identifier: Apache-2.0
"""The bytes of torch's C++ writer (_memory_snapshot_pickled, the pickler of torch.jit).

It is not Python's pickle: protocol 2, no FRAME and no MEMOIZE; a whole list is one batch of APPENDS
and a whole dict one of SETITEMS, also when empty; strings are shared by value, containers only
where something else holds them at the time of writing, and then stored in the memo after they are
complete; integers that need more than 32 bits are LONG1 of eight bytes; BINPUT changes to
LONG_BINPUT after 255. The recording test/data/real/cpp_writer.pickle.xz, loaded and written again
here, comes out the same to the byte."""

import collections
import struct


def dumps(value):
    """value as the C++ writer would write it."""
    return _Writer(value).run()


class _Writer:
    def __init__(self, value):
        self.value = value
        self.out = bytearray()
        self.uses = collections.Counter()
        self.held = {id(value)}
        self.no_context = set()  # the empty lists of free blocks
        if isinstance(value, dict):
            self.held.update(id(v) for v in value.values())
            for inner in value.values():
                if isinstance(inner, dict):
                    self.held.update(id(v) for v in inner.values())
        self.strings, self.objects = {}, {}
        self.next_memo = 0

    def run(self):
        self._count(self.value)
        self.out += b"\x80\x02"
        self._push(self.value)
        self.out += b"."
        return bytes(self.out)

    def _count(self, value):
        """How many holders each container has: only shared ones enter the memo."""
        if not isinstance(value, (dict, list, tuple)):
            return
        self.uses[id(value)] += 1
        if self.uses[id(value)] > 1:
            return
        if isinstance(value, dict) and "frames" in value:
            self.held.add(id(value["frames"]))
            if value.get("state") == "inactive" and value["frames"] == []:
                self.no_context.add(id(value["frames"]))
        for item in value.values() if isinstance(value, dict) else value:
            self._count(item)

    def _is_held(self, value):
        """torch still holds these when it writes: entries whose frames it adds at the end, the
        lists of frames, and all that the top has. What has no context has an empty list that was
        there from the beginning, and is not held for it."""
        return (self.uses[id(value)] > 1 or id(value) in self.held
                or isinstance(value, dict) and "frames" in value
                and id(value["frames"]) not in self.no_context)

    def _put(self):
        memo, self.next_memo = self.next_memo, self.next_memo + 1
        self.out += b"q" + bytes([memo]) if memo < 256 else b"r" + struct.pack("<I", memo)
        return memo

    def _get(self, memo):
        self.out += b"h" + bytes([memo]) if memo < 256 else b"j" + struct.pack("<I", memo)

    def _push(self, value):
        if isinstance(value, str):
            self._push_string(value)
        elif isinstance(value, bool):
            self.out += b"\x88" if value else b"\x89"
        elif isinstance(value, int):
            self._push_int(value)
        elif isinstance(value, float):
            self.out += b"G" + struct.pack(">d", value)
        elif value is None:
            self.out += b"N"
        elif id(value) in self.objects:
            self._get(self.objects[id(value)])
        else:
            self._push_container(value)
            if self._is_held(value):
                self.objects[id(value)] = self._put()

    def _push_container(self, value):
        if isinstance(value, dict):
            self.out += b"}("
            for key, item in value.items():
                self._push(key)
                self._push(item)
            self.out += b"u"
        elif isinstance(value, list):
            self.out += b"]("
            for item in value:
                self._push(item)
            self.out += b"e"
        elif not value:
            self.out += b")"
        else:
            if len(value) > 3:
                self.out += b"("
            for item in value:
                self._push(item)
            self.out += {1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(value), b"t")

    def _push_string(self, value):
        if value in self.strings:
            self._get(self.strings[value])
            return
        raw = value.encode("utf-8", "surrogatepass")
        self.out += b"X" + struct.pack("<I", len(raw)) + raw
        self.strings[value] = self._put()

    def _push_int(self, value):
        if 0 <= value < 256:
            self.out += b"K" + bytes([value])
        elif 0 <= value < 65536:
            self.out += b"M" + struct.pack("<H", value)
        elif -(1 << 31) <= value < 1 << 31:
            self.out += b"J" + struct.pack("<i", value)
        else:
            self.out += b"\x8a\x08" + struct.pack("<Q", value & ((1 << 64) - 1))
