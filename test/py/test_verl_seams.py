# SPDX-License-Identifier: Apache-2.0
"""verl's own code with the seams in it, over its wheels: found in each version, announced, inert by
default, restored, and never in verl's way.

What torch and the engines do is played (verl_world.py): this shows wiring and order alone."""
import json
import os
import pathlib
import re
import shutil
import sys

import pytest

from verl_wheels import CACHE, RECIPES, VERSIONS, WORLD, environment, needs_verl, run

pytestmark = [needs_verl, pytest.mark.usefixtures("library")]

SYNCING = tuple(version for version in VERSIONS if version >= "0.7.1")
PLATFORMS = tuple(version for version in VERSIONS if version >= "0.9")
BOTH = {"kinds": ["fsdp", "megatron"], "rollouts": ["vllm", "sglang"]}

HELPER = "verl.utils.memory_utils:aggressive_empty_cache"
RESUMES = {name: f"verl.workers.rollout.{name}_rollout.{name}_rollout:ServerAdapter.resume"
           for name in ("vllm", "sglang")}
STEP = "verl.workers.engine_workers:ActorRolloutRefWorker.update_weights"
MODULES = [name.split(":")[0] for name in (HELPER, *RESUMES.values(), STEP)]
FUNCTIONS = [HELPER, *RESUMES.values(), STEP]


@pytest.fixture(scope="module")
def synced(tmp_path_factory):
    """synced(version, mode, recipe): syncs of both trainers with both engines, each run once."""
    made = {}

    def play(version, mode, recipe):
        key = (version, mode, recipe)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{version}-{mode}-{recipe}")
            made[key] = run(folder, version, "sync", BOTH, recipe=recipe, mode=mode)
        return made[key]

    return play


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("version", SYNCING)
def test_observing_changes_nothing_and_announces_all_seams(synced, version, recipe):
    ran, plain = synced(version, "observe", recipe), synced(version, None, recipe)
    for ours, theirs in zip(ran["syncs"], plain["syncs"]):
        assert ours["events"] == theirs["events"]
        assert ours["free"] == theirs["free"]
    assert plain["seams"] is None
    assert ran["seams"] == [4, 4]
    lines = ran.said("tidegate observe:")
    assert len(lines) == 1
    assert re.fullmatch(r"\[trainer rank 0\] tidegate observe: GPU 0, torch 2\.11, "
                        rf"verl {re.escape(version)}, 4 of 4 seams", lines[0])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("mode", ["observe", "on"])
@pytest.mark.parametrize("version", SYNCING)
def test_hand_overs_of_every_sync_arrive(synced, version, mode, recipe):
    """Two at least where verl empties the cache before weights and before the KV cache."""
    least = 2 if version >= "0.9" else 1
    assert [sync["arrived"] >= least for sync in synced(version, mode, recipe)["syncs"]] \
        == [True] * 4


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("version", SYNCING)
def test_on_makes_room_before_each_wake(synced, version, recipe):
    ran = synced(version, "on", recipe)
    assert len(ran.said("tidegate on:")) == 1
    for sync in ran["syncs"]:
        wakes = [event for event in sync["events"] if event.startswith("wake")]
        assert wakes == ["wake weights", "wake kv_cache"]
        assert "empty_cache" in sync["events"][:sync["events"].index("wake weights")]
        assert sync["cached"] == 0


def test_on_says_what_was_needed_and_got_in_one_pass(synced):
    """Once it is known what the engine takes: what is missing of that, less what woke already."""
    lines = synced("0.9.1", "on", "stubs").said("reclaim for the rollout engine: needed")
    assert len(lines) == 3
    for line in lines:
        assert "needed 42.0, got 46.0 GiB (driver)" in line and "1 pass, target met" in line


@pytest.mark.parametrize("version", SYNCING)
def test_a_hand_over_inside_another_is_part_of_it(synced, version):
    counts = [[sync["arrived"] for sync in synced(version, mode, "stubs")["syncs"]]
              for mode in ("observe", "on")]
    assert counts[0] == counts[1]


def test_the_estimate_is_what_on_then_gives(tmp_path):
    """observe says of each hand-over what an exact one would have given: on the same states, what
    `on` gives is within 5 % of it."""
    given = {}
    for mode in ("observe", "on"):
        folder = tmp_path / mode
        folder.mkdir()
        run(folder, "0.9.1", "sync", {"kinds": ["megatron"], "rollouts": ["vllm"], "rounds": 3},
            mode=mode, TIDEGATE_OUT=str(folder / "out"))
        lines = [json.loads(line) for path in (folder / "out").iterdir()
                 for line in path.read_text().splitlines()]
        given[mode] = [line for line in lines if line.get("handover") == "empty_cache"]
    assert len(given["observe"]) == len(given["on"]) >= 6
    for estimate, exact in zip(given["observe"], given["on"]):
        assert abs(estimate["exact_bytes"] - exact["driver_bytes"]) <= 0.05 * exact["driver_bytes"]
    assert sum(exact["driver_bytes"] for exact in given["on"]) > 0


