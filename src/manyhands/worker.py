"""A worker: an actor and a learner in one loop. Here algorithm, memory and strategy meet."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import envs, memory, optim, registry
from manyhands.actor import Actor, Record
from manyhands.config import Plan
from manyhands.learner import Learner
from manyhands.metrics import Laps
from manyhands.networks import torsos
from manyhands.types import (
    Algorithm,
    AnyDemand,
    Array,
    Backend,
    BadRequest,
    Batch,
    Demand,
    Environment,
    EnvSpec,
    Memory,
    Parameters,
    Seat,
    Source,
    State,
    Strategy,
)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
LARGEST_THRESHOLD = 32 * 2**20  # that glibc takes

MakeEnv = Callable[[], Any]
MakeTorso = Callable[[tuple[int, ...]], nn.Module]


def set_threads(threads: int) -> None:
    """Before the first torch operation of the process."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_freed_memory()
    keep_to_one_thread_of_numpy()


def keep_freed_memory() -> None:
    """Every update frees and takes tens of megabytes. glibc would give them back to the kernel each
    time, which then has to clear every page of them again.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # others than glibc have none
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def keep_to_one_thread_of_numpy() -> None:
    """Its products here are small, and its threads would spin on cores that torch's need.

    Where its arithmetic is not OpenBLAS's, or cannot be told, it stays as it is.
    """
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    for path in folder.glob("libscipy_openblas64_*"):
        with suppress(OSError, AttributeError):
            ctypes.CDLL(str(path)).scipy_openblas_set_num_threads64_(1)


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
    if torso is not None:
        torsos.only_float32(plan["network"], "a network of your own")

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


def make_actor(
    plan: Plan,
    env: Environment,
    algorithm: Algorithm,
    record: Record,
    *,
    rng: np.random.Generator,
    laps: Laps,
    seat: tuple[int, int] = (0, 1),
) -> Actor:
    """`seat`: which of how many that act."""
    powers, judged = ladder(plan, *seat)
    config = plan["env"]
    return Actor(
        env,
        algorithm,
        record,
        rng=rng,
        laps=laps,
        reward_clip=config.reward_clip,
        reward_scale=config.reward_scale,
        ladder=powers,
        judged=judged,
    )


def ladder(plan: Plan, member: int, members: int) -> tuple[Array, Array]:
    """How differently the environments of all explore: Ape-X's powers, and who is judged.

    In the paper an actor has one environment; here every environment has its own rung. Judged are
    those of the actor that explores least, or the less exploring half if there is but one.
    """
    lanes = plan.top.envs_per_worker
    spread = getattr(plan.algorithm, "epsilon_spread", 0.0)
    if not spread:
        return np.ones(lanes), np.ones(lanes, bool)
    everyone = lanes * members
    place = member * lanes + np.arange(lanes)
    rung = place / (everyone - 1) if everyone > 1 else np.full(1, 0.5)
    return 1.0 + spread * rung, place >= everyone - max(1, min(lanes, everyone // 2))


def make_memory(
    plan: Plan,
    spec: EnvSpec,
    algorithm: Algorithm,
    rng: np.random.Generator,
    *,
    hands: int = 1,
    places: Any = None,
) -> Memory:
    """One learner's memory; `places`: where its rows are if not in a memory of its own."""
    config, demand = plan["memory"], algorithm.demand
    share = replace(config, capacity=max(1, config.capacity // hands))
    given = {} if places is None else {"places": places}
    made: Memory = registry.load("memory", memory.kind_of(share, demand)).make(
        spec, share, demand=demand, columns=algorithm.remembers, rng=rng, **given
    )
    return made


def make_learner(
    plan: Plan,
    algorithm: Algorithm,
    memory: Source,
    parameters: Parameters,
    model: optim.FlatModel,
    *,
    laps: Laps,
    on_nonfinite: Callable[[Batch], None] = lambda _: None,
) -> Learner:
    clips = getattr(parameters, "clips", False)  # it does so itself, after averaging
    return Learner(
        algorithm,
        memory,
        parameters,
        model,
        laps=laps,
        clip_norm=0.0 if clips else plan["optim"].clip_norm,
        on_nonfinite=on_nonfinite,
    )


class Worker:
    """An actor and a learner, built from a plan where they run; `turn` is one round of both."""

    def __init__(
        self,
        plan: Plan,
        *,
        threads: int,
        join: Callable[[optim.FlatModel], Parameters],
        seeds: np.random.SeedSequence,
        seat: tuple[int, int] = (0, 1),
        places: Any = None,
        make_env: MakeEnv | None = None,
        network: MakeTorso | None = None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`seat`: which of how many workers, among whom the steps of the warm-up are dealt."""
        init, env, act, draw = seeds.spawn(4)
        lanes, config, hands = plan.top.envs_per_worker, plan["env"], seat[1]
        self.env = envs.make(config, lanes=lanes, seed=env, threads=threads, factory=make_env)
        self.algorithm = seeded_algorithm(plan, self.env.spec, network, init)
        self.algorithm.demand = dealt(self.algorithm.demand, hands)
        # Of a team main has asked already, before it made what all share.
        alone = hands == 1 and places is None
        room = needed(plan, self.env.spec, self.algorithm) if alone else ("", 0)
        self.preflight, self.memory_bytes = room
        self.memory = make_memory(
            plan,
            self.env.spec,
            self.algorithm,
            np.random.default_rng(draw),
            hands=hands,
            places=places,
        )
        self.model = optim.FlatModel(self.algorithm.modules)
        self.laps = Laps()
        self.actor = make_actor(
            plan,
            self.env,
            self.algorithm,
            self.memory,
            rng=np.random.default_rng(act),
            laps=self.laps,
            seat=seat,
        )
        self.learner = make_learner(
            plan,
            self.algorithm,
            self.memory,
            join(self.model),
            self.model,
            laps=self.laps,
            on_nonfinite=on_nonfinite,
        )

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


def needed(plan: Plan, spec: EnvSpec, algorithm: Algorithm, hands: int = 1) -> tuple[str, int]:
    """What the memories of all take: a line about it, and the bytes. Refuses what cannot fit."""
    config, demand = plan["memory"], algorithm.demand
    share = replace(config, capacity=max(1, config.capacity // hands))
    rows = memory.capacity_of(share, demand, spec)
    kind = memory.kind_of(share, demand)
    size = hands * memory.bytes_needed(spec, rows, algorithm.remembers, kind)
    if kind == "prioritized" and config.scope == "global":  # every learner's own of all rows
        readers = plan.top.learners if plan.top.actors else hands
        every_row = hands * spec.lanes * memory.rows_per_lane(spec, rows)
        size += (readers - 1) * memory.sumtree.bytes_needed(every_row)
    return memory.preflight(size, capacity=hands * rows), size


def found(plan: Plan, backend: Backend, model: optim.FlatModel, learners: int) -> Strategy:
    """The strategy of the plan, around these parameters."""
    module = registry.load("strategies", plan.top.strategy)
    made: Strategy = module.make(
        plan[registry.section_name(plan.top.strategy)],
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=plan["optim"],
        learners=learners,
    )
    return made
