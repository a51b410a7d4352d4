"""Runs with learners on two nodes of a real cluster: what is pushed, saved, lost and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from manyhands.runs import checkpoint
from support import ray_clusters
from support.ray_runs import LONG_S, Started, read, started

pytestmark = pytest.mark.ray
SERVED = ["--recipe", "downpour", "--workers", "4"]
IN_STEP = ["--recipe", "sync", "--workers", "5"]
GOSSIP = ["--recipe", "ad-psgd", "--workers", "5"]
ISLANDS = ["--workers", "5", "--island-size", "3", "--checkpoint.period-minutes", "0.02"]


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


def called(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "manyhands", *words],
        capture_output=True, text=True, timeout=LONG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def assert_all_counted(summary: dict[str, Any]) -> None:
    assert summary["updates"] + summary["staleness"]["dropped"] == summary["gradients"] > 50


A2C = ["--recipe", "a3c", "--strategy", "parameter_server", "--workers", "4"]
ASKED = ["--parameter-server.fetch", "asked", "--workers", "3"]
WAYS = [
    pytest.param([*SERVED], id="read"),
    pytest.param([*SERVED, *ASKED, "--parameter-server.shards", "2"], id="asked"),
    pytest.param([*GOSSIP], marks=pytest.mark.slow, id="gossip"),
    pytest.param(["--recipe", "gala", "--workers", "5"], marks=pytest.mark.slow, id="gala"),
    pytest.param(["--recipe", "hogwild-plus-plus", *ISLANDS], id="token"),
    pytest.param(["--recipe", "dogwild", *ISLANDS], marks=pytest.mark.slow, id="chunks"),
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
        called("resume", str(out), f"--steps={steps}", *where)
        summary = read(out / "summary.json")
        assert steps <= summary["agent_steps"] < steps + 4 * 8
        assert_all_counted(summary)
    fill = [line["charts/memory_fill"] for line in _metrics(out) if "charts/memory_fill" in line]
    assert fill == sorted(fill), "no worker began with an empty replay"


def _metrics(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_synchronous_learners_compute_what_one_machine_computes(
    cluster: Any, tmp_path: Path
) -> None:
    """Bit for bit: vectors are averaged in the order of the members, wherever they are."""
    two, one = tmp_path / "two", tmp_path / "one"
    words = ["--steps", "2000", "--seed", "5"]
    summary = finished(Started(cluster, two, *IN_STEP, *words))
    assert len(summary["nodes"]) == 2
    assert summary["gradients"] == 5 * summary["updates"] > 200
    called("train", "cartpole", *IN_STEP, *words, f"--out={one}", "--backend=processes")
    found = [checkpoint.newest(path / "checkpoints").weights for path in (two, one)]
    for name, here in found[1].items():
        np.testing.assert_array_equal(found[0][name], here, err_msg=name)


def test_synchronous_learners_park_for_a_checkpoint_and_resume(
    cluster: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    finished(
        Started(cluster, out, *IN_STEP, "--steps", "3000", "--checkpoint.period-minutes", "0.01")
    )
    called("resume", str(out), "--steps=4000", "--ray.address", cluster.address)
    summary = read(out / "summary.json")
    assert summary["gradients"] == 5 * summary["updates"]


def test_a_checkpoint_has_the_replicas_of_all_nodes(cluster: Any, tmp_path: Path) -> None:
    """Resumed on the same nodes, and then on one machine without Ray."""
    out, words = tmp_path / "run", [*GOSSIP, "--checkpoint.period-minutes", "0.01"]
    finished(Started(cluster, out, *words, "--steps", "3000"))
    for steps, where in (
        (4000, ["--ray.address", cluster.address]),
        (5000, ["--backend=processes"]),
    ):
        saved = checkpoint.newest(out / "checkpoints").state["strategy"]["own"]["gossip"]
        pushed = [int(saved["optimizers"][str(rank)]["q"]["count"]) for rank in range(5)]
        assert pushed == saved["counts"][:, 0].tolist(), "each optimizer is as its replica"
        called("resume", str(out), f"--steps={steps}", *where)
        assert_all_counted(read(out / "summary.json"))


LOSING = [
    pytest.param(SERVED, id="served"),
    pytest.param(IN_STEP, id="in step"),
    pytest.param(GOSSIP, id="gossip"),
]


@pytest.mark.parametrize("words", LOSING)
def test_workers_of_lost_nodes_go_on_elsewhere(
    cluster: Any, tmp_path: Path, words: list[str]
) -> None:
    """A worker is killed, then its node runner, then the node; a node that comes is used."""
    more = [*words, "--minutes", "10"]
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
