"""Runs with learners on two nodes of a real cluster: what is pushed, saved, lost and resumed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support import ray_clusters
from support.ray_runs import LONG_S, Started, read, started

pytestmark = pytest.mark.ray
SERVED = ["--recipe", "downpour", "--workers", "4"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Main's node has room for two workers and a shard, the other node for two workers."""
    with ray_clusters.cluster(2, head_cpus=3) as made:
        yield made


def finished(run: Started) -> dict[str, Any]:
    """The summary of a run that lost nothing."""
    run.main.wait(LONG_S)
    assert run.main.returncode == 0, run.out.with_suffix(".log").read_text()[-3000:]
    summary = read(run.out / "summary.json")
    assert (summary["faults"]["restarts"], run.causes()) == (0, [])
    return summary


def assert_all_counted(summary: dict[str, Any]) -> None:
    assert summary["updates"] + summary["staleness"]["dropped"] == summary["gradients"] > 100


A2C = ["--recipe", "a3c", "--strategy", "parameter_server", "--workers", "4"]
ASKED = ["--parameter-server.fetch", "asked", "--ray.cpus-per-worker", "0.8"]
WAYS = [
    pytest.param([*SERVED], id="read"),
    pytest.param([*SERVED, *ASKED, "--parameter-server.shards", "2"], id="asked"),
    pytest.param([*A2C], marks=pytest.mark.slow, id="a2c"),
    pytest.param(
        [*SERVED, "--parameter-server.fetch", "ahead"], marks=pytest.mark.slow, id="ahead"
    ),
]


@pytest.mark.parametrize("words", WAYS)
def test_every_gradient_of_two_nodes_is_counted_once(
    cluster: Any, tmp_path: Path, words: list[str]
) -> None:
    run = Started(cluster, tmp_path / "run", *words, "--steps", "6000")
    summary = finished(run)
    assert 6000 <= summary["agent_steps"] < 6000 + run.environments
    assert_all_counted(summary)
    assert len(summary["nodes"]) == 2


def test_a_checkpoint_has_the_replays_of_all_nodes(cluster: Any, tmp_path: Path) -> None:
    """Resumed on the same nodes, and then on one machine without Ray."""
    out, words = tmp_path / "run", [*SERVED, "--checkpoint.period-minutes", "0.01"]
    finished(Started(cluster, out, *words, "--steps", "3000"))
    for steps, where in (
        (5000, ["--ray.address", cluster.address]),
        (7000, ["--backend=processes"]),
    ):
        words = ["resume", str(out), f"--steps={steps}", *where]
        done = subprocess.run(
            [sys.executable, "-m", "manyhands", *words],
            capture_output=True, text=True, timeout=LONG_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        summary = read(out / "summary.json")
        assert steps <= summary["agent_steps"] < steps + 4 * 8
        assert_all_counted(summary)
    fill = [line["charts/memory_fill"] for line in _metrics(out) if "charts/memory_fill" in line]
    assert fill == sorted(fill), "no worker began with an empty replay"


def _metrics(out: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_workers_of_lost_nodes_go_on_elsewhere(cluster: Any, tmp_path: Path) -> None:
    """A worker is killed, then its node runner, then the node; a node that comes is used."""
    more = [*SERVED, "--minutes", "10"]
    with started(cluster, tmp_path / "run", *more) as run:
        run.wait_for("start", lambda: run.status.get("updates", 0) > 50 and len(run.away()) == 2)
        psutil.Process(run.away()[0]["pid"]).kill()
        run.wait_for("the worker is back", lambda: run.incarnations_away() == [0, 1])
        run.wait_for_steps()
        run.node_runner().kill()
        run.wait_for("its workers run", lambda: run.incarnations_away() == [1, 2])
        run.wait_for_steps()
        before = len(run.causes())
        cluster.remove_node(cluster.list_all_nodes()[-1], allow_graceful=False)
        run.wait_for("it is given up", lambda: len(run.causes()) >= before + 3)
        run.wait_for_steps()  # by the workers that are left
        cluster.add_node(num_cpus=2, object_store_memory=ray_clusters.STORE_BYTES)
        run.wait_for("new node is used", lambda: run.incarnations_away() == [2, 3])
        run.wait_for_steps()
    status = run.status
    assert status["updates"] <= read(run.out / "summary.json")["gradients"]


@pytest.mark.slow
def test_the_runner_of_mains_node_is_replaced(cluster: Any, tmp_path: Path) -> None:
    with started(cluster, tmp_path / "run", *SERVED, "--minutes", "10") as run:
        run.wait_for("start", lambda: run.status.get("updates", 0) > 50 and len(run.away()) == 2)
        psutil.Process(psutil.Process(run.running("shard")[0]["pid"]).ppid()).kill()
        run.wait_for("its processes run", lambda: run.running("shard")[0]["incarnation"] == 1)
        run.wait_for_steps()
        before = run.status["updates"]
        run.wait_for("updates", lambda: run.status["updates"] > before + 200)
        assert run.incarnations_away() == [0, 0]
