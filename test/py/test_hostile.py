# SPDX-License-Identifier: Apache-2.0
"""Bad input: a sentence with file and offset, status 2, bounded memory, never a crash."""

import gzip
import json
import lzma
import random
import re

import pytest
import zstandard

from conftest import MIB, crashed
from gen import forms, hostile, samples

BAD = list(hostile.everything())


def small(writer="py4"):
    """A snapshot of a few kilobytes."""
    return forms.WRITERS[writer](forms.shape(samples.lost_beginning(), "2.6"))


def refused(result, path, offset=None):
    """Status 2, nothing on stdout, one sentence that names the file and the byte."""
    assert not crashed(result), result.err
    assert result.status == 2, result.out[:300]
    assert result.out == ""
    assert str(path) in result.err
    told = re.search(r"at byte (\d+)", result.err)
    assert told or "empty" in result.err, result.err
    if offset is not None:
        assert int(told.group(1)) == offset, result.err


@pytest.mark.parametrize("bad", BAD, ids=[b.name for b in BAD])
def test_refused(tidegate, tmp_path, bounded, bad):
    """Whatever the bytes say, memory stays below what the header promises: 64 MiB and twice the
    file; the rest is for the program itself and its threads. And it is over in seconds."""
    path = tmp_path / "bad.pickle"
    path.write_bytes(bad.data)
    result = tidegate("leak", path, limit_bytes=bounded(len(bad.data)), timeout=10)
    assert not crashed(result), (result.status, result.err)
    if bad.kind == "either" and result.status == 0:
        return
    refused(result, path, bad.offset)
    assert ("construct" in result.err) == (bad.kind == "unsafe"), result.err


def test_json_has_an_end(tidegate, tmp_path, bounded):
    """One name of a megabyte, thousands of times in one stack: the answer is cut, and valid."""
    name = "n" * MIB
    frames = [{"name": name, "filename": "/w/" + name + ".py", "line": 1}] * 8000
    write = forms.WRITERS["cpp"]
    for step in range(1, 5):
        blocks = [{"address": i << 20, "size": MIB, "requested_size": MIB,
                   "state": "active_allocated", "frames": frames} for i in range(1, step + 1)]
        segment = {"device": 0, "address": 0, "total_size": 64 * MIB, "allocated_size": 0,
                   "active_size": 0, "stream": 0, "segment_type": "large", "blocks": blocks}
        (tmp_path / f"step{step}.pickle").write_bytes(
            write({"segments": [segment], "device_traces": [[]]}))
    result = tidegate("leak", "--json", tmp_path, limit_bytes=bounded(64 * MIB), timeout=10)
    assert result.status == 0, result.err
    assert len(result.out) < 4 * MIB
    leak, = json.loads(result.out)["leaks"]
    assert leak["bytes_per_step"] == MIB
    assert len(leak["stack"]) == 256
    assert leak["stack"][0]["function"] == "n" * 1024 + "..."


@pytest.mark.parametrize("writer", ("py2", "py5", "cpp"))
def test_truncated_at_every_byte(dump, tmp_path, bounded, writer):
    """No prefix of a file is a file: each is refused, with a byte inside it."""
    data = small(writer)
    path = tmp_path / "whole.pickle"
    path.write_bytes(data)
    result = dump("--torture", "prefixes", 0, 0, path, limit_bytes=bounded(len(data)))
    assert not crashed(result), result.err
    assert result.out == f"read 0 refused {len(data)}\n", result.err


@pytest.mark.parametrize("name", ("qwen_vl_leak_logits.pickle.xz",
                                  "verl_logits/step2/torch_memory_rank1_pid4013.pickle.xz"))
def test_recording_truncated(dump, raw, bounded, name):
    """200 places of a recording."""
    path = raw(name)
    result = dump("--torture", "cuts", 20, 200, path, limit_bytes=bounded(path.stat().st_size))
    assert not crashed(result), result.err
    assert result.out == "read 0 refused 200\n", result.err


@pytest.mark.parametrize("writer", ("py2", "py4", "py5", "cpp", "nomemo"))
def test_flipped_bytes(dump, tmp_path, bounded, writer):
    """Read or refused; what is read also goes through the search."""
    data = small(writer)
    path = tmp_path / "flip.pickle"
    path.write_bytes(data)
    result = dump("--torture", "flips", 5, 1500, path, limit_bytes=bounded(len(data)))
    assert not crashed(result), result.err
    assert result.status == 0, result.err
    assert sum(map(int, re.findall(r"\d+", result.out))) == 1500


@pytest.mark.parametrize("cut", (0.1, 0.5, 0.999))
def test_command_on_truncated(tidegate, raw, tmp_path, cut):
    """The command's own words for it."""
    data = raw("qwen_vl_oom.pickle.xz").read_bytes()
    path = tmp_path / "short.pickle"
    path.write_bytes(data[:int(len(data) * cut)])
    refused(tidegate("leak", path), path)


