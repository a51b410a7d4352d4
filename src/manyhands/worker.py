"""A worker: an actor and a learner in one loop. Here algorithm, memory and strategy meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import envs, memory, optim, registry
from manyhands.actor import Actor
from manyhands.config import Plan
from manyhands.learner import Learner
from manyhands.metrics import Laps
from manyhands.networks import torsos
from manyhands.types import Algorithm, BadRequest, Batch, EnvSpec, Seat, State

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


class Worker:
    """Built from a plan; `run` is what a backend runs."""

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int,
        make_env: MakeEnv | None = None,
        network: MakeTorso | None = None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        init, env, act, draw = np.random.SeedSequence(plan.top.seed).spawn(4)
        torch.manual_seed(int(init.generate_state(1)[0]))
        lanes, config = plan.top.envs_per_worker, plan["env"]
        self.env = envs.make(config, lanes=lanes, seed=env, threads=threads, factory=make_env)
        device = choose_device(plan.top.device)
        self.algorithm = make_algorithm(plan, self.env.spec, network, device)
        demand, spec = self.algorithm.demand, self.env.spec
        kind, rows = memory.kind_of(plan["memory"], demand), plan["memory"]
        self.memory_rows = memory.capacity_of(rows, demand, spec)
        self.memory_bytes = memory.bytes_needed(spec, self.memory_rows, self.algorithm.remembers)
        self.preflight = memory.preflight(self.memory_bytes, capacity=self.memory_rows)
        self.memory = registry.load("memory", kind).make(
            spec,
            plan["memory"],
            demand=demand,
            columns=self.algorithm.remembers,
            rng=np.random.default_rng(draw),
        )
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
        self.learner = Learner(
            self.algorithm,
            self.memory,
            registry.load("strategies", plan.top.strategy).make(
                self.model, lambda part: optim.PartOptimizer(plan["optim"], part)
            ),
            self.model,
            laps=self.laps,
            clip_norm=plan["optim"].clip_norm,
            on_nonfinite=on_nonfinite,
        )

    def run(self, seat: Seat) -> Iterator[None]:  # noqa: ARG002  (there is one seat so far)
        self.laps.begin()
        while True:
            self.actor.step()
            self.learner.step(self.actor.agent_steps)
            yield

    def state(self, *, fresh_episodes: bool = False) -> State:
        actor = self.actor.state(fresh_episodes=fresh_episodes)
        return {"actor": actor, "learner": self.learner.state()}

    def restore(self, weights: dict[str, Any], state: State, replay: State | None) -> None:
        self.model.load(weights)
        self.learner.restore(state["learner"])
        self.actor.restore(state["actor"])
        self.memory.restore({**state["memory"], "lanes": replay})
