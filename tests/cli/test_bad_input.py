"""Whatever is asked wrongly gets a sentence and a remedy, and leaves nothing behind."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import manyhands as mh
from manyhands.config import plans
from manyhands.runs import checkpoint
from manyhands.types import machine
from support.command_line import (
    BLOCK,
    SMALL,
    SMALL_SECTIONS,
    SMALL_WORDS,
    assert_told,
    call,
    command,
    contents,
)

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


# --- Training -----------------------------------------------------------------------------------

REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "task": (["cartpol"], ["'cartpol'", "cartpole"]),
    "task that resembles nothing": (["qqqqqqqqqqqq"], ["'qqqqqqqqqqqq'", "cartpole"]),
    "no task": ([], ["a task", "cartpole"]),
    "two tasks": (["cartpole", "pong"], ["'pong'", "too many"]),
    "recipe": (["cartpole", "--recipe", "dqm"], ["--recipe 'dqm'", "mean dqn?"]),
    "algorithm": (["cartpole", "--algorithm", "dqm"], ["--algorithm 'dqm'", "mean dqn?"]),
    "strategy": (["cartpole", "--strategy", "seriall"], ["--strategy 'seriall'", "serial?"]),
    "backend": (["cartpole", "--backend", "inproces"], ["--backend 'inproces'", "inprocess?"]),
    "backend file": (["cartpole", "--backend", "no.py"], ["no.py", "existing"]),
    "algorithm file": (["cartpole", "--algorithm", "no.py"], ["no.py", "existing"]),
    "network file": (["cartpole", "--network", "no.py:Net"], ["no.py", "existing"]),
    "empty network": (["cartpole", "--network", ""], ["--network is empty", "leave"]),
    "empty folder": (["cartpole", "--out="], ["--out is empty", "leave"]),
    "torso": (["cartpole", "--network", "nature"], ["nature", "mlp"]),
    "unknown torso": (["cartpole", "--network.torso", "natur"], ["natur", "nature?"]),
    "environments": (["cartpole", "--envs-per-worker=10000000"], ["10000000", "at most 10000"]),
    "device": (["cartpole", "--device", "cdua"], ["cdua", "cuda"]),
    "device of many": (
        ["cartpole", "--recipe=hogwild", "--device=cuda"],
        ["--device cuda", "--workers 1"],
    ),
    "environment": (["CartPole-v9"], ["'CartPole-v9'", "CartPole-v1"]),
    "Atari environment": (["ALE/Brekout-v5"], ["'ALE/Brekout-v5'", "breakout"]),
    "toy": (["toy/identty"], ["'toy/identty'", "toy/identity"]),
    "module": (["no_such_module:Env-v0"], ["no_such_module"]),
    "option": (["cartpole", "--step", "3"], ["--step", "--steps"]),
    "key": (["cartpole", "--dqn.batchsize", "3"], ["--dqn.batchsize", "--dqn.batch"]),
    "section": (["cartpole", "--dnq.lr", "3"], ["'dnq'", "dqn"]),
    "empty section": (["cartpole", "--.lr", "3"], ["section", "''"]),
    "no number": (["cartpole", "--dqn.lr", "fast"], ["--dqn.lr 'fast'", "a number"]),
    "no whole number": (["cartpole", "--steps", "1.5"], ["--steps '1.5'", "whole number"]),
    "no truth": (["cartpole", "--dqn.double", "perhaps"], ["--dqn.double", "true or false"]),
    "no switch": (["cartpole", "--quiet=perhaps"], ["--quiet", "true or false"]),
    "no list": (["cartpole", "--network.hidden", "a,b"], ["--network.hidden", "256,256"]),
    "layer of nothing": (["cartpole", "--network.hidden", "8,0"], ["--network.hidden", "8,0"]),
    "too large": (["cartpole", "--dqn.gamma", "2"], ["--dqn.gamma 2", "at most 1"]),
    "too small": (["cartpole", "--steps", "-5"], ["--steps -5", "at least 0"]),
    "zero": (["cartpole", "--dqn.lr", "0"], ["--dqn.lr 0", "more than 0"]),
    "NaN": (["cartpole", "--dqn.lr", "nan"], ["--dqn.lr nan", "more than 0"]),
    "NaN without range": (["cartpole", "--threshold", "nan"], ["--threshold nan", "give a "]),
    "infinite": (["cartpole", "--dqn.lr", "inf"], ["--dqn.lr inf", "give "]),
    "infinitely many": (["cartpole", "--steps", "1e999"], ["--steps '1e999'", "whole number"]),
    "continuous": (["Pendulum-v1"], ["Pendulum-v1", "continuous", "Discrete"]),
    "continuous lander": (["LunarLanderContinuous-v3"], ["continuous", "Discrete"]),
    "workers of serial": (["cartpole", "--workers", "2"], ["--workers 2", "--envs-per-worker"]),
    "steps and minutes": (["cartpole", "--steps=5", "--minutes=1"], ["--steps and --minutes"]),
    "no threshold": (["toy/identity", "--until-solved"], ["no threshold", "--threshold"]),
    "warm-up": (
        ["cartpole", "--dqn.warmup-steps=900", "--memory.capacity=800"],
        ["warmup_steps 900", "--memory.capacity 800", "--dqn.warmup"],
    ),
    "batch": (
        ["cartpole", "--dqn.warmup-steps=900", "--dqn.batch-size=850", "--memory.capacity=800"],
        ["batch_size 850", "--memory.capacity 800", "--dqn.batch"],
    ),
    "threads": (["cartpole", "--threads=100000"], ["--threads 100000", "at most"]),
    "short hang": (["cartpole", "--hang-s=1"], ["--hang-s 1", "at least 2"]),
    "seed that is too large": (["cartpole", "--seed=1e30"], ["--seed 1e30", "at most"]),
    "actor that is none": (["cartpole", "--single-actor"], ["--single-actor", "--actors 1"]),
    "no value": (["cartpole", "--steps"], ["--steps", "needs a value"]),
    "no value but a flag": (["cartpole", "--steps", "--quiet"], ["--steps", "needs a value"]),
    "short flag": (["cartpole", "-x"], ["'-x'"]),
}


# What can be seen only once an environment is made.
REFUSED_LATER = {"environment", "Atari environment", "toy", "module", "torso"}
REFUSED_LATER |= {"continuous", "continuous lander"}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_refused(case: str, here: Path, capsys: Capture) -> None:
    words, mentions = REFUSED[case]
    assert call("train", *words, "--out", "run") == 2
    told = capsys.readouterr()
    assert_told(told.err, *mentions)
    assert contents(here) == {}
    assert not told.out or case in REFUSED_LATER


def test_a_run_to_resume_needs_its_folder(here: Path, capsys: Capture) -> None:
    assert call("train", "cartpole", "--resume-if-exists") == 2
    assert_told(capsys.readouterr().err, "--resume-if-exists without --out", "add --out")
    assert contents(here) == {}


def test_without_out_nothing_is_made_either(here: Path, capsys: Capture) -> None:
    assert call("train", "CartPole-v9") == 2
    assert_told(capsys.readouterr().err, "CartPole-v1")
    assert contents(here) == {}


def test_a_memory_too_large_is_told_the_largest_that_fits(here: Path, capsys: Capture) -> None:
    words = ["train", "cartpole", "--out=run", *SMALL_SECTIONS, "--quiet", "--steps=100"]
    assert call(*words, "--memory.capacity=1e12") == 2
    err = capsys.readouterr().err
    assert_told(err, "1,000,000,000,000 rows", "memory.capacity")
    fits = int(err.partition("capacity to ")[2].split()[0])
    assert 10_000 < fits < 1e12
    assert contents(here) == {}


@pytest.mark.parametrize("words", [["traim", "cartpole"], ["--steps", "3"], ["evaluate"]])
def test_a_command_that_is_none(words: list[str], capsys: Capture) -> None:
    assert call(*words) == 2
    assert_told(capsys.readouterr().err)


def test_a_few_threads_a_core_are_enough(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    assert call("train", "cartpole", "--threads=33", "--out=run") == 2
    assert_told(capsys.readouterr().err, "--threads 33", "8 cores", "at most 32")
    layer = plans.resolve("cartpole", {}).as_layer()
    layer["run"]["threads"] = 33  # of a larger machine
    recorded = {"task": "cartpole", "config": layer, "sources": {}}
    (here / "config.json").write_text(json.dumps(recorded))
    assert plans.from_json(here / "config.json", allow_code=False).top.threads == 33


def test_by_the_real_command(here: Path) -> None:
    done = command("train", "cartpole", "--dqn.batchsize", "3", "--out", "run", cwd=here)
    assert done.returncode == 2
    assert_told(done.stderr, "--dqn.batchsize", "--dqn.batch")
    assert done.stdout == ""
    assert contents(here) == {}


@pytest.mark.parametrize(
    ("task", "module", "remedy"),
    [
        ("breakout", "ale_py", 'pip install "manyhands[atari]"'),
        ("ALE/Pong-v5", "ale_py", 'pip install "manyhands[atari]"'),
        ("lunarlander", "Box2D", 'pip install "manyhands[box2d]"'),
    ],
)
def test_a_missing_extra_is_named(task: str, module: str, remedy: str, here: Path) -> None:
    done = command("train", task, "--out", "run", code=BLOCK.format(name=module), cwd=here)
    assert done.returncode == 2
    assert_told(done.stderr, remedy, "not installed")
    assert contents(here) == {}


@pytest.mark.parametrize("verb", ["train", "plan"])
def test_an_unknown_task_is_not_told_every_game(verb: str, here: Path, capsys: Capture) -> None:
    assert call(verb, "qqqqqqqqqqqq") == 2
    err = capsys.readouterr().err
    assert_told(err, "cartpole", "any environment id")
    assert len(err) < 500
    assert contents(here) == {}


@pytest.mark.parametrize("out", ["occupied", "occupied/file", "occupied/file/run", "x" * 300])
def test_a_folder_that_cannot_be_the_runs(out: str, here: Path, capsys: Capture) -> None:
    (here / "occupied").mkdir()
    (here / "occupied" / "file").write_text("mine")
    before = contents(here)
    assert call("train", "cartpole", *SMALL_WORDS, "--out", out) == 2
    assert_told(capsys.readouterr().err, out, "--out")
    assert contents(here) == before


def test_a_folder_that_cannot_be_created(capsys: Capture) -> None:
    assert call("train", "cartpole", "--out=/proc/run") == 2
    told = capsys.readouterr()
    assert_told(told.err, "/proc/run cannot be created", "another --out")
    assert told.out == ""  # before anything is made


@pytest.mark.parametrize("text", ["", "import no_such_module", "def make(: pass", "Config = 3"])
def test_a_file_that_is_no_algorithm(text: str, here: Path, capsys: Capture) -> None:
    (here / "mine.py").write_text(text)
    assert call("train", "cartpole", *SMALL_WORDS, "--algorithm=mine.py", "--out=run") == 2
    assert_told(capsys.readouterr().err, "mine.py")
    assert not (here / "run").exists()


def test_a_section_of_a_member_not_in_use(here: Path, capsys: Capture) -> None:
    (here / "mine.py").write_text("from manyhands.algorithms.dqn import Config, make")
    words = ["train", "cartpole", "--algorithm=mine.py", "--out=run", "--quiet", "--steps=100"]
    assert call(*words, "--dqn.lr=1") == 2
    assert_told(capsys.readouterr().err, "--dqn.", "does not use", "mine")
    assert not (here / "run").exists()


# --- Runs that are none, or are damaged ---------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    often = {"period_steps": 100, "episodes": 1}
    path = tmp_path_factory.mktemp("trained") / "run"
    return mh.train("cartpole", out=path, evaluation=often, **SMALL).path


@pytest.fixture
def run(trained: Path, here: Path) -> Path:
    """A copy of a finished run, to be spoilt."""
    return shutil.copytree(trained, here / "run")


def refused(run: Path, words: list[Any], capsys: Capture, *mentions: str) -> int:
    """The exit code of a command that changes nothing."""
    before = contents(run.parent)
    code = call(*words)
    assert_told(capsys.readouterr().err, *mentions)
    assert contents(run.parent) == before
    return code


USES: dict[str, list[str]] = {
    "resume": ["resume", "run", "--steps=400", "--quiet"],
    "evaluate": ["evaluate", "run", "--episodes=2"],
    "best": ["evaluate", "run", "--episodes=2", "--best"],
}


@pytest.mark.parametrize("use", USES)
def test_the_copy_is_good_until_it_is_spoilt(use: str, run: Path) -> None:
    assert run.is_dir()
    assert call(*USES[use]) == 0


def test_a_run_that_exists_is_left_alone(run: Path, capsys: Capture) -> None:
    words = ["train", "cartpole", *SMALL_WORDS, "--out=run"]
    assert refused(run, words, capsys, "run exists already", "--resume-if-exists") == 2


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["nothing", "empty folder", "file"])
def test_what_is_no_run(use: str, kind: str, run: Path, capsys: Capture) -> None:
    shutil.rmtree(run)
    if kind == "empty folder":
        run.mkdir()
    elif kind == "file":
        run.write_text("no run")
    assert refused(run, USES[use], capsys, "run is not a run's folder") == 2


def with_config(run: Path, section: str, **values: Any) -> str:
    table = json.loads((run / "config.json").read_text())
    table["config"][section].update(values)
    return json.dumps(table)


def with_section(run: Path, section: str, content: Any) -> str:
    table = json.loads((run / "config.json").read_text())
    table["config"][section] = content
    return json.dumps(table)


SPOILT_CONFIGS: dict[str, Any] = {
    "empty": lambda _: "",
    "half": lambda run: (run / "config.json").read_text()[:200],
    "bytes": lambda _: b"\xff\xfe\x00",
    "list": lambda _: "[]",
    "number": lambda _: "3",
    "object": lambda _: "{}",
    "bomb": lambda _: "[" * 100_000,
    "task only": lambda _: '{"task": "cartpole", "config": {}}',
    "config is a list": lambda _: '{"task": "cartpole", "config": []}',
    "run is a list": lambda _: '{"task": "cartpole", "config": {"run": []}}',
    "section is a list": lambda run: with_section(run, "dqn", []),
    "section is a number": lambda run: with_section(run, "optim", 7),
    "section is text": lambda run: with_section(run, "memory", "large"),
    "unknown key": lambda run: with_config(run, "dqn", learning=3),
    "wrong type": lambda run: with_config(run, "dqn", lr="fast"),
    "null": lambda run: with_config(run, "dqn", lr=None),
    "deep value": lambda run: with_config(run, "network", hidden=[[1]]),
    "not finite": lambda run: with_config(run, "dqn", lr=math.inf),
    "algorithm": lambda run: with_config(run, "run", algorithm="unheard"),
    "algorithm is a list": lambda run: with_config(run, "run", algorithm=["dqn"]),
    "backend": lambda run: with_config(run, "run", backend="unheard"),
    "environment": lambda run: with_config(run, "env", id="Unheard-v0"),
}  # fmt: skip


@pytest.mark.parametrize("use", ["resume", "evaluate"])
@pytest.mark.parametrize("harm", SPOILT_CONFIGS)
def test_a_spoilt_configuration(harm: str, use: str, run: Path, capsys: Capture) -> None:
    text = SPOILT_CONFIGS[harm](run)
    (run / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused(run, USES[use], capsys) == 2


def truncate(folder: Path) -> None:
    path = folder / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-7])


def pickled(folder: Path) -> None:
    (folder / "weights.safetensors").write_bytes(PICKLE)


def pickled_and_sealed(folder: Path) -> None:
    """As an attacker would: the manifest agrees."""
    pickled(folder)
    seal(folder, "weights.safetensors")


def outward(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../../config.json"] = manifest["files"]["state.json"]
    (folder / "manifest.json").write_text(json.dumps(manifest))


def no_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()


def without(*path: str, put: Any = None) -> Any:
    """A checkpoint that is whole, but whose state is not what was saved."""

    def harm(folder: Path) -> None:
        tree = json.loads((folder / "state.json").read_text())
        branch = tree["state"]
        for key in path[:-1]:
            branch = branch[key]
        del branch[path[-1]]
        if put is not None:
            branch[path[-1]] = put
        (folder / "state.json").write_text(json.dumps(tree))
        seal(folder, "state.json")

    return harm


def seal(folder: Path, name: str) -> None:
    import hashlib

    manifest = json.loads((folder / "manifest.json").read_text())
    data = (folder / name).read_bytes()
    manifest["files"][name]["bytes"] = len(data)
    manifest["files"][name]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))


PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."
CHECKPOINT_HARM: dict[str, Any] = {
    "truncated": truncate,
    "pickle": pickled,
    "sealed pickle": pickled_and_sealed,
    "outward": outward,
    "no manifest": no_manifest,
}
SPEC_HARM: dict[str, Any] = {
    "no spec": without("spec"),
    "spec is a number": without("spec", put=3),
    "spec of another": without("spec", "actions", put=7),
    "spec too large": without("spec", "actions", put=10**15),
}
RESUME_HARM: dict[str, Any] = {
    "no run": without("run"),
    "run is a list": without("run", put=[]),
    "no clock": without("run", "wall_s"),
    "clock is text": without("run", "wall_s", put="noon"),
    "no actor": without("processes", "0", "actor"),
    "steps are text": without("processes", "0", "actor", "agent_steps", put="many"),
    "episodes are empty": without("processes", "0", "actor", "env", put={}),
    "no optimizer": without("strategy", "optimizers", put=[]),
    "no learner": without("processes", "0", "learner"),
    "no memory": without("processes", "0", "memory"),
}


@pytest.mark.parametrize(
    ("use", "harm"),
    [(use, harm) for use in USES for harm in CHECKPOINT_HARM]
    + [(use, harm) for use in ("evaluate", "best") for harm in SPEC_HARM]
    + [("resume", harm) for harm in RESUME_HARM],
)
def test_spoilt_checkpoints(use: str, harm: str, run: Path, capsys: Capture) -> None:
    folders = [run / "best"] if use == "best" else list((run / "checkpoints").iterdir())
    assert folders
    for folder in folders:
        (CHECKPOINT_HARM | SPEC_HARM | RESUME_HARM)[harm](folder)
    assert refused(run, USES[use], capsys) == 1
    assert not (run.parent / "pwned").exists()


def test_no_best(run: Path, capsys: Capture) -> None:
    shutil.rmtree(run / "best")
    assert refused(run, USES["best"], capsys, "no best checkpoint", "leave out --best") == 2


def test_no_checkpoint(run: Path, capsys: Capture) -> None:
    shutil.rmtree(run / "checkpoints")
    assert refused(run, USES["resume"], capsys, "no checkpoint") == 2
    assert refused(run, USES["evaluate"], capsys, "no checkpoint") == 2


@pytest.mark.parametrize(
    "words",
    [["evaluate", "run", "--epsilon=-0.5"], ["evaluate", "run", "--episodes=0"],
     ["resume", "run", "--steps=300"], ["resume", "run", "--steps=900", "--minutes=0.01"],
     ["resume", "run", "--dqn.lr=3"], ["evaluate", "run", "run"], ["resume"],
     ["record"], ["record", "none"], ["record", "run", "run"], ["record", "run", "--bset"],
     ["record", "run", "--episodes=0"], ["record", "run", "--seconds=0"],
     ["record", "run", "--out=film.avi"], ["watch"], ["watch", "none"], ["watch", "run", "--out=x"],
     ["plot"], ["plot", "none"], ["plot", "run", "none"], ["plot", "run", "--output=x"],
     ["doctor", "run"], ["doctor", "--jsno"]],
)  # fmt: skip
def test_bad_requests_of_a_run(words: list[str], run: Path, capsys: Capture) -> None:
    assert refused(run, words, capsys) == 2


# --- Code that a run names ----------------------------------------------------------------------

MARK = "open({mark!r}, 'w').close()\n"
TEXTS = {
    "algorithm": "from manyhands.algorithms.dqn import Config, make",
    "strategy": "from manyhands.strategies.serial import Config, make",
    "backend": "from manyhands.backends.inprocess import make",
    "torso": "from torch.nn import Flatten\nclass Net(Flatten):\n  def __init__(self, shape):\n"
    "    super().__init__()",
    "id": "import gymnasium as g\n"
    "g.registry.pop('Mine-v0', None)\n"
    "g.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv')",
}  # fmt: skip


@pytest.mark.parametrize("use", ["resume", "evaluate"])
@pytest.mark.parametrize("kind", TEXTS)
def test_code_runs_only_when_allowed(
    kind: str, use: str, run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, mark = run.parent / f"code_{kind}_{use}.py", run.parent / "mark"
    where.write_text(MARK.format(mark=str(mark)) + TEXTS[kind])
    monkeypatch.syspath_prepend(run.parent)
    named = {"torso": f"{where}:Net", "id": f"{where.stem}:Mine-v0"}.get(kind, str(where))
    section = {"torso": "network", "id": "env"}.get(kind, "run")
    (run / "config.json").write_text(with_config(run, section, **{kind: named}))
    assert refused(run, USES[use], capsys, where.stem, "--allow-code") == 2
    assert not mark.exists()
    call(*USES[use], "--allow-code")
    assert mark.exists()


# --- What goes wrong while training -------------------------------------------------------------


def faults(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "faults.jsonl").read_text().splitlines()]


def status(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "status.json").read_text())
    return found


LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))
"""


