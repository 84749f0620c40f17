# SPDX-License-Identifier: Apache-2.0
"""The shapes that snapshots had in torch's versions, and the writers that wrote them."""

import copy
import io
import pickle
import pickletools

from . import jitform

# Keys of an event that a version did not know yet.
_EVENT_LACKS = {
    "2.0": {"time_us", "compile_context", "user_metadata", "pool_id"},
    "2.1": {"compile_context", "user_metadata", "pool_id"},
    "2.4": {"compile_context", "user_metadata", "pool_id"},
    "2.6": {"user_metadata", "pool_id"},
    "2.9": {"user_metadata", "pool_id"},
    "2.11": {"pool_id"},
    "head": set(),
}
_SEGMENT_LACKS = {
    "2.0": {"requested_size", "segment_pool_id", "is_expandable", "frames", "address_order"},
    "2.1": {"segment_pool_id", "frames"},
}
_TOP_LACKS = {
    "2.0": {"allocator_settings", "external_annotations"},
    "2.1": {"allocator_settings", "external_annotations"},
    "2.4": {"external_annotations"},
}
VERSIONS = tuple(_EVENT_LACKS)


def shape(snapshot, version):
    """snapshot (as allocator.py makes it) in the shape of `version`. Shared objects stay shared."""
    out = {k: v for k, v in snapshot.items() if k not in _TOP_LACKS.get(version, ())}
    lacks = _SEGMENT_LACKS.get(version, set())
    out["segments"] = [_segment(s, version, lacks) for s in snapshot["segments"]]
    gone = _EVENT_LACKS[version]
    out["device_traces"] = [
        [{k: v for k, v in e.items() if k not in gone} for e in trace]
        for trace in snapshot["device_traces"]]
    if version == "head":
        out["host_segments"] = [_host(s) for s in out["segments"][:1]]
        out["host_traces"] = [[dict(e) for e in t[:3]] for t in out["device_traces"][:1]]
        out["unheard_of"] = {"a": [1, (2, 3, 4, 5), None, -1, 2.5, {"b": True}], "c": ()}
        for segment in out["segments"]:
            segment["registration_counter"] = -1
    return out


def _host(segment):
    """Pinned host memory looks the same; frames are shared with the device's, blocks never."""
    return dict(segment, device=-1, blocks=[dict(b) for b in segment["blocks"]])


def _segment(segment, version, lacks):
    out = {k: v for k, v in segment.items() if k not in lacks}
    if version == "2.0":
        out["blocks"] = [_old_block(b) for b in segment["blocks"]]
    elif version == "2.1":
        out["blocks"] = [{k: v for k, v in b.items() if k != "address"}
                         for b in segment["blocks"]]
    return out


def _old_block(block):
    """2.0: no address, no requested size; frames in a list of past uses, latest first."""
    out = {"size": block["size"], "state": block["state"]}
    if block["frames"]:
        out["history"] = [{"addr": block["address"], "real_size": block["requested_size"],
                           "frames": block["frames"]}]
    return out


def bare_list(snapshot):
    """What pickle.dump(torch.cuda.memory_snapshot()) writes: segments only."""
    return snapshot["segments"]


def no_tuples(value):
    """A copy as it comes back from JSON: tuples are lists, nothing is shared."""
    if isinstance(value, dict):
        return {k: no_tuples(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [no_tuples(v) for v in value]
    return value


def _python(protocol):
    return lambda value: pickle.dumps(value, protocol)


def _no_memo(value):
    """A pickler in fast mode: every shared frame is written again."""
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 4)
    pickler.fast = True
    pickler.dump(value)
    return out.getvalue()


def _pure_python(value):
    """The pickler written in Python frames and batches differently from the one in C."""
    out = io.BytesIO()
    pickle._Pickler(out, 4).dump(value)  # pylint: disable=protected-access
    return out.getvalue()


def _optimized(value):
    """Re-saved by a tool that drops what the memo never gives back."""
    return pickletools.optimize(pickle.dumps(copy.copy(value), 4))


WRITERS = {
    "py2": _python(2), "py3": _python(3), "py4": _python(4), "py5": _python(5),
    "cpp": jitform.dumps, "nomemo": _no_memo, "pure": _pure_python, "optimized": _optimized,
}
