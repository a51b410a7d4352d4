"""A network that is larger than what the checkpoint or the memory holds is refused early."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

import manyhands as mh
from manyhands import optim
from manyhands.networks import torsos
from manyhands.networks.config import Config
from manyhands.types import BadRequest, Failure, machine
from support.command_line import SMALL, assert_told, call, command

HUGE = [30_000, 30_000]
MOST_KB = 1_500_000  # of a process with torch; the network alone would take 3.6 GB
PEAK = """
import atexit, resource
atexit.register(lambda: print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    return mh.train("cartpole", out=path, evaluation={"period_steps": 0}, **SMALL).path


@pytest.fixture
def foreign(trained: Path, tmp_path: Path) -> Path:
    run = shutil.copytree(trained, tmp_path / "run")
    table = json.loads((run / "config.json").read_text())
    table["config"]["network"]["hidden"] = HUGE
    (run / "config.json").write_text(json.dumps(table))
    return run


@pytest.mark.parametrize("words", [["resume", "--steps=320"], ["evaluate", "--episodes=1"]])
def test_a_network_larger_than_the_checkpoint_is_not_built(words: list[str], foreign: Path) -> None:
    done = command(words[0], foreign, *words[1:], code=PEAK)
    assert done.returncode == 1
    assert_told(done.stderr, "a network of at least 900,", "the checkpoint has 386")
    assert int(done.stdout.split("peak")[1]) < MOST_KB


def test_nor_is_it_from_python(foreign: Path) -> None:
    with pytest.raises(Failure, match="asks for a network of at least 900,"):
        mh.load(foreign)
    with pytest.raises(Failure, match="asks for a network of at least 900,"):
        mh.resume(foreign, steps=320)


@pytest.mark.parametrize(
    ("optimizer", "vectors"),
    [("adam", 2), ("radam", 2), ("rmsprop", 1), ("adagrad", 1), ("sgd", 0)],
)
def test_the_optimizer_counts(optimizer: str, vectors: int) -> None:
    assert optim.vectors(optim.Config(name=optimizer)) == vectors


def test_a_new_network_must_fit_with_all_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """900 million parameters: 32 GB with gradient, target, optimizer and a checkpoint."""
    monkeypatch.setattr(machine, "free_bytes", lambda: 20 * 10**9)
    with pytest.raises(BadRequest, match=r"900,\d+,\d+ parameters takes 32\.4 GB"):
        mh.train("cartpole", out=tmp_path / "run", network={"hidden": HUGE}, quiet=True)


def test_a_limit_of_the_process_counts_as_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(kind: int) -> tuple[int, int]:
        assert kind == resource.RLIMIT_AS
        return 1 << 20, resource.RLIM_INFINITY

    monkeypatch.setattr("manyhands.types.machine.resource.getrlimit", limits)
    assert machine.free_bytes() == 0


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4,), {}),
        ((4,), {"hidden": (16, 8)}),
        ((4, 84, 84), {}),
        ((4, 84, 84), {"channels": (8, 8, 16), "hidden": (32,)}),
        ((3, 97, 50), {"torso": "nature", "norm": "layer"}),
        ((2, 10, 10), {}),
        ((2, 10, 12), {"torso": "small", "channels": (4, 6)}),
        ((2, 10, 12), {"torso": "mlp"}),
    ],
)
def test_weights_are_counted_before_a_torso_is_made(
    shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    config = Config(**options)
    made = torsos.make(config, shape, scale=1.0)
    weights = [p for name, p in made.named_parameters() if name.endswith("weight") and p.ndim > 1]
    weights = [p for p in weights if p.ndim != 3]  # those of a layer norm over an image
    counted, features = torsos.size(config, shape)
    assert counted == sum(p.numel() for p in weights)
    assert features == weights[-1].shape[0]


def test_too_many_layers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "cartpole", "--network.hidden", ",".join(["8"] * 101),
                "--out", tmp_path / "run") == 2  # fmt: skip
    assert_told(capsys.readouterr().err, "101 layers")