PACK = {"gz": lambda d: gzip.compress(d, 1), "xz": lambda d: lzma.compress(d, preset=0),
        "zst": lambda d: zstandard.ZstdCompressor(1).compress(d)}


@pytest.mark.parametrize("ending", sorted(PACK))
def test_packed_truncated(tidegate, tmp_path, ending):
    """A compressed file that ends too early, at some places of the stream."""
    packed = PACK[ending](small())
    for cut in sorted({1, 2, 5, 11, len(packed) // 2, len(packed) - 1}):
        path = tmp_path / f"p.pickle.{ending}"
        path.write_bytes(packed[:cut])
        result = tidegate("leak", path)
        assert not crashed(result) and result.status == 2, (cut, result.err)
        assert str(path) in result.err and result.out == ""


@pytest.mark.parametrize("ending", sorted(PACK))
def test_packed_flipped(tidegate, tmp_path, ending):
    """Damage inside: refused, by the unpacker or by the reader."""
    packed, rng = PACK[ending](small()), random.Random(4)
    for _ in range(12):
        data = bytearray(packed)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path = tmp_path / f"f.pickle.{ending}"
        path.write_bytes(data)
        result = tidegate("leak", path)
        assert not crashed(result) and result.status in (0, 2), result.err


@pytest.mark.parametrize("ending", sorted(PACK))
@pytest.mark.parametrize("real", sorted(PACK) + ["raw"])
def test_wrong_ending(tidegate, tmp_path, ending, real):
    """What is inside counts, not the name. (A decision: the contract only asks that it not crash;
    people rename files, and the magic numbers are certain.)"""
    data = small()
    path = tmp_path / f"w.pickle.{ending}"
    path.write_bytes(data if real == "raw" else PACK[real](data))
    result = tidegate("leak", path)
    assert not crashed(result) and result.status == 0, result.err


@pytest.mark.slow
@pytest.mark.parametrize("ending", sorted(PACK))
@pytest.mark.parametrize("head", (b"", b"\x80\x04}X" + (300 * MIB).to_bytes(4, "little")),
                         ids=("zeros", "one long text"))
def test_bomb(tidegate, tmp_path, ending, head):
    """Hundreds of megabytes in a few kilobytes. --memory bounds what is unpacked, and the sentence
    says so; without it the bound is a share of the machine's memory, and what comes out is refused
    by the reader."""
    path = tmp_path / f"bomb.pickle.{ending}"
    path.write_bytes(PACK[ending](head + bytes(300 * MIB)))
    result = tidegate("leak", "--memory", "64MiB", path, timeout=60)
    assert not crashed(result) and result.status == 2 and result.out == ""
    assert str(path) in result.err
    assert "64" in result.err or not head, result.err  # zeros are no pickle: seen at once
    assert result.peak_bytes < 200 * MIB
    result = tidegate("leak", path, timeout=60)
    assert not crashed(result) and result.status == 2 and result.out == "", result.err
    assert str(path) in result.err


def test_names_that_are_not_utf8(tidegate, tmp_path):
    """Functions and files with broken bytes: the JSON stays JSON, in UTF-8."""
    data = forms.WRITERS["py4"](samples.rich())
    data = data.replace(b"update_policy", b"up\xff\xfe\x00te_po\x80cy")
    data = data.replace(b"/rl_actor.py", b"/\xc3\x28l_acto\xed\xa0y")
    path = tmp_path / "n.pickle"
    path.write_bytes(data)
    for args in (("leak",), ("leak", "--json")):
        result = tidegate(*args, path)
        assert result.status == 0, result.err
        result.out.encode("utf-8", "surrogateescape").decode("utf-8")
    result.json()


def test_path_that_is_not_utf8(tidegate, tmp_path):
    """A file whose own name is broken."""
    folder = str(tmp_path).encode() + b"/caf\xe9"
    import os  # pylint: disable=import-outside-toplevel
    os.mkdir(folder)
    with open(folder + b"/a\xff.pickle", "wb") as out:
        out.write(small())
    result = tidegate("leak", "--json", os.fsdecode(folder))
    assert len(result.json()["inputs"]) == 1
    result.out.encode("utf-8", "surrogateescape").decode("utf-8")


def test_control_bytes_do_not_reach_the_terminal(tidegate, tmp_path):
    """A function named with an escape sequence must not set the reader's terminal."""
    data = forms.WRITERS["py4"](samples.rich())
    path = tmp_path / "e.pickle"
    path.write_bytes(data.replace(b"update_policy", b"\x1b[31mred\x07\x1b[m!"))
    result = tidegate("leak", path)
    assert result.status == 0 and "\x1b" not in result.out + result.err
