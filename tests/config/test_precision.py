from __future__ import annotations

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import manyhands as mh
from manyhands import optim
from manyhands.config import plans, precision, registry
from manyhands.runs import checkpoint, messages
from manyhands.types import BadRequest

BF16, NONE = ["fpu", "avx512_bf16"], ["fpu", "avx2"]


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def calm(speed_up: float) -> str:
    return json.dumps({"speed_up": speed_up, "calm": True})


def pretend(
    monkeypatch: pytest.MonkeyPatch, *, announces: list[str], prints: str, fails: int = 0
) -> list[str]:
    """A processor with those instructions and that result of a trial, in a process that knows
    nothing yet. Returns what was tried.
    """
    tried: list[str] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        tried.append(words[-1])
        return subprocess.CompletedProcess(words, fails, prints, "")

    monkeypatch.setattr(precision, "instructions", lambda: announces)
    stub = SimpleNamespace(**vars(subprocess) | {"run": run})  # nobody else's `run`
    monkeypatch.setattr(precision, "subprocess", stub)
    monkeypatch.setattr(precision, "verdict", cache(precision.verdict.__wrapped__))
    return tried


def settled(task: str, device: str = "cpu", **network: str) -> str:
    plan = precision.settled(plans.resolve(task, {"network": network}), device)
    found: str = plan.network.precision
    return found


def test_bfloat16_where_it_was_found_to_be_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    assert settled("breakout") == "bfloat16"
    assert settled("breakout", precision="float32") == "float32"
    assert settled("breakout", device="cuda") == "float32"
    assert settled("cartpole") == "float32"
    assert tried == ["manyhands.config.precision"]  # once is enough


def test_the_same_machine_decides_the_same_way(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One trial in 25 fell below the limit on a busy machine, and its run computed in float32."""
    pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    first = precision.settled(plans.resolve("breakout", {}), "cpu")
    tried = pretend(monkeypatch, announces=BF16, prints=calm(1.2))  # a later process
    later = precision.settled(plans.resolve("breakout", {}), "cpu")
    assert first.network.precision == later.network.precision == "bfloat16"
    assert tried == []
    kept = tmp_path / "cache" / "manyhands" / "precision.json"
    assert precision.told(first) == (
        f"bfloat16, auto: bfloat16 is 1.9 times as fast here (tried now, stored in {kept})"
    )
    assert f"1.9 times as fast here (tried before, stored in {kept})" in precision.told(later)
    assert precision.tried().speed_up == 1.2  # `manyhands doctor` asks for a new one
    pretend(monkeypatch, announces=BF16, prints="")
    assert settled("breakout") == "float32"


def test_another_processor_or_torch_is_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    assert settled("breakout") == "bfloat16"
    pretend(monkeypatch, announces=[*BF16, "avx"], prints=calm(1.1))
    assert settled("breakout") == "float32"
    pretend(monkeypatch, announces=BF16, prints=calm(1.1))
    monkeypatch.setattr(precision, "_torch_version", lambda: "another")
    assert settled("breakout") == "float32"


def test_a_busy_machine_computes_in_float32_whatever_it_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a seed would give one result or another."""
    for speed_up in (1.1, 1.9):
        busy = json.dumps({"speed_up": speed_up, "calm": False})
        tried = pretend(monkeypatch, announces=BF16, prints=busy)
        plan = precision.settled(plans.resolve("breakout", {}), "cpu")
        assert precision.told(plan).startswith(
            "float32, auto: no trial was undisturbed on this busy"
        )
        assert tried == ["manyhands.config.precision"] * precision.TRIALS
        assert not precision.cache_file().exists()


def test_a_trial_that_was_not_calm_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, announces=BF16, prints="")
    results = iter([json.dumps({"speed_up": 1.1, "calm": False}), calm(1.9)])
    ends = lambda: subprocess.CompletedProcess([], 0, next(results), "")  # noqa: E731
    monkeypatch.setattr(precision, "trial", ends)
    assert settled("breakout") == "bfloat16"
    assert precision.cache_file().exists()


