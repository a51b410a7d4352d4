"""A run resumes with other processes: what goes along, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import manyhands as mh
from manyhands.optim import FlatModel, PartOptimizer
from manyhands.roles.worker import Worker
from manyhands.runs import checkpoint, opening, saving, schedule
from manyhands.runs.hooks import Report
from manyhands.runs.run import Run
from manyhands.types import BadRequest, State

ALGORITHMS: dict[str, dict[str, Any]] = {
    "dqn": {"recipe": "dqn", "dqn": {"warmup_steps": 60, "batch_size": 16}},
    "prioritized": {"recipe": "prioritized-dqn", "dqn": {"warmup_steps": 60, "batch_size": 16}},
    "a2c": {"recipe": "paac", "a2c": {"rollout_steps": 4}},
    "double_q": {"recipe": "double-q", "double_q": {"warmup_steps": 60, "batch_size": 16}},
}
COMMON: dict[str, Any] = {
    "backend": "inprocess",
    "envs_per_worker": 2,
    "threads": 1,
    "network": {"hidden": (16, 16)},
}
SHARES: dict[str, dict[str, Any]] = {
    "serial": {"strategy": "serial", "workers": 1},
    "lock-2": {"strategy": "lock", "workers": 2},
    "hogwild-3": {"strategy": "hogwild", "workers": 3},
    "hogwild-own-2": {"strategy": "hogwild", "workers": 2, "hogwild": {"statistics": "own"}},
    "server-1-2": {"strategy": "parameter_server", "workers": 2},
    "server-3-1": {"strategy": "parameter_server", "workers": 1, "parameter_server": {"shards": 3}},
    "allreduce-2": {"strategy": "allreduce", "workers": 2},
    "allreduce-3": {"strategy": "allreduce", "workers": 3},
    "gossip-2": {"strategy": "gossip", "workers": 2},
    "gossip-3": {"strategy": "gossip", "workers": 3},
    "proximal-2": {"strategy": "proximal", "workers": 2},
    "proximal-3": {"strategy": "proximal", "workers": 3},
    "token-3": {
        "strategy": "hogwild_plus_plus",
        "workers": 3,
        "island_size": 2,
        "hogwild_plus_plus": {"hold_updates": 1},
    },
    "delayed-1": {"strategy": "delayed", "workers": 1, "delayed": {"updates": 3}},
    "dogwild-2": {"strategy": "dogwild", "workers": 2},
    "lock-1": {"strategy": "lock", "workers": 1},
}
APART: dict[str, dict[str, Any]] = {
    "apart": {"strategy": "serial", "actors": 2, "learners": 1},
    "apart-gossip": {"strategy": "gossip", "actors": 2, "learners": 2},
}
NAMES = list(SHARES)
# From each to the one three places on: every one is left and joined, by each algorithm.
PAIRS = [
    (name, NAMES[at], NAMES[(at + 3 + 2 * number) % len(NAMES)])
    for number, name in enumerate(ALGORITHMS)
    for at in range(len(NAMES))
]
PAIRS += [("dqn", "apart", "hogwild-3"), ("dqn", "serial", "apart"), ("dqn", "apart", "gossip-2")]
PAIRS += [("prioritized", "apart-gossip", "serial"), ("double_q", "lock-2", "apart-gossip")]


def sharing(name: str, *, resumes: bool = False) -> dict[str, Any]:
    found = {**SHARES, **APART}[name]
    return {"actors": 0, **found} if resumes else found


def trained(out: Path, algorithm: str, name: str, steps: int = 160) -> Run:
    memory = {} if algorithm == "a2c" else {"memory": {"capacity": 120}}
    options = {**COMMON, **ALGORITHMS[algorithm], **sharing(name), **memory}
    return mh.train("cartpole", out=out, steps=steps, quiet=True, **options)


def vector_of(run: Run) -> np.ndarray[Any, Any]:
    return run.workers.strategy.newest().detach().clone().numpy()


def saved_vector(run: Run, weights: dict[str, Any]) -> np.ndarray[Any, Any]:
    model: FlatModel = run.workers.model
    model.load(weights)
    return model.vector.detach().clone().numpy()


def counts_of(run: Run) -> dict[str, float]:
    names = ("agent_steps", "updates", "gradients", "episodes")
    return {name: run.summary[name] for name in names}


def reference_step(run: Run, state: State, vector: Any) -> tuple[torch.Tensor, torch.Tensor, str]:
    """The next update by the checkpoint's own optimizer state: a gradient, and what comes of it."""
    part, where = next(iter(run.workers.model.parts.items()))
    gradient = torch.linspace(-1, 1, where.stop - where.start)
    stepped = torch.from_numpy(vector.copy())
    optimizer = PartOptimizer(run.plan.optim, stepped[where])
    optimizer.restore(state["strategy"]["optimizers"][part])
    optimizer.step(gradient, 0.01)
    return gradient, stepped, part


