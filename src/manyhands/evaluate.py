"""Playing without learning: evaluation, and a trained policy for one's own program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from manyhands import checkpoint, config, envs, optim, precision, rundir
from manyhands.config import Plan
from manyhands.types import Algorithm, Array, Environment, EnvSpec, Failure, State
from manyhands.worker import MakeEnv, MakeTorso, choose_device, make_algorithm

LANES = 16  # environments stepped at once while evaluating
OWN_STREAM = 0x0E7A  # evaluation seeds never meet training seeds


class Interrupted(Exception):
    """Somebody wants it to end before it is complete."""


class Evaluation(NamedTuple):
    scores: list[float]

    @property
    def mean(self) -> float:
        return float(np.mean(self.scores))

    @property
    def std(self) -> float:
        return float(np.std(self.scores))

    def as_json(self) -> dict[str, float]:
        return {"episodes": len(self.scores), "mean": self.mean, "std": self.std}


def evaluate(
    plan: Plan,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    seed: int,
    threads: int = 1,
    make_env: MakeEnv | None = None,
    attend: Callable[[], bool] = lambda: True,
) -> Evaluation:
    """Raw scores of that many episodes, on environments and seeds of their own.

    `attend` is called between steps, for what cannot wait; False interrupts.
    """
    lanes = min(episodes, LANES)
    played, drawn = np.random.SeedSequence((OWN_STREAM, seed)).spawn(2)
    env = envs.make(
        plan["env"], lanes=lanes, seed=played, threads=threads, training=False, factory=make_env
    )
    try:
        rng = np.random.default_rng(drawn)
        scores = _play(env, algorithm, episodes=episodes, epsilon=epsilon, rng=rng, attend=attend)
        return Evaluation(scores)
    finally:
        env.close()


def _play(
    env: Environment,
    algorithm: Algorithm,
    *,
    episodes: int,
    epsilon: float,
    rng: np.random.Generator,
    attend: Callable[[], bool],
) -> list[float]:
    """Every lane plays its share to the end, so that short episodes are not preferred."""
    lanes = env.spec.lanes
    share = np.full(lanes, episodes // lanes)
    share[: episodes % lanes] += 1
    running, scores = np.zeros(lanes), list[float]()
    exploration = np.full(lanes, epsilon, np.float32)
    observation = env.reset()
    while share.any():
        actions, _ = algorithm.act(observation, exploration, rng)
        step = env.step(actions)
        running += step.reward
        counted = step.ended & (share > 0)
        scores += running[counted].tolist()
        share[counted] -= 1
        running[step.ended] = 0
        for broken in step.broken:
            running[list(broken.lanes)] = 0
        observation = step.observation
        if not attend():
            raise Interrupted
    return scores


class Policy:
    """A trained agent: `act` on observations as the run's environment gives them."""

    def __init__(self, plan: Plan, algorithm: Algorithm, spec: EnvSpec, step: int) -> None:
        self.plan, self.algorithm, self.spec, self.step = plan, algorithm, spec, step
        self._rng = np.random.default_rng(plan.top.seed)

    def act(self, observation: Any, *, epsilon: float = 0.0) -> Any:
        """The action for one observation, or the actions for a batch of them."""
        dtype, shape = np.dtype(self.spec.frame_dtype), self.spec.observation_shape
        given = np.asarray(observation, dtype)
        one = given.shape == shape
        batch = given[None] if one else given
        if batch.shape[1:] != shape:
            raise ValueError(f"observations have shape {shape}, this has {given.shape}")
        exploration = np.full(len(batch), epsilon, np.float32)
        actions, _ = self.algorithm.act(np.ascontiguousarray(batch), exploration, self._rng)
        return int(actions[0]) if one else actions


def load(
    run: str | Path,
    *,
    best: bool = False,
    network: MakeTorso | None = None,
    allow_code: bool = False,
) -> Policy:
    """The policy of a run: of its newest checkpoint, or the best one."""
    folder = rundir.existing(Path(run))
    plan = config.from_json(folder.config, allow_code=allow_code)
    found = (
        checkpoint.load_best(folder.path)
        if best
        else checkpoint.newest(folder.checkpoints, replay=False)
    )
    return policy_of(plan, found.weights, found.state, step=found.step, network=network)


def policy_of(
    plan: Plan, weights: Mapping[str, Array], state: State, *, step: int, network: MakeTorso | None
) -> Policy:
    device = choose_device(plan.top.device)
    plan = precision.bearable(plan, device)
    try:
        spec = EnvSpec(**_tuples(state["spec"]))
        algorithm = make_algorithm(plan, spec, network, device)
        optim.FlatModel(algorithm.modules).load(weights)
    except (KeyError, TypeError, ValueError, RuntimeError, MemoryError) as error:
        raise Failure(
            f"the checkpoint does not fit the run's configuration: {error}",
            "was config.json changed? A network of your own is to be given again: network=…",
        ) from error
    return Policy(plan, algorithm, spec, step)


def spec_state(spec: EnvSpec) -> State:
    return {**asdict(spec), "frame_shape": list(spec.frame_shape)}


def _tuples(spec: State) -> dict[str, Any]:
    return {**spec, "frame_shape": tuple(int(n) for n in spec["frame_shape"])}