def test_a_full_disk_does_not_end_training(here: Path) -> None:
    """Files may not grow beyond what the weights need."""
    often: dict[str, Any] = {"period_minutes": 0.005}
    options = {**SMALL, "checkpoint": often, "network": {"hidden": (128, 128)}}
    looked = {"period_steps": 1000, "episodes": 1}
    mh.train("cartpole", out=here / "run", evaluation=looked, **options)
    done = command("resume", "run", "--steps=3000", "--quiet", code=LIMIT, cwd=here)
    assert done.returncode == 1
    assert_told(done.stderr, "could not write checkpoint 3000", "File too large")
    rows = faults(here / "run")
    assert any("continues" in row["action"] and "checkpoint" in row["cause"] for row in rows)
    assert any("best" in row["cause"] for row in rows)
    assert rows[-1]["cause"].startswith("could not write checkpoint 3000")
    assert status(here / "run")["state"] == "failed"
    assert status(here / "run")["agent_steps"] == 3000
    found = checkpoint.newest(here / "run" / "checkpoints")
    assert (found.step, found.problems) == (300, [])
    assert mh.resume(here / "run", steps=400, quiet=True).worker.actor.agent_steps == 400


def test_a_reward_that_is_not_a_number(here: Path, capsys: Capture) -> None:
    assert call("train", "toy/nan", *SMALL_WORDS, "--out=run") == 1
    assert_told(capsys.readouterr().err, "toy/nan", "reward is NaN")
    assert status(here / "run")["state"] == "failed"
    assert "NaN" in faults(here / "run")[-1]["cause"]
    assert not (here / "run" / "summary.json").exists()
    assert mh.load(here / "run").act(np.eye(4, dtype=np.float32)).shape == (4,)
    first = checkpoint.newest(here / "run" / "checkpoints").step
    assert call("resume", "run", "--quiet") == 1
    assert_told(capsys.readouterr().err, "reward is NaN")
    assert checkpoint.newest(here / "run" / "checkpoints").step > first
    assert call("evaluate", "run", "--episodes=1") == 1
    assert_told(capsys.readouterr().err, "reward is NaN")