def test_a_run_is_told_that_seams_were_active(tmp_path, tidegate):
    """tidegate run --need verl: status 4 unless a process had them."""
    command = ["run", "--observe", "--need", "verl", "--", sys.executable, str(WORLD), "stubs"]
    variables = environment(tmp_path, "0.9.1", "stubs", None)
    options = json.dumps({"kinds": ["fsdp"], "rollouts": ["vllm"]})
    assert tidegate(*command, "sync", options, env=variables).status == 0
    assert tidegate(*command, "before_cuda", env=variables).status == 4


@pytest.mark.parametrize("version, rollout", [
    ("0.6.1", "verl.workers.rollout.sglang_rollout.sglang_rollout:ServerAdapter"),
    ("0.6.1", "verl.workers.rollout.sglang_rollout.sglang_rollout:SGLangRollout"),
    ("0.7.0", "verl.workers.rollout.sglang_rollout.sglang_rollout:ServerAdapter"),
])
def test_seams_before_there_was_update_weights(tmp_path, version, rollout):
    ran = run(tmp_path, version, "old", {"rollout_class": rollout}, mode="on")
    assert ran["seams"] == [4, 4]
    assert len(ran.said("4 of 4 seams")) == 1
    assert ran["arrived"] == 1 and ran["hand_overs"] == 2
    assert ran["settings"] == "expandable_segments:False"
    assert ran["events"].count("wake weights") == ran["events"].count("wake kv_cache") == 1


@pytest.mark.parametrize("version, rollout", [
    ("0.6.1", "vllm_rollout_spmd:vLLMRollout"),
    ("0.6.1", "vllm_rollout_spmd:vLLMAsyncRollout"),
    ("0.7.0", "vllm_rollout:vLLMAsyncRollout"),
])
def test_an_engine_in_the_trainers_process_is_only_looked_at(tmp_path, version, rollout):
    where = f"verl.workers.rollout.vllm_rollout.{rollout}"
    ran = run(tmp_path, version, "old", {"rollout_class": where}, mode="on")
    assert len(ran.said("vLLM runs in the trainer's process")) == 1
    assert not ran.said("reclaim for vllm")
    assert ran["events"][-2:] == ["wake weights", "wake kv_cache"]


def test_a_tensor_parallel_engine_is_only_looked_at(tmp_path):
    options = {"kinds": ["fsdp"], "rollouts": ["vllm"], "rounds": 2,
               "tensor_model_parallel_size": 2}
    ran = run(tmp_path, "0.9.1", "sync", options, mode="on")
    assert len(ran.said("cannot yet wake as one")) == 1
    assert not ran.said("reclaim for vllm")


# ---- inert by default ----------------------------------------------------------------------------

@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("mode", [None, "off"])
def test_without_a_mode_a_loaded_plugin_changes_nothing(tmp_path, version, mode):
    options = {"modules": MODULES if version >= "0.7.1" else [MODULES[0]],
               "attributes": FUNCTIONS if version >= "0.7.1" else [HELPER]}
    folders = [tmp_path / "with", tmp_path / "without"]
    for folder in folders:
        folder.mkdir()
    ours = run(folders[0], version, "load", options, mode=mode).answer
    theirs = run(folders[1], version, "load", options, mode=None, with_plugin=False).answer
    for answer in (ours, theirs):
        for name in ("PYTHONPATH", "TIDEGATE", "TIDEGATE_DIR", "PWD", "VERL_USE_EXTERNAL_MODULES"):
            answer["environment"].pop(name, None)
    assert ours == theirs
    assert not (folders[0] / "ledger").exists()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plugin_is_found_by_verl(tmp_path, version):
    """The counterpart of the test before: with a mode, the same loading replaces functions."""
    ran = run(tmp_path, version, "load", {"modules": [], "attributes": [HELPER]})
    assert ran["files"][HELPER] == "modes.py"


@pytest.mark.parametrize("version", PLATFORMS)
def test_off_puts_the_originals_back(tmp_path, version):
    options = {"modules": MODULES, "attributes": FUNCTIONS, "off": True}
    ran = run(tmp_path, version, "load", options)
    assert {ran["files"][name] for name in FUNCTIONS} == {"modes.py"}
    assert not any(ran["files_off"][name].endswith("modes.py") for name in FUNCTIONS)
    assert "Finder" not in ran["finders_off"]
    assert ran["arrived"] == 0
    assert ran["events"] == ["empty_cache", "synchronize"] * 2


@pytest.mark.parametrize("version", SYNCING)
def test_what_verl_reads_of_a_method_is_kept(tmp_path, version):
    """Ray and verl's dispatch look at attributes of the function, and whether it is awaited."""
    options = {"modules": MODULES, "attributes": FUNCTIONS}
    (tmp_path / "plain").mkdir()
    ours = run(tmp_path, version, "load", options)["files"]
    theirs = run(tmp_path / "plain", version, "load", options, mode=None)["files"]
    assert ours[STEP] != theirs[STEP] and ours[f"{STEP} marks"]
    for name in FUNCTIONS:
        for trait in ("marks", "is awaited"):
            assert ours[f"{name} {trait}"] == theirs[f"{name} {trait}"]


