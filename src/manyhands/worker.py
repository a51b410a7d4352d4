"""A worker: an actor and a learner in one loop. Here algorithm, memory and strategy meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import envs, memory, optim, registry
from manyhands.actor import Actor
from manyhands.config import Plan, section_name
from manyhands.learner import Learner
from manyhands.metrics import Laps
from manyhands.networks import torsos
from manyhands.types import (
    Algorithm,
    AnyDemand,
    Backend,
    BadRequest,
    Batch,
    Demand,
    EnvSpec,
    Memory,
    Parameters,
    Seat,
    State,
    Strategy,
)

MakeEnv = Callable[[], Any]
MakeTorso = Callable[[tuple[int, ...]], nn.Module]


def set_threads(threads: int) -> None:
    """Before the first torch operation of the process."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


def choose_device(name: str) -> str:
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": _mps_is_there()}
    if not there[name]:
        raise BadRequest(f"--device {name} is not on this machine", "use --device auto")
    return name


def _mps_is_there() -> bool:
    return bool(torch.backends.mps.is_available())


def make_algorithm(plan: Plan, spec: EnvSpec, network: MakeTorso | None, device: str) -> Algorithm:
    """The algorithm of the plan, with the user's own torso if there is one."""
    torso = network
    if torso is None and registry.is_path(plan["network"].torso):
        torso = registry.load_name(plan["network"].torso)
    shape = spec.observation_shape

    def build() -> nn.Module:
        if torso is not None:
            return torso(shape)
        return torsos.make(plan["network"], shape, scale=plan["env"].obs_scale)

    module = registry.load("algorithms", plan.top.algorithm)
    made: Algorithm = module.make(plan.algorithm, spec=spec, torso=build, device=device)
    return made


def seeded_algorithm(
    plan: Plan, spec: EnvSpec, network: MakeTorso | None, seed: np.random.SeedSequence
) -> Algorithm:
    torch.manual_seed(int(seed.generate_state(1)[0]))
    return make_algorithm(plan, spec, network, choose_device(plan.top.device))


class Worker:
    """An actor and a learner, built from a plan where they run; `turn` is one round of both."""

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int,
        join: Callable[[optim.FlatModel], Parameters],
        seeds: np.random.SeedSequence,
        hands: int = 1,
        make_env: MakeEnv | None = None,
        network: MakeTorso | None = None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`hands`: workers among whom rows kept and steps of warm-up are dealt."""
        init, env, act, draw = seeds.spawn(4)
        lanes, config = plan.top.envs_per_worker, plan["env"]
        self.env = envs.make(config, lanes=lanes, seed=env, threads=threads, factory=make_env)
        self.algorithm = seeded_algorithm(plan, self.env.spec, network, init)
        self.memory = self._make_memory(plan, hands, np.random.default_rng(draw))
        self.model = optim.FlatModel(self.algorithm.modules)
        self.laps = Laps()
        self.actor = Actor(
            self.env,
            self.algorithm,
            self.memory,
            rng=np.random.default_rng(act),
            laps=self.laps,
            reward_clip=config.reward_clip,
            reward_scale=config.reward_scale,
        )
        parameters = join(self.model)
        clips = getattr(parameters, "clips", False)  # it does so itself, after averaging
        self.learner = Learner(
            self.algorithm,
            self.memory,
            parameters,
            self.model,
            laps=self.laps,
            clip_norm=0.0 if clips else plan["optim"].clip_norm,
            on_nonfinite=on_nonfinite,
        )

    def _make_memory(self, plan: Plan, hands: int, rng: np.random.Generator) -> Memory:
        config, spec, columns = plan["memory"], self.env.spec, self.algorithm.remembers
        self.algorithm.demand = demand = dealt(self.algorithm.demand, hands)
        share = replace(config, capacity=max(1, config.capacity // hands))
        kind, self.memory_rows = (
            memory.kind_of(share, demand),
            memory.capacity_of(share, demand, spec),
        )
        self.memory_bytes = hands * memory.bytes_needed(spec, self.memory_rows, columns, kind)
        self.preflight = memory.preflight(self.memory_bytes, capacity=hands * self.memory_rows)
        made: Memory = registry.load("memory", kind).make(
            spec, share, demand=demand, columns=columns, rng=rng
        )
        return made

    def turn(self) -> None:
        self.laps.lap("idle")
        self.actor.step()
        self.learner.step(self.actor.total_steps)

    def run(self, seat: Seat) -> Iterator[None]:  # noqa: ARG002
        self.laps.begin()
        while True:
            self.turn()
            yield

    def state(self, *, fresh_episodes: bool = False) -> State:
        actor = self.actor.state(fresh_episodes=fresh_episodes)
        return {"actor": actor, "learner": self.learner.state()}

    def restore(self, state: State, replay: State | None) -> None:
        self.learner.restore(state["learner"])
        self.actor.restore(state["actor"])
        self.memory.restore({**state["memory"], "lanes": replay})


def dealt(demand: AnyDemand, hands: int) -> AnyDemand:
    """One worker's share of what is asked: the warm-up is a total."""
    if isinstance(demand, Demand):
        return replace(demand, warmup_steps=demand.warmup_steps // hands)
    return demand


def found(plan: Plan, backend: Backend, model: optim.FlatModel, learners: int) -> Strategy:
    """The strategy of the plan, around these parameters."""
    module, name = registry.load("strategies", plan.top.strategy), section_name(plan.top.strategy)
    made: Strategy = module.make(
        plan[name],
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=plan["optim"],
        learners=learners,
    )
    return made
