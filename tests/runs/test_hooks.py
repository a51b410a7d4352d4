"""A user's hook: it sees every report, may stop the run, log, and scale the learning rate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands import cli
from manyhands.runs import checkpoint, schedule
from manyhands.runs.hooks import Report
from manyhands.types import BadRequest, Failure

SMALL: dict[str, Any] = {
    "dqn": {"warmup_steps": 50, "batch_size": 16, "steps_per_update": 1},
    "memory": {"capacity": 500},
    "network": {"hidden": (16, 16)},
    "envs_per_worker": 1,
    "threads": 1,
    "quiet": True,
}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "REPORT_PERIOD_S", 0.02)


def test_it_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    seen: list[int] = []

    def stop(report: Report) -> None:
        seen.append(report.metrics["agent_steps"])
        if len(seen) == 2:
            report.stop("seen enough")

    run = mh.train("cartpole", out=tmp_path / "run", steps=10**7, on_report=stop, **SMALL)
    assert len(seen) == 2
    assert run.summary["agent_steps"] < 10**6
    assert checkpoint.newest(run.folder.checkpoints).step == run.summary["agent_steps"]
    assert json.loads((run.path / "status.json").read_text())["state"] == "finished"


def test_it_logs_into_the_metrics(tmp_path: Path) -> None:
    def log(report: Report) -> None:
        report.log("mine", 7)
        report.stop()

    run = mh.train("cartpole", out=tmp_path / "run", steps=10**7, on_report=log, **SMALL)
    lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    assert [row["hook/mine"] for row in lines if "hook/mine" in row] == [7.0]


class Freeze:
    """A learning rate of 0: nothing changes from then on."""

    def __init__(self) -> None:
        self.reports = 0
        self.weights: list[Any] = []

    def on_report(self, report: Report) -> None:
        if not report.run.workers.updates:
            return  # a slow machine is still before the first one
        self.reports += 1
        report.scale_lr(0.0)
        self.weights.append(report.run.workers.strategy.newest().clone())
        if self.reports == 4:
            report.stop()


@pytest.mark.parametrize("workers", [1, 2])
def test_it_scales_the_learning_rate(workers: int, tmp_path: Path) -> None:
    hook, sgd = Freeze(), {"name": "sgd"}
    options = {**SMALL, "strategy": "lock", "workers": workers, "backend": "inprocess"}
    run = mh.train(
        "cartpole", out=tmp_path / "run", steps=10**7, on_report=hook, optim=sgd, **options
    )
    assert run.summary["updates"] > 0
    assert (hook.weights[-1] == hook.weights[1]).all()
    saved = checkpoint.newest(run.folder.checkpoints)
    assert saved.state["lr_scale"] == 0


def test_an_error_in_it_ends_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    def broken(report: Report) -> None:
        raise KeyError(report.metrics["agent_steps"])

    with pytest.raises(Failure, match="the hook raised KeyError"):
        mh.train("cartpole", out=tmp_path / "run", steps=10**7, on_report=broken, **SMALL)
    run = tmp_path / "run"
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    step = checkpoint.newest(run / "checkpoints").step
    assert mh.resume(run, steps=step + 50, quiet=True).summary["agent_steps"] == step + 50


def test_the_command_takes_one_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def f(report):\n    report.stop('by file')\n")
    words = ["--hook", f"{tmp_path}/mine.py:f", "--quiet", "--out", str(tmp_path / "run")]
    small = ["--dqn.warmup-steps=50", "--network.hidden=16,16", "--steps=9000000"]
    assert cli.main(["train", "cartpole", *words, *small]) == 0
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["agent_steps"] < 10**6


@pytest.mark.parametrize("hook", [3, Freeze, "nowhere.py:f"])
def test_what_is_no_hook_is_refused(hook: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        mh.train("cartpole", out=tmp_path / "run", steps=100, on_report=hook, **SMALL)
    assert not (tmp_path / "run").exists()