@pytest.mark.parametrize(("algorithm", "before", "after"), PAIRS)
def test_from_each_to_another(algorithm: str, before: str, after: str, tmp_path: Path) -> None:
    first = trained(tmp_path / "run", algorithm, before)
    counts, loaded = counts_of(first), checkpoint.newest(first.folder.checkpoints)
    run = Run.resumed(first.path, steps=260, **sharing(after, resumes=True))
    vector = saved_vector(run, loaded.weights)
    np.testing.assert_array_equal(vector_of(run), vector)
    assert counts_of(run) == counts
    assert_optimizers_equal(run.workers.strategy.state(), loaded.state)
    many = run.workers.learners > 1
    if run.plan.top.strategy in ("hogwild", "lock") or not (many or after == "delayed-1"):
        gradient, expected, part = reference_step(run, loaded.state, vector)
        assert_next_update(run, gradient, expected, part)
        return
    run.finish()
    later = counts_of(run)
    assert later["agent_steps"] >= 260
    assert all(later[name] >= counts[name] for name in counts)
    assert run.summary["faults"]["restarts"] == 0


def assert_optimizers_equal(strategy: State, saved: State) -> None:
    for part, slots in saved["strategy"]["optimizers"].items():
        for name, array in slots.items():
            np.testing.assert_array_equal(strategy["optimizers"][part][name], array)


def assert_next_update(run: Run, gradient: Any, expected: Any, part: str) -> None:
    strategy, version = run.workers.strategy, run.workers.strategy.version()
    parameters = strategy.join(run.workers.model, 0)
    assert parameters.pull(run.workers.model) == version
    parameters.push(gradient.clone(), part=part, version=version, lr=0.01)
    assert strategy.version() == version + 1
    np.testing.assert_array_equal(strategy.newest().detach().numpy(), expected.numpy())
    run._let_go()


@pytest.mark.parametrize("name", ["allreduce-2", "proximal-2", "delayed-1"])
def test_the_same_processes_continue_their_episodes(name: str, tmp_path: Path) -> None:
    """Learners in step in one process, or one learner: N steps and N more equal 2 N, to the bit."""
    whole = trained(tmp_path / "whole", "dqn", name, steps=320)
    half = trained(tmp_path / "half", "dqn", name, steps=160)
    rest = mh.resume(half.path, steps=320, quiet=True)
    np.testing.assert_array_equal(vector_of(rest), vector_of(whole))
    assert counts_of(rest) == counts_of(whole)


