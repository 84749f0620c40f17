# SPDX-License-Identifier: Apache-2.0
"""The guide's example and more of its actors in a real Ray cluster of this machine alone. No card:
tags lie on the host device, stock programs have the driver that stands in and a toy runtime."""

import json
import os
import pathlib
import shutil
import sys
import tempfile

import pytest

from conftest import ROOT, run

PYTHON = ROOT / ".cache" / "venv-ray" / "bin" / "python"
EXAMPLE = ROOT / "doc" / "guide" / "ray_turns.py"
WORLD = pathlib.Path(__file__).with_name("ray_world.py")
BUILD = pathlib.Path(os.environ["TIDEGATE_LIBRARY"]).parents[1]
RUNTIME = BUILD / "test" / "toycudart" / "libcudart.so.12"
PRELOAD = BUILD / "src" / "libtidegate-preload.so"
WAITS = "waits: a block of state needs 48.0 MiB, 16.0 can be had: trainer state 48.0"

pytestmark = [pytest.mark.usefixtures("preloadable", "library"), pytest.mark.skipif(
    not (PYTHON.parent / "ray").exists(), reason="Ray (71 MiB) is for: make check-ray")]


class Cluster:
    """Where a cluster's processes leave their files; Ray makes sockets there, and their names may
    not be long."""

    def __init__(self, node):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="tg-ray-"))
        self.env = {"TIDEGATE_DIR": str(node), "TIDEGATE_LIBRARY": os.environ["TIDEGATE_LIBRARY"],
                    "PYTHONPATH": f"{ROOT / 'python'}:{EXAMPLE.parent}", "RAY_ADDRESS": "local",
                    "RAY_TMPDIR": str(self.folder), "RAY_USAGE_STATS_ENABLED": "0", "RANK": "",
                    "LOCAL_RANK": "", "PYTHONDONTWRITEBYTECODE": "1"}

    def logs(self):
        """What its actors printed."""
        return "".join(path.read_text(errors="replace")
                       for path in self.folder.glob("ray/session_2*/logs/worker-*.out"))


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path / "node")
    yield made
    shutil.rmtree(made.folder, ignore_errors=True)


@pytest.fixture
def seen(cluster, request):
    """seen(scenario, …) -> what ray_world.py saw; `before` stands before its command."""
    def call(scenario, before=(), **env):
        command = [*before, PYTHON, WORLD, scenario, request.config.tidegate, PRELOAD, RUNTIME]
        result = run(*command, env={**cluster.env, **env}, timeout=400)
        assert result.status == 0, result.err + cluster.logs()
        return json.loads(result.out.splitlines()[-1])

    return call


@pytest.fixture
def card(cluster):
    """The environment of a node with a card."""
    return {"LD_LIBRARY_PATH": str(BUILD / "test" / "standin"),
            "TIDEGATE_STANDIN": "capacity=64MiB,context=0"}


def test_the_example_is_short():
    assert len(EXAMPLE.read_text().splitlines()) <= 60


def test_the_example_loses_no_turn(cluster):
    """Though one of its actors is killed in its second turn, while it has the memory."""
    result = run(PYTHON, EXAMPLE, env=cluster.env, timeout=400)
    assert result.status == 0, result.err + cluster.logs()
    turns = [line for line in result.out.splitlines() if line.startswith("turns so far")]
    assert turns == [f"turns so far: trainer {n}, engine {n}" for n in (1, 2, 3, 4)]
    assert "Worker exit type: SYSTEM_ERROR" in result.out + result.err


def test_a_killed_actor_s_bytes_come_back_and_its_restart_waits(seen, cluster):
    assert seen("restart") == {
        "both": ["engine", "trainer"], "seen by the engine": ["engine", "trainer"], "pid": True,
        "held at first": [{}, {"state": 48}], "woken": 48, "before the trainer lets go": 0,
        "free": [16], "held meanwhile": [{"state": 48}, {}], "slept": 48,
        "engine's content": True, "trainer's content": True}
    assert WAITS in cluster.logs()  # the restarted one names who holds it


def test_sixteen_actors_on_eight_cards(seen):
    assert seen("eight") == {"turns": [2] * 16, "cards": {
        f'host device "gpu{n}"': [f"engine rank {n}", f"trainer rank {n}"] for n in range(8)}}


def test_an_actor_that_has_it_off_takes_no_part(seen, card, request):
    """In a cluster that came into being under `tidegate run`."""
    under = [request.config.tidegate, "run", "--default-tag", "usual", "--"]
    assert seen("stock", under, **card) == {"passed on": [0, 1], "tenants": {"on": {"usual": 4}}}


def test_one_actor_of_a_running_cluster_gets_the_preload(seen, card):
    assert seen("running", **card) == {"passed on": [1, 0], "tenants": {"ours": {"usual": 4}}}