NO_VERDICTS = {
    "empty": "",
    "no object": "[1]",
    "a number": '{"%s": 3}',
    "too fast": '{"%s": {"speed_up": 1e9, "forbidden": false}}',
    "not a number": '{"%s": {"speed_up": "nan", "forbidden": false}}',
    "deep": "[" * 60_000,
    "long": '{"%s": {"speed_up": 1, "forbidden": false}}' + " " * 70_000,
}


@pytest.mark.parametrize("content", NO_VERDICTS.values(), ids=NO_VERDICTS)
def test_what_is_no_verdict_is_tried_again(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    precision.cache_file().parent.mkdir(parents=True)
    named = content % precision._machine() if "%" in content else content
    precision.cache_file().write_text(named)
    assert settled("breakout") == "bfloat16"
    assert tried == ["manyhands.config.precision"]


def test_a_folder_that_cannot_be_written_does_no_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file")
    pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    assert settled("breakout") == "bfloat16"
    assert precision.verdict().origin == "tried now, not stored"


def test_of_many_machines_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(precision.MOST_MACHINES + 3):
        pretend(monkeypatch, announces=[*BF16, str(number)], prints=calm(1.9))
        precision.verdict()
    kept = json.loads(precision.cache_file().read_text())
    assert len(kept) == precision.MOST_MACHINES
    assert list(kept)[-1] == precision._machine()


@pytest.mark.parametrize(
    ("least", "calmly"), [([1.0], False), ([1.0, 1.2], False), ([1.2, 1.0, 1.03], True)]
)
def test_a_trial_is_calm_when_its_least_time_comes_again(least: list[float], calmly: bool) -> None:
    assert precision.repeats(least) is calmly


@pytest.mark.parametrize("prints", [calm(1.1), "not a number", "", "3", '{"speed_up": null}'])
def test_float32_where_it_is_hardly_quicker(monkeypatch: pytest.MonkeyPatch, prints: str) -> None:
    pretend(monkeypatch, announces=BF16, prints=prints)
    assert settled("breakout") == "float32"


def test_float32_where_instructions_are_announced_and_forbidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, announces=[*BF16, "amx_bf16"], prints="", fails=-signal.SIGILL)
    assert settled("breakout") == "float32"
    tried = pretend(monkeypatch, announces=[*BF16, "amx_bf16"], prints=calm(1.9))
    assert precision.forbidden()  # as was kept
    assert tried == []


def test_a_trial_that_somebody_killed_says_nothing_of_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pretend(monkeypatch, announces=BF16, prints="", fails=-signal.SIGKILL)
    assert settled("breakout") == "float32"
    pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    assert settled("breakout") == "bfloat16"


def test_nothing_is_tried_where_there_are_no_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = pretend(monkeypatch, announces=NONE, prints="9")
    assert settled("breakout") == "float32"
    assert tried == []


def test_the_trial_itself() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "manyhands.config.precision"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode < 0 or json.loads(done.stdout)["speed_up"] > 0  # killed, or measured


@pytest.mark.usefixtures("bfloat16")
def test_a_resumed_run_keeps_its_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    flags: dict[str, Any] = {
        "steps": 64,
        "out": tmp_path / "run",
        "evaluation": {"period_steps": 0},
    }
    flags |= {"envs_per_worker": 2, "pqn": {"rollout_steps": 16, "minibatches": 2}}
    mh.train("breakout", quiet=True, **flags)
    kept = json.loads((tmp_path / "run" / "config.json").read_text())
    assert kept["config"]["network"]["precision"] == "bfloat16"
    assert kept["sources"]["network.precision"].startswith("auto: bfloat16 is 1.9 times as fast")
    pretend(monkeypatch, announces=NONE, prints="")  # elsewhere
    again = mh.Run("breakout", resume_if_exists=True, **(flags | {"steps": 128}))
    assert again.plan.network.precision == "bfloat16"
    again.finish()
    assert mh.resume(tmp_path / "run", steps=192, quiet=True).plan.network.precision == ("bfloat16")