class Frail(gymnasium.Env[Any, Any]):
    """Breaks at the hundredth step of all; once, or from then on always."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0

    def __init__(self, kind: str) -> None:
        self.kind, self.now = kind, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.now = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Any:
        Frail.steps += 1
        self.now += 1
        seen, reward = np.full(2, action, np.float32), 1.0
        if Frail.steps >= 100 and self.kind == "always":
            raise RuntimeError("for good")
        if Frail.steps == 100 and self.kind == "raises":
            raise RuntimeError("two\nlines")
        if Frail.steps == 100 and self.kind == "observation":
            seen[1] = np.nan
        if Frail.steps == 100 and self.kind == "shape":
            seen = np.zeros(3, np.float32)
        if Frail.steps == 100 and self.kind == "reward":
            reward = math.inf
        return seen, reward, self.now == 20, False, {}


@pytest.mark.parametrize(
    ("kind", "told"),
    [("raises", "RuntimeError"), ("observation", "observation is NaN"), ("shape", "shape"),
     ("reward", "reward is NaN or infinite")],
)  # fmt: skip
def test_an_environment_that_breaks_is_made_again(kind: str, told: str, tmp_path: Path) -> None:
    def make() -> Frail:
        return Frail(kind)

    Frail.steps = 0
    run = mh.train(make, out=tmp_path / "run", **SMALL)
    assert run.worker.actor.agent_steps == 300
    found = status(tmp_path / "run")
    assert (found["state"], found["environment_breaks"]) == ("finished", 1)
    (fault,) = faults(tmp_path / "run")
    assert told in fault["cause"]
    assert fault["action"] == "environment replaced"
    assert told in fault["detail"] or kind != "raises"
    returns = {episode.score for episode in run.worker.actor.scores._recent}
    assert returns == {20.0}, "the broken episode was counted"
    lanes = run.worker.memory.lanes.arrays  # type: ignore[attr-defined]
    after = np.flatnonzero(lanes["first"][0]).tolist()
    assert 104 in after, "99 rows, four of them closed; the hundredth; and then a first"


def test_a_broken_environment_leaves_a_run_to_resume(tmp_path: Path) -> None:
    kind = ["always"]

    def make() -> Frail:
        return Frail(kind[0])

    Frail.steps = 0
    with pytest.raises(mh.Failure, match=r"RuntimeError.*the 10th break in a row"):
        mh.train(make, out=tmp_path / "run", **SMALL)
    assert status(tmp_path / "run")["state"] == "failed"
    rows = faults(tmp_path / "run")
    assert [row["action"] for row in rows] == [*["environment replaced"] * 9, "stopped"]
    found = checkpoint.newest(tmp_path / "run" / "checkpoints")
    assert found.step == 99 + 9
    kind[0] = "healthy"
    more = mh.resume(tmp_path / "run", make_env=make, quiet=True)
    assert more.worker.actor.agent_steps == 300
    assert status(tmp_path / "run")["state"] == "finished"


def test_a_sentence_stays_on_its_line(here: Path, capsys: Capture) -> None:
    (here / "broken.py").write_text("raise ValueError('two\\nlines')")
    assert call("train", "cartpole", *SMALL_WORDS, "--algorithm=broken.py", "--out=run") == 2
    assert_told(capsys.readouterr().err, "broken.py", "two lines")


def test_an_algorithm_that_raises_leaves_a_failed_run(here: Path) -> None:
    (here / "frail.py").write_text(
        "from manyhands.algorithms import dqn\n"
        "from manyhands.algorithms.dqn import Config\n"
        "class Frail(dqn.DQN):\n"
        "    def lr(self, agent_steps):\n"
        "        assert agent_steps < 100, 'a bug of mine'\n"
        "        return 1e-3\n"
        "make = Frail\n"
    )
    options = {**SMALL, "frail": SMALL["dqn"]}
    del options["dqn"]
    with pytest.raises(AssertionError, match="a bug of mine"):
        mh.train("cartpole", algorithm="frail.py", out=here / "run", **options)
    assert status(here / "run")["state"] == "failed"
    assert "a bug of mine" in faults(here / "run")[-1]["cause"]
    assert checkpoint.newest(here / "run" / "checkpoints").step == 100


NAN_NET = """
from torch import nn
class Net(nn.Module):
    calls = 0
    def __init__(self, shape):
        super().__init__()
        self.layer = nn.Linear(shape[0], 8)
    def forward(self, seen):
        Net.calls += self.training and len(seen) == 16
        return self.layer(seen) * (float("nan") if Net.calls > 30 else 1.0)
"""
NOT_FINITE = {
    "network": ["--network=nan.py:Net"],
    "reward": ["--env.reward-scale=3e38"],
}


@pytest.mark.parametrize("kind", NOT_FINITE)
def test_a_loss_that_is_not_finite(kind: str, here: Path, capsys: Capture) -> None:
    (here / "nan.py").write_text(NAN_NET)
    words = [*SMALL_WORDS, *NOT_FINITE[kind], "--out=run", "--dqn.warmup-steps=16"]
    assert call("train", "toy/identity", *words) == 1
    assert_told(capsys.readouterr().err, "not finite 10 times in a row", "reward_scale")
    assert status(here / "run")["faults"]["nonfinite_skipped"] >= 10
    assert [row["action"] for row in faults(here / "run")] == [
        "update skipped, batch kept",
        "stopped",
    ]
    from safetensors.numpy import load_file

    batch = load_file(here / "run" / "nonfinite_batch.safetensors")
    assert batch["observation"].shape == (16, 4)
    weights = checkpoint.newest(here / "run" / "checkpoints").weights
    assert weights
    assert all(np.isfinite(array).all() for array in weights.values())
