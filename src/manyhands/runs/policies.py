"""A trained policy: loaded from a run, and called with observations."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from manyhands import optim
from manyhands.config import plans, precision
from manyhands.config.plans import Plan
from manyhands.envs.observations import Sight
from manyhands.roles.making import MakeTorso, least_parameters, make_algorithm, name_or_torso
from manyhands.roles.process_setup import choose_device
from manyhands.runs import checkpoint, liveness, rundir
from manyhands.types import Algorithm, Array, EnvSpec, Failure, State, restored, users_files
from manyhands.viewing.display import score_text

CHANGED = "was config.json changed? Pass a network of your own again: network=…"
LARGEST = 1 << 24  # for any number in an environment's spec: pixels, frames, actions


class Policy:
    """A trained agent. `act` takes observations as the run's environment returns them."""

    def __init__(self, plan: Plan, algorithm: Algorithm, spec: EnvSpec, step: int) -> None:
        self.plan, self.algorithm, self.spec, self.step = plan, algorithm, spec, step
        self._rng = np.random.default_rng(plan.top.seed)
        self._sight = Sight(spec)

    def act(self, observation: Any, *, epsilon: float = 0.0) -> Any:
        """The environment's action for one observation, or the actions for a batch of them.

        An observation is the environment's (a number, H x W x C, an emulator's screen), or the
        network's input. If the network takes a stack of frames, each call is the next step of one
        or more episodes: call `reset` when they begin. A complete stack is used as it is; pass
        the first one as ``stack[None]``, because it could be frames of as many episodes, which
        are ``frames[:, None]``.
        """
        batch, one = self._sight.see(observation)
        exploration = np.full(len(batch), epsilon, np.float32)
        actions, _ = self.algorithm.act(batch, exploration, self._rng)
        actions = actions + self.spec.first_action if self.spec.first_action else actions
        return int(actions[0]) if one else actions

    def __repr__(self) -> str:
        shape, task = self.spec.observation_shape, self.plan.task
        recipe, actions = self.plan.top.recipe, self.spec.actions
        facts = f"step {self.step:,}, observations {shape}, {actions} actions"
        return f"<Policy of {task} by {recipe}: {facts}>"

    def reset(self, ended: Any = None) -> None:
        """Begins new episodes: all of them, or those in the mask ``ended``."""
        self._sight.reset(ended)


def load(
    run: str | Path,
    *,
    best: bool = False,
    network: MakeTorso | str | None = None,
    algorithm: str = "",
    allow_code: bool = False,
) -> Policy:
    """The policy of a run: from its newest checkpoint, or from the best one.

    ``network`` and ``algorithm`` replace the run's own.
    """
    folder = rundir.existing(Path(run))
    named, torso = name_or_torso(network)
    plan = plan_of(folder, network=named, algorithm=algorithm, allow_code=allow_code)
    loaded = (
        checkpoint.load_best(folder.path)
        if best
        else checkpoint.newest(folder.checkpoints, replay=False)
    )
    if not best:
        for note in _notes(folder, loaded):
            print(note, file=sys.stderr)
    return policy_of(plan, loaded.weights, loaded.state, step=loaded.step, network=torso)


def _notes(folder: rundir.RunDir, newest: checkpoint.Loaded) -> list[str]:
    """Says that the run was killed, and that an older checkpoint scored better."""
    life = liveness.of(folder.path)
    notes = [f"{folder.shown}: {life.sentence()}"] if life.state == liveness.DEAD else []
    run = newest.state.get("run")
    run = run if isinstance(run, dict) else {}
    evaluated, best, step = (run.get(k) for k in ("evaluation", "best_evaluation", "best_step"))
    last = evaluated.get("mean") if isinstance(evaluated, dict) else None
    if not isinstance(best, float) or not isinstance(step, int) or not isinstance(last, float):
        return notes
    if last < best and checkpoint.has_best(folder.path):
        notes.append(
            f"{folder.shown} has a better checkpoint: step {step:,} scored {score_text(best)}, "
            f"the newest evaluation was {score_text(last)}; play it with --best (best=True)"
        )
    return notes


def plan_of(folder: rundir.RunDir, *, network: str, algorithm: str, allow_code: bool) -> Plan:
    """The run's plan. Prints its notes."""
    plan = plans.from_json(
        folder.config, allow_code=allow_code, network=network, algorithm=algorithm
    )
    for note in plan.notes:
        print(note, file=sys.stderr)
    return plan


def policy_of(
    plan: Plan, weights: Mapping[str, Array], state: State, *, step: int, network: MakeTorso | None
) -> Policy:
    device = choose_device(plan.top.device)
    plan = precision.bearable(plan, device)
    try:
        spec = _spec(state["spec"])
        _refuse_larger(plan, spec, weights, network)
        algorithm = make_algorithm(plan, spec, network, device)
        optim.FlatModel(algorithm.modules).load(weights)
        return Policy(plan, algorithm, spec, step)
    except (*restored.UNFIT, MemoryError) as error:
        raise Failure(
            f"the checkpoint does not fit the run's configuration: {error}",
            CHANGED,
        ) from error


def check_size(plan: Plan, folder: rundir.RunDir, network: MakeTorso | None) -> None:
    """Refuses a configuration whose network is larger than that of the newest checkpoint."""
    loaded = checkpoint.newest(folder.checkpoints, replay=False)
    try:
        _refuse_larger(plan, _spec(loaded.state["spec"]), loaded.weights, network)
    except restored.UNFIT as error:
        raise Failure(f"the checkpoint does not fit this run: {error}", CHANGED) from error


def _refuse_larger(
    plan: Plan, spec: EnvSpec, weights: Mapping[str, Array], network: MakeTorso | None
) -> None:
    """Before anything is made: a config.json from another source may ask for terabytes."""
    if users_files.is_path(plan.top.algorithm):
        return
    asked, has = least_parameters(plan, spec, network), sum(w.size for w in weights.values())
    if asked > has:
        raise Failure(
            f"the checkpoint does not fit: the configuration asks for a network of at least "
            f"{asked:,} parameters, the checkpoint has {has:,}",
            CHANGED,
        )


def spec_state(spec: EnvSpec) -> State:
    shapes = {"frame_shape": list(spec.frame_shape), "counts": list(spec.counts)}
    return {**asdict(spec), **shapes}


def _spec(state: State) -> EnvSpec:
    shapes = {name: tuple(state.get(name, ())) for name in ("frame_shape", "counts")}
    spec = EnvSpec(**{**state, **shapes})
    numbers = {"pixels": math.prod(spec.frame_shape), **asdict(spec)}
    for name in ("pixels", "lanes", "stack", "actions", "frames_per_step"):
        restored.count(numbers, name, least=1, most=LARGEST)
    restored.count(numbers, "first_action", least=-LARGEST, most=LARGEST)
    for count in spec.counts:
        restored.count({"count": count}, "count", least=1, most=LARGEST)
    known = ("int32",) if spec.counts else ("uint8", "float32")
    if spec.frame_dtype not in known or not isinstance(spec.id, str):
        raise ValueError("the environment's observations have an unknown type")
    if spec.counts and spec.frame_shape != (len(spec.counts),):
        raise ValueError(f"{len(spec.counts)} counts do not fit frames of {spec.frame_shape}")
    return spec
