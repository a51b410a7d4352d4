"""Checkpoints and configurations changed at random, their hashes right: refused, or a good start.

``PYTHONPATH=tests python -m support.checkpoint_fuzz KIND FIRST COUNT`` tries seeds FIRST,
FIRST + 1, … of one kind and prints what went wrong.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import manyhands as mh
from manyhands.runs import checkpoint, policies, provenance
from manyhands.runs.run import Run
from manyhands.types import Refusal
from support.mutations import mutated

SMALL = {"warmup_steps": 20, "batch_size": 4, "steps_per_update": 2}
PLAIN: dict[str, Any] = {
    "steps": 40, "threads": 1, "network": {"hidden": (4,)}, "memory": {"capacity": 64},
    "checkpoint": {"period_minutes": 0.0}, "evaluation": {"period_steps": 30, "episodes": 1},
}  # fmt: skip
TOY: dict[str, Any] = {"task": "toy/identity", "envs_per_worker": 2}
MANY: dict[str, Any] = {**TOY, "backend": "inprocess", "workers": 2, "dqn": SMALL}
KINDS: dict[str, dict[str, Any]] = {
    "alone": {"task": "CartPole-v1", "envs_per_worker": 2, "dqn": SMALL},
    "snake": {"task": "snake", "recipe": "double-q", "double_q": SMALL},
    "prioritized": {**TOY, "recipe": "prioritized-dqn", "dqn": SMALL},
    "rollout": {**TOY, "recipe": "ppo", "ppo": {"rollout_steps": 16}},
    "queue": {**TOY, "recipe": "impala", "actors": 0, "impala": {"rollout_steps": 5}},
    "actors": {**MANY, "recipe": "apex"},
    "server": {**MANY, "recipe": "downpour"},
    "lock": {**MANY, "recipe": "locked"},
    "free": {**MANY, "recipe": "hogwild"},
    "reduce": {**MANY, "recipe": "sync"},
    "gossip": {**MANY, "recipe": "ad-psgd"},
    "proximal": {**MANY, "recipe": "proximal"},
}
UNSAVED = (TypeError, ValueError, AttributeError, OverflowError, LookupError)
MORE_STEPS = 12
LONGEST_S = 20


class Good(NamedTuple):
    """A run to be spoilt: its folder without checkpoints, and what its newest holds."""

    folder: Path
    config: dict[str, Any]
    step: int
    parts: dict[str, Any]  # weights, state, replay


def made(place: Path, kind: str) -> Good:
    asked = {**PLAIN, **KINDS[kind]}
    run = mh.train(asked.pop("task"), out=place / kind, quiet=True, **asked)
    found = checkpoint.newest(run.folder.checkpoints)
    table = json.loads((run.path / "config.json").read_text())
    parts = {"weights": found.weights, "state": found.state, "replay": found.replay}
    shutil.rmtree(run.folder.checkpoints)
    return Good(run.path, table, found.step, {k: v for k, v in parts.items() if v is not None})


def late(*_: object) -> None:
    raise TimeoutError(f"it took more than {LONGEST_S} s")


def tried(good: Good, seed: int, place: Path) -> tuple[str, str]:
    """What was changed, and what came of it: "refused: …" or "started"."""
    rng = random.Random(seed)
    parts, table, what = good.parts, good.config, list[str]()
    for _ in range(rng.choice((1, 1, 1, 2))):
        if rng.random() < 0.12:
            table, told = mutated(table, rng)
        else:
            parts, told = mutated(parts, rng)
        what.append(told)
    try:
        return "; ".join(what), came_of(good, parts, table, place)
    except Exception as error:
        error.add_note(f"seed {seed}: {'; '.join(what)}")
        raise


def came_of(good: Good, parts: dict[str, Any], table: dict[str, Any], place: Path) -> str:
    work = place / "work"
    try:
        saved(work, table, good.step, parts)
    except UNSAVED:
        return "cannot be saved"
    return _outcome(work, good.step + MORE_STEPS)


def saved(work: Path, table: dict[str, Any], step: int, parts: dict[str, Any]) -> None:
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "config.json").write_text(json.dumps(table))
    given: dict[str, Any] = {name: parts.get(name) for name in ("weights", "state", "replay")}
    checkpoint.save(work / "checkpoints", step, **given)


def played(good: Good, seed: int, place: Path) -> str:
    """The same for a policy that is only played: the weights, and what they were trained on."""
    rng, work = random.Random(seed), place / "work"
    parts = {name: good.parts[name] for name in ("weights", "state")}
    parts["state"] = {"spec": good.parts["state"]["spec"]}
    changed = mutated(parts, rng)[0]
    try:
        saved(work, good.config, good.step, {"weights": {}, "state": {}, **changed})
    except UNSAVED:
        return "cannot be saved"
    try:
        policy = policies.load(work)
        policy.act(np.zeros(policy.spec.frame_shape, policy.spec.frame_dtype))
    except Refusal as refusal:
        return f"refused: {refusal.what}"
    return "started"


def _outcome(work: Path, steps: int) -> str:
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LONGEST_S)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Run.resumed(work, steps=steps).finish()
    except Refusal as refusal:
        if not (refusal.what and refusal.remedy):
            raise
        return f"refused: {refusal.what}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return "started"


def main() -> int:
    kind, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    seen: Counter[str] = Counter()
    provenance.commit = lambda: ""  # a process of its own each time
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="manyhands-fuzz-") as folder:
        good = made(Path(folder), kind)
        for seed in range(first, first + count):
            try:
                _, came = tried(good, seed, Path(folder))
                seen[came.partition(":")[0]] += 1
            except Exception as error:
                frames = traceback.extract_tb(error.__traceback__)
                ours = [f for f in frames if "/manyhands/" in f.filename] or list(frames)
                where = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in ours[:-4:-1])
                seen["WRONG"] += 1
                print(f"{kind} {seed}: {type(error).__name__}: {str(error)[:90]} at {where}")
    print(kind, dict(seen))
    return bool(seen["WRONG"])


if __name__ == "__main__":
    sys.exit(main())