def test_one_line_says_what_changed(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    run = Run.resumed(first.path, steps=200, workers=2, strategy="hogwild")
    rows = f"{min(120, 160 + first.summary['episodes']):,}"
    changed = [note for note in run.progress.notes if note.startswith("changed: ")]
    assert len(changed) == 1
    assert "strategy serial -> hogwild, workers 1 -> 2; " in changed[0]
    assert f"of {rows} replay rows are kept; running episodes begin again" in changed[0]
    run._let_go()


def test_the_record_is_what_the_run_became(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    mh.resume(first.path, steps=200, workers=2, strategy="lock", dqn={"lr": 2e-4}, quiet=True)
    again = Run.resumed(first.path, steps=240)
    assert (again.plan.top.strategy, again.plan.top.workers) == ("lock", 2)
    assert again.plan.as_layer()["dqn"]["lr"] == 2e-4
    assert not [note for note in again.progress.notes if note.startswith("changed")]
    again._let_go()


def test_the_same_processes_with_a_smaller_memory(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    run = Run.resumed(first.path, steps=200, memory={"capacity": 80})
    assert any("80 of 120 replay rows are kept" in note for note in run.progress.notes)
    assert run.worker.actor.agent_steps == 160  # its episodes continue
    run.finish()
    assert run.summary["agent_steps"] == 200


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": {"hidden": (8, 8)}}, "a run keeps its network"),
        ({"env": {"id": "Acrobot-v1"}}, "a run keeps its environment"),
        ({"algorithm": "a2c"}, "does not fit|its algorithm"),
        ({"strategies": "lock"}, "strategies"),
        ({"strategy": "locks"}, "locks"),
        ({"workers": 2}, "serial"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    before = (first.path / "config.json").read_bytes()
    with pytest.raises((BadRequest, mh.Failure), match=sentence):
        Run.resumed(first.path, steps=200, **change)
    assert (first.path / "config.json").read_bytes() == before
    mh.resume(first.path, steps=170, quiet=True)


def test_an_older_format_is_named_and_can_be_played(tmp_path: Path) -> None:
    import json

    first = trained(tmp_path / "run", "dqn", "serial")
    for manifest in first.path.glob("checkpoints/*/manifest.json"):
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": 1}))
    with pytest.raises(BadRequest, match="has format 1, and this manyhands resumes format 2"):
        Run.resumed(first.path, steps=200)
    assert mh.load(first.path).act(np.zeros(4, np.float32)) in (0, 1)


def test_sync_processes_resume_to_the_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real processes, stopped at some moment in the middle of their episodes."""
    monkeypatch.setattr(schedule, "REPORT_PERIOD_S", 0.02)
    options: dict[str, Any] = {**ALGORITHMS["dqn"], "strategy": "allreduce", "workers": 2}
    options |= {"envs_per_worker": 2, "threads": 1, "network": {"hidden": (16, 16)}, "quiet": True}
    options |= {"steps": 3000, "memory": {"capacity": 1000}}
    whole = mh.train("cartpole", out=tmp_path / "whole", **options)
    half = mh.train("cartpole", out=tmp_path / "half", on_report=stop_midway, **options)
    assert 0 < half.summary["agent_steps"] < 3000
    rest = mh.resume(half.path, quiet=True)
    one, other = (checkpoint.newest(run.folder.checkpoints).weights for run in (whole, rest))
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name])
    assert counts_of(rest) == counts_of(whole)


def stop_midway(report: Report) -> None:
    if report.metrics["agent_steps"] > 500:
        report.stop()


def test_rows_without_the_columns_needed_now_are_dropped(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    run = Run.resumed(first.path, steps=300, dqn={"remember_values": True})
    assert any("the memory starts empty" in note for note in run.progress.notes)
    run.finish()
    assert run.summary["agent_steps"] == 300
    assert run.summary["updates"] > first.summary["updates"]


@pytest.mark.parametrize("algorithm", ["dqn", "a2c"])
@pytest.mark.parametrize("strategy", ["lock", "parameter_server", "gossip"])
def test_a_resumed_worker_acts_with_the_saved_weights(
    algorithm: str, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the strategy copies parameters into the model at a pull."""
    SHARES["now"] = {"strategy": strategy, "workers": 1}
    first = trained(tmp_path / "run", algorithm, "now")
    saved = vector_of(first)
    seen = []

    def turn(worker: Worker, elsewhere: int = 0) -> None:  # noqa: ARG001
        seen.append(worker.model.vector.detach().clone().numpy())
        worker.actor.agent_steps += worker.env.spec.lanes

    monkeypatch.setattr(Worker, "turn", turn)
    mh.resume(first.path, steps=162, quiet=True)
    np.testing.assert_array_equal(seen[0], saved)


def test_schedules_count_each_step_once(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "prioritized", "hogwild-3", steps=300)
    run = Run.resumed(first.path, steps=600, strategy="serial", workers=1)
    run.finish()
    memory: Any = run.worker.memory
    assert memory.steps_seen + memory.elsewhere == run.summary["agent_steps"]


def test_a_target_network_stays_when_gossip_takes_over(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial", steps=400)
    run = Run.resumed(first.path, steps=500, strategy="gossip", workers=2)
    strategy = run.workers.strategy
    versions = [strategy.join(run.workers.model, n).pull(run.workers.model) for n in range(2)]
    assert versions == [first.summary["updates"]] * 2
    assert strategy.version() == first.summary["updates"]
    run._let_go()


def test_rows_in_other_lanes_begin_new_pieces(tmp_path: Path) -> None:
    first = trained(tmp_path / "run", "dqn", "serial")
    run = Run.resumed(first.path, steps=200, memory={"capacity": 90})
    assert run.worker.actor._first.all()
    run._let_go()


def test_what_turns_something_off_is_not_dropped() -> None:
    changes = opening.Changes.of({"until_solved": False, "threshold": 0.0, "workers": 0})
    assert changes.run == {"until_solved": False, "threshold": 0.0}


def test_a_large_checkpoint_says_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(saving, "LARGE_BYTES", 100)
    options = {**COMMON, **ALGORITHMS["dqn"], "out": tmp_path / "run"}
    mh.train("cartpole", steps=100, **options)
    assert "writing a checkpoint of" in capsys.readouterr().out
    mh.resume(tmp_path / "run", steps=120)
    assert re.search(r"reading a checkpoint of .*: about 0 s", capsys.readouterr().out)
