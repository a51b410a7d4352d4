"""Runs with actors on other nodes of a real cluster, and what happens when such a node is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import ray_clusters
from support.ray_runs import LONG_S, Started, read, started

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Main's node has room for a learner and two actors, the other node for two actors."""
    with ray_clusters.cluster(2, head_cpus=3) as made:
        yield made


SLOW = [pytest.param(recipe, marks=pytest.mark.slow) for recipe in ("impala", "gorila")]


@pytest.mark.parametrize("recipe", ["apex", *SLOW])
def test_actors_on_another_node(cluster: Any, tmp_path: Path, recipe: str) -> None:
    more = ["--recipe", recipe, "--actors", "4", "--steps", "15000"]
    if recipe == "gorila":
        more += ["--learners", "2", "--parameter-server.shards", "1", "--actors", "2"]
    run = Started(cluster, tmp_path / "run", *more)
    run.main.wait(LONG_S)
    assert run.main.returncode == 0, run.out.with_suffix(".log").read_text()[-3000:]
    summary = read(run.out / "summary.json")
    steps, one_more_each = summary["agent_steps"], run.environments
    assert 15000 <= steps < 15000 + one_more_each
    assert summary["updates"] > 0
    assert (summary["faults"]["restarts"], run.causes()) == (0, [])
    assert len(summary["nodes"]) == 2


def test_lost_nodes_and_new_ones(cluster: Any, tmp_path: Path) -> None:
    """A node runner is killed, then a node; a node that comes is used."""
    more = ["--recipe", "distributed-dqn", "--actors", "4", "--minutes", "10"]
    with started(cluster, tmp_path / "run", *more) as run:
        run.wait_for("start", lambda: run.status.get("updates", 0) > 50 and len(run.away()) == 2)
        run.node_runner().kill()
        run.wait_for("killed node runner is noticed", lambda: len(run.causes()) >= 1)
        run.wait_for("its actors run", lambda: run.incarnations_away() == [1, 1])
        run.wait_for_steps()
        before = len(run.causes())
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        run.wait_for("killed node is noticed", lambda: len(run.causes()) > before)
        run.wait_for("it is given up", lambda: len(run.causes()) >= before + 3)
        run.wait_for_steps()  # by the actors that are left
        cluster.add_node(num_cpus=2, object_store_memory=ray_clusters.STORE_BYTES)
        run.wait_for("new node is used", lambda: run.incarnations_away() == [2, 2])
        run.wait_for_steps()


@pytest.mark.slow
def test_a_silent_node_is_given_up(cluster: Any, tmp_path: Path) -> None:
    """Its node runner is stopped; its actors go on, but nothing that they do is taken."""
    more = ["--recipe", "apex", "--actors", "4", "--minutes", "10"]
    with started(cluster, tmp_path / "run", *more) as run:
        run.wait_for("start", lambda: run.status.get("updates", 0) > 50 and len(run.away()) == 2)
        stopped = run.node_runner()
        stopped.suspend()
        run.wait_for("silence is noticed", lambda: len(run.causes()) >= 1)
        run.wait_for("its actors run elsewhere", lambda: run.incarnations_away() == [1, 1])
        run.wait_for_steps()
        stopped.resume()
        run.wait_for("it ends when it is back", lambda: not stopped.is_running())
        run.wait_for_steps()


@pytest.mark.slow
def test_main_that_is_killed_leaves_no_process(cluster: Any, tmp_path: Path) -> None:
    run = Started(cluster, tmp_path / "run", "--recipe", "apex", "--actors", "4", "--minutes", "9")
    run.wait_for("start", lambda: len(run.away()) == 2 and run.steps > 0)
    processes = [psutil.Process(p["pid"]) for p in run.running("actor") + run.running("learner")]
    os.kill(run.main.pid, signal.SIGKILL)
    run.main.wait()
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert alive == []