# ---- what is not as it was -----------------------------------------------------------------------

def changed(folder, version, pattern, replacement, only=None):
    """A tree of this verl in which a name is another one; only: in this file."""
    tree = folder / "tree"
    shutil.copytree(CACHE / version, tree)
    count = 0
    for path in [tree / only] if only else tree.rglob("*.py"):
        text = path.read_text()
        new = re.sub(pattern, replacement, text)
        if new != text:
            path.write_text(new)
            count += 1
    assert count > 0
    return tree


@pytest.mark.parametrize("pattern, replacement, file, missing", [
    (r"\baggressive_empty_cache\b", "clean_up", None, HELPER),
    (r"async def resume\b", "async def wake", "workers/rollout/vllm_rollout/vllm_rollout.py",
     RESUMES["vllm"]),
    (r"async def update_weights\b", "async def hand_weights", "workers/engine_workers.py", STEP),
    (r"\bset_allocator_settings\b", "set_allocator", None,
     "verl.plugin.platform.platform_cuda:PlatformCUDA.set_allocator_settings"),
])
def test_a_renamed_function_is_one_warning_and_the_rest_works(tmp_path, pattern, replacement, file,
                                                              missing):
    tree = changed(tmp_path, "0.9.1", pattern, replacement, file and f"verl/{file}")
    options = {"modules": MODULES[1:], "attributes": []}
    ran = run(tmp_path, "0.9.1", "load", options, verl=tree)
    name = missing.replace(":", ".")
    assert len(ran.said(name)) == 1
    assert f"verl 0.9.1: {name} is missing" in ran.said(name)[0]
    assert ran["seams"] == [3, 4]


@pytest.mark.parametrize("pattern, replacement, file, what", [
    (r"async def resume\(self, tags: list\[str\]\)", "async def resume(self, tags, level=2)",
     "workers/rollout/vllm_rollout/vllm_rollout.py", RESUMES["vllm"]),
    (r"async def resume\(self, tags: list\[str\]\)", "def resume(self, tags)",
     "workers/rollout/sglang_rollout/sglang_rollout.py", RESUMES["sglang"]),
    (r"force_sync: bool = True", "force_sync: bool = False", "utils/memory_utils.py", HELPER),
])
def test_a_function_that_is_called_otherwise_stays(tmp_path, pattern, replacement, file, what):
    tree = changed(tmp_path, "0.9.1", pattern, replacement, f"verl/{file}")
    if "def resume(self, tags)" == replacement:  # no coroutine: it may not wait either
        path = tree / "verl" / file
        path.write_text(path.read_text().replace("await self._init_server_adapter()\n        if "
                                                 "self._engine is None", "if self._engine is None")
                        .replace("await self._engine.resume_memory", "self._engine.resume_memory"))
    ran = run(tmp_path, "0.9.1", "load", {"modules": MODULES[1:], "attributes": [what]},
              verl=tree)
    assert len(ran.said(what.replace(":", "."))) == 1
    assert "takes other arguments now" in ran.said(what.replace(":", "."))[0]
    assert ran["files"][what].endswith(f"/{file.split('/')[-1]}") or \
        ran["files"][what].endswith(file)


def test_a_plugin_that_breaks_is_one_warning_and_verl_starts(tmp_path):
    for version in ("0.8.0", "0.9.1"):
        ran = run(tmp_path, version, "broken")
        assert len(ran.said("steps aside")) == 1
        assert ran["events"] == ["empty_cache", "synchronize"] * 2


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("version", ["0.7.1", "0.9.0", "0.9.1"])
def test_with_a_truncated_library_verls_own_helper_runs(tmp_path, synced, version, recipe):
    cut = tmp_path / "libtidegate.so"
    cut.write_bytes(pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).read_bytes()[:4096])
    ran = run(tmp_path, version, "sync", BOTH, recipe=recipe, mode="on",
              TIDEGATE_LIBRARY=str(cut))
    for ours, theirs in zip(ran["syncs"], synced(version, None, recipe)["syncs"]):
        assert ours["events"] == theirs["events"]
    assert len(ran.said("verl's own function runs")) == 1


@pytest.mark.parametrize("version", ["0.7.1", "0.9.1"])
def test_before_cuda_starts_nothing_is_said_or_done(tmp_path, version):
    ran = run(tmp_path, version, "before_cuda", mode="on")
    assert ran["arrived"] == 0 and ran["hand_overs"] == 0
    assert not ran.said("seams")


@pytest.mark.parametrize("version", ["0.7.1", "0.9.1"])
def test_the_server_of_the_engine_says_that_it_is_seen(tmp_path, version):
    ran = run(tmp_path, version, "server")
    assert len(ran.said("seams")) == 1
    assert "[vllm server" in ran.said("seams")[0]
