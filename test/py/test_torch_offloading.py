# SPDX-License-Identifier: Apache-2.0
"""verl's own load and offload over the real torch, with our part before them: content, where it
lies, what verl's still do, and that they do it all where ours cannot. For `make check-verl`."""

import json
import os
import subprocess
import sys

import pytest

from verl_wheels import TORCH, VERSIONS, Ran, environment, needs_verl, run

pytestmark = [needs_verl, pytest.mark.usefixtures("library")]
needs_torch = pytest.mark.skipif(not TORCH,
                                 reason="the real torch (1.5 GB) is for: make check-verl")
MOVING = tuple(version for version in VERSIONS if version >= "0.7.1")
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "verl_offload_world.py")


def start(folder, version, scenario, options, mode="on", **more):
    (folder / "cwd").mkdir(exist_ok=True, parents=True)
    env = environment(folder, version, "torch", mode, TIDEGATE_OFFLOAD="1", **more)
    return subprocess.Popen([sys.executable, SCRIPT, "torch", scenario, json.dumps(options or {})],
                            env=env, cwd=folder / "cwd", text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def end(process):
    out, err = process.communicate(timeout=120)
    return Ran(subprocess.CompletedProcess(process.args, process.returncode, out, err))


def play(folder, version, scenario, options=None, **more):
    return end(start(folder, version, scenario, options, **more))


@needs_torch
@pytest.mark.parametrize("version, kind", [(version, "fsdp2") for version in MOVING]
                         + [("0.9.1", kind) for kind in ("fsdp1", "fsdp1_orig", "none")])
def test_training_goes_on_as_under_verl_alone(tmp_path, version, kind):
    alone = play(tmp_path / "alone", version, "train", {"kind": kind}, mode=None)
    ours = play(tmp_path / "ours", version, "train", {"kind": kind})
    assert ours["losses"] == alone["losses"]
    assert (alone["ours"], ours["ours"]) == (False, True)
    # Everything that verl moves lies in the host copies, in all rounds in the same.
    assert all(all(flags) for flags in ours["held"][0]), ours["held"][0]
    assert ours["held"] == ours["held"][:1] * 4
    (_, optimizer), (state, _) = ours["sizes"][-1], ours["state"]
    assert state <= optimizer <= 1.02 * state + 64 * 12
    assert ours["emptied"] == alone["emptied"] == 3
    for words in ("offload model", "load model", "offload optimizer", "load optimizer"):
        assert len(ours.said(f"tidegate: {words} ")) == 1, words


@needs_torch
@pytest.mark.parametrize("kind", ["fsdp2", "fsdp1", "fsdp1_orig"])
def test_two_ranks_train_on(tmp_path, kind):
    """Shards of parameters, some of them not even: FSDP2 pads those anew, in memory of its own."""
    def ranks(mode):
        options = {"kind": kind, "ranks": 2}
        (tmp_path / str(mode)).mkdir()
        started = [start(tmp_path / str(mode), "0.9.1", "train", options, mode=mode, RANK=str(rank),
                         TIDEGATE_DIR=str(tmp_path / f"{mode}-{rank}")) for rank in (0, 1)]
        return [end(process) for process in started]

    for alone, ours in zip(ranks(None), ranks("on")):
        assert ours["losses"] == alone["losses"]
        assert ours["ours"] and not ours.said("cannot move")
        model, optimizer = ours["held"][-1]
        assert all(optimizer) and sum(model) >= (len(model) / 2 if kind == "fsdp2" else 1)


@needs_torch
def test_off_leaves_the_rest_to_verl(tmp_path):
    alone = play(tmp_path / "alone", "0.9.1", "train", mode=None)
    ours = play(tmp_path / "ours", "0.9.1", "train", {"off_after": 1})
    assert ours["losses"] == alone["losses"]
    assert ours["ours"] is False


@needs_torch
def test_without_host_memory_verls_own_runs_and_it_is_said_once(tmp_path):
    alone = play(tmp_path / "alone", "0.9.1", "train", mode=None)
    ours = play(tmp_path / "ours", "0.9.1", "train", TIDEGATE_HOST_BYTES="4KiB")
    assert ours["losses"] == alone["losses"]
    assert not any(flag for round_ in ours["held"] for flags in round_ for flag in flags)
    said = ours.said("cannot move the optimizer")
    assert len(said) == 1 and "TIDEGATE_HOST_BYTES" in said[0] and "verl's own" in said[0]


@needs_torch
@pytest.mark.parametrize("version", MOVING)
def test_megatrons_buffers_are_emptied_and_filled(tmp_path, version):
    ran = play(tmp_path, version, "megatron_model")
    assert ran["same"] and ran["shared"]
    # Storages of parameters and gradients are empty; all copies are ours.
    assert ran["away"] == [[0] * 6 + [True] * 7] * 3
    assert ran["places"] == ran["places"][:1] * 3
    assert ran["gradients"] == [0, 0, 0]
    flat, plain = ran["sizes"]
    assert flat == 2048 + 192 + 1024 + 256 and plain == 2432 + 128 + 2432
    assert ran["events"].count("empty_cache") == 9


@needs_torch
@pytest.mark.parametrize("version", MOVING)
def test_megatrons_optimizer_moves_what_verl_moves(tmp_path, version):
    ran = play(tmp_path, version, "megatron_optimizer")
    assert ran["same"] and ran["events"].count("own") == 3
    # Main parameters, exp_avg, exp_avg_sq, master_param, not step; and the hybrid one's.
    assert ran["away"][0] == [True] * 7 + [False, True]
    assert ran["back"] == [[False] * 8] * 3


@pytest.mark.parametrize("mode, asked, count", [
    ("on", "1", 8), ("on", "0", 0), ("on", None, 0), ("on", "yes", 0), ("observe", "1", 0),
    ("off", "1", 0)])
def test_nothing_is_replaced_unless_it_is_asked_for(tmp_path, mode, asked, count):
    names = [f"verl.utils.{family}_utils:{way}" for family, ways in (
        ("fsdp", ("offload_fsdp_model_to_cpu", "load_fsdp_model_to_gpu", "offload_fsdp_optimizer",
                  "load_fsdp_optimizer")),
        ("megatron", ("offload_megatron_model_to_cpu", "load_megatron_model_to_gpu",
                      "offload_megatron_optimizer", "load_megatron_optimizer"))) for way in ways]
    modules = ["verl.utils.fsdp_utils", "verl.utils.megatron_utils"]
    said = {} if asked is None else {"TIDEGATE_OFFLOAD": asked}
    ran = run(tmp_path, "0.9.1", "load", {"modules": modules, "attributes": names, "off": True},
              mode=mode, **said)
    assert sum("modes.py" == ran["files"][name] for name in names) == count
    assert all(ran["files_off"][name] != "modes.py" for name in names)
    assert len(ran.said("is neither 0 nor 1")) == (1 if asked == "yes" else 0)
