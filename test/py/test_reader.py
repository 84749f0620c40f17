# SPDX-License-Identifier: Apache-2.0
"""The reader holds what Python's pickle holds: recordings, and generated files of every version,
writer and protocol."""

import lzma
import pickle

import pytest

from conftest import DATA
from expect import FromDump, FromPickle, differences
from gen import forms, jitform, samples

RECORDINGS = sorted(str(p.relative_to(DATA)) for p in DATA.rglob("*.xz"))
SAMPLES = list(samples.everything())


def check(dump, path, snapshot):
    """Both ways must tell the same."""
    result = dump(path)
    assert result.status == 0, result.err
    assert differences(FromPickle(snapshot), FromDump(result.out)) == []
    return result


@pytest.mark.parametrize("name", RECORDINGS)
def test_recording(dump, raw, name):
    """Every field of every event, block, segment and annotation."""
    path = raw(name)
    check(dump, path, pickle.loads(path.read_bytes()))


@pytest.mark.parametrize("writer", sorted(forms.WRITERS))
@pytest.mark.parametrize("version", forms.VERSIONS)
def test_versions_and_writers(dump, tmp_path, version, writer):
    """Missing keys, older blocks, and all the ways to write the same thing."""
    snapshot = forms.shape(samples.rich(), version)
    path = tmp_path / "s.pickle"
    path.write_bytes(forms.WRITERS[writer](snapshot))
    result = check(dump, path, pickle.loads(path.read_bytes()))
    protocol = {"py2": 2, "py3": 3, "py5": 5, "cpp": 2}.get(writer, 4)
    assert f"protocol {protocol} " in result.out


@pytest.mark.parametrize("writer", ("py2", "py5", "cpp", "pure"))
@pytest.mark.parametrize("name, snapshot", SAMPLES, ids=[name for name, _ in SAMPLES])
def test_samples(dump, tmp_path, name, snapshot, writer):
    """Devices, streams, pools, expandable segments, rings, no history, nothing at all."""
    snapshot = forms.shape(snapshot, "head")
    path = tmp_path / (name + ".pickle")
    path.write_bytes(forms.WRITERS[writer](snapshot))
    check(dump, path, snapshot)


@pytest.mark.parametrize("writer", ("py2", "py3", "py4", "py5", "cpp", "optimized"))
def test_list_form(dump, tmp_path, writer):
    """torch.cuda.memory_snapshot(): a bare list."""
    path = tmp_path / "l.pickle"
    path.write_bytes(forms.WRITERS[writer](forms.bare_list(samples.rich())))
    check(dump, path, pickle.loads(path.read_bytes()))


def test_tuples_as_lists(dump, tmp_path):
    """Re-saved after a detour through JSON."""
    snapshot = forms.no_tuples(forms.shape(samples.rich(), "head"))
    path = tmp_path / "j.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    check(dump, path, snapshot)


@pytest.mark.parametrize("order", ("reversed", "host first", "settings first"))
def test_key_order(dump, tmp_path, order):
    """Nothing may depend on the order of keys: C++ puts frames last, newer versions add some."""
    snapshot = forms.shape(samples.rich(), "head")
    if order == "reversed":
        snapshot = _reversed(snapshot)
    else:
        first = "host_segments" if order == "host first" else "allocator_settings"
        keys = sorted(snapshot, key=lambda k: (not k.startswith(first[:4]), k))
        snapshot = {k: snapshot[k] for k in keys}
    path = tmp_path / "o.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    check(dump, path, snapshot)


def _reversed(value, seen=None):
    """All dicts turned round; what was shared stays shared."""
    seen = {} if seen is None else seen
    if id(value) in seen:
        return seen[id(value)][0]
    out = value
    if isinstance(value, dict):
        out = {k: _reversed(v, seen) for k, v in reversed(list(value.items()))}
    elif isinstance(value, list):
        out = [_reversed(v, seen) for v in value]
    seen[id(value)] = (out, value)  # the value is kept so that its id stays its own
    return out


def test_unknown_action_and_state(dump, tmp_path):
    """Kinds of a later torch are held as 'other', not refused."""
    snapshot = samples.rich()
    snapshot["device_traces"][0][0]["action"] = "segment_teleport"
    snapshot["segments"][0]["blocks"][0]["state"] = "active_awaiting_free"
    path = tmp_path / "u.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    check(dump, path, snapshot)


@pytest.mark.parametrize("writer", ("py4", "cpp"))
def test_many_events(dump, tmp_path, writer):
    """More entries than one batch of a C++ writer was ever read with by the viewer (125,000)."""
    frames = [{"name": "f", "filename": "a.py", "line": 3}]
    trace = [{"action": ("alloc", "free_completed")[i & 1], "addr": 0x7F0000000000 + (i >> 1),
              "size": 512, "stream": 0, "time_us": 1_796_000_000_000_000 + i, "frames": frames}
             for i in range(131_000)]
    snapshot = {"segments": [], "device_traces": [trace]}
    path = tmp_path / "m.pickle"
    path.write_bytes(forms.WRITERS[writer](snapshot))
    check(dump, path, snapshot)


@pytest.mark.parametrize("spoil", (
    lambda s: s["device_traces"][0][7].update(size=1),
    lambda s: s["device_traces"][0][9]["frames"].pop(),
    lambda s: s["segments"][0]["blocks"][0].update(state="inactive"),
    lambda s: s["external_annotations"].pop(),
    lambda s: s["device_traces"][0].pop(),
    lambda s: s["device_traces"].append([])))
def test_differences_are_seen(dump, tmp_path, spoil):
    """The comparison itself can fail."""
    snapshot = samples.rich()
    path = tmp_path / "d.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    spoil(snapshot)
    assert differences(FromPickle(snapshot), FromDump(dump(path).out)) != []


def test_sharing_stays(dump, raw):
    """A file with half a million references to frames has some hundreds of them: the reader's
    tables must be as small."""
    path = raw("qwen_vl_leak_logits.pickle.xz")
    snapshot = pickle.loads(path.read_bytes())
    distinct = {(f["name"], f["filename"], f["line"]) for e in snapshot["device_traces"][0]
                for f in e.get("frames", ())}
    result = dump(path)
    assert result.out.count("\nframe ") <= len(distinct) + 200


def test_jit_writer_is_torchs():
    """The C++ emitter is what it claims: what torch's own writer wrote on a card, loaded by Python
    and written again, comes out the same to the byte."""
    data = lzma.open(DATA / "real/cpp_writer.pickle.xz").read()
    assert jitform.dumps(pickle.loads(data)) == data


def test_jit_writer_is_not_pythons():
    """Protocol 2, whole lists at once, LONG1 of eight bytes; and Python reads it back."""
    shared = {"k": 1}
    value = [{"a": [shared, shared], "n": [], "i": [0, 255, 256, 65536, -1, 1 << 40],
              "t": (1, 2), "f": 0.5, "b": [True, False]}]
    data = jitform.dumps(value)
    assert data.startswith(b"\x80\x02](}(X\x01\x00\x00\x00aq\x00](}(X\x01\x00\x00\x00kq\x01K\x01u")
    assert b"q\x02h\x02e" in data and b"\x8a\x08" in data and b"](e" in data
    assert b"\x95" not in data and b"\x94" not in data
    assert pickle.loads(data) == value