@pytest.mark.usefixtures("bfloat16")
def test_where_bfloat16_is_forbidden_a_run_continues_in_float32(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    flags: dict[str, Any] = {"quiet": True, "out": tmp_path / "run", "envs_per_worker": 2}
    flags |= {"network": {"torso": "small", "precision": "bfloat16"}, "memory": {"capacity": 200}}
    flags |= {"dqn": {"warmup_steps": 40, "batch_size": 8}, "evaluation": {"period_steps": 0}}
    mh.train("toy/frames", steps=80, **flags)
    pretend(monkeypatch, announces=BF16, prints="", fails=-4)  # elsewhere
    again = mh.Run.resumed(tmp_path / "run", steps=160)
    assert again.plan.network.precision == "float32"
    assert any("forbids bfloat16" in line for line in messages.opening_lines(again.progress, 1))
    again.finish()
    assert again.summary["updates"] > 0
    assert '"precision": "bfloat16"' in (tmp_path / "run" / "config.json").read_text()
    assert mh.load(tmp_path / "run").plan.network.precision == "float32"
    with pytest.raises(BadRequest, match="kills processes"):
        mh.Run("toy/frames", steps=80, **flags | {"out": tmp_path / "other"})
    assert not (tmp_path / "other").exists()


def test_a_run_without_a_precision_continues_in_float32(tmp_path: Path) -> None:
    old = tmp_path / "config.json"
    for text in ("{}", "not json", '{"config": {"network": {"torso": "nature"}}}'):
        old.write_text(text)
        plan = precision.as_before(plans.resolve("breakout", {}), old, "cpu")
        assert plan.network.precision == "float32"


SHARED: list[tuple[str, dict[str, Any]]] = [
    ("serial", {}),
    ("delayed", {"updates": 2}),
    ("lock", {}),
    ("hogwild", {"copy": True}),
    ("hogwild", {"copy": True, "sync_every": 3}),
    ("parameter_server", {"shards": 2}),
    ("parameter_server", {"push_every": 2, "fetch_every": 3}),
    ("allreduce", {}),
    ("gossip", {}),
    ("proximal", {"form": "p2d2"}),
]


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("strategy", "values"), SHARED)
def test_rounding_once_for_a_pull_is_rounding_every_time(
    strategy: str,
    values: dict[str, Any],
    apart: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    many = 2 if strategy in registry.shared() else 1
    workers = {"actors": 2, "learners": many} if apart else {"workers": many}

    def weights(name: str) -> dict[str, Any]:
        run = mh.train(
            "toy/frames", strategy=strategy, backend="inprocess", steps=160, **workers,
            network={"torso": "small", "precision": "bfloat16"}, envs_per_worker=2, threads=1,
            dqn={"warmup_steps": 40, "batch_size": 8, "steps_per_update": 4},
            memory={"capacity": 200}, out=tmp_path / name, quiet=True, **{strategy: values},
        )  # fmt: skip
        assert run.summary["updates"] > 10
        return dict(checkpoint.newest(run.path / "checkpoints").weights)

    once = weights("once")
    monkeypatch.setattr(optim.FlatModel, "changed", lambda _: None)  # then nothing is kept
    every_time = weights("every time")
    for name, array in once.items():
        np.testing.assert_array_equal(array, every_time[name], err_msg=name)


class Net(nn.Flatten):
    def __init__(self, _: tuple[int, ...]) -> None:
        super().__init__()

    def forward(self, pixels: Tensor) -> Tensor:
        return super().forward(pixels).float() / 255


def test_a_class_of_ones_own_stands_in_for_nature(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried = pretend(monkeypatch, announces=BF16, prints=calm(1.9))
    few = {"envs_per_worker": 2, "pqn": {"rollout_steps": 16, "minibatches": 2}}
    run = mh.train("breakout", network=Net, steps=64, out=tmp_path / "run", quiet=True, **few)
    assert run.plan.network.torso == "nature"
    assert run.plan.network.precision == "float32"
    assert tried == []


def test_ones_own_network_has_its_own_precision(tmp_path: Path) -> None:
    plan = {"torso": "mlp", "precision": "bfloat16"}
    with pytest.raises(BadRequest, match="is for nature and small, not for the torso mlp"):
        mh.train("cartpole", network=plan, out=tmp_path / "a", quiet=True)
    own = tmp_path / "net.py"
    own.write_text("from torch import nn\nclass Net(nn.Flatten):\n def __init__(self, s): pass\n")
    named = {"torso": f"{own}:Net", "precision": "bfloat16"}
    with pytest.raises(BadRequest, match="not for a network of your own"):
        mh.train("cartpole", network=named, out=tmp_path / "b", quiet=True)
