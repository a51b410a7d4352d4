"""Makes the parts of a role from a plan: algorithm, memory, strategy, actor and learner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands import memory, optim
from manyhands.config import registry
from manyhands.config.plans import Plan
from manyhands.envs import Config as EnvConfig
from manyhands.envs import simulators
from manyhands.memory.storage.imagined import ImaginedMemory
from manyhands.networks import own, torsos
from manyhands.networks.one_hot import OneHot
from manyhands.networks.own import MakeTorso as MakeTorso
from manyhands.roles.actor import Actor, Record
from manyhands.roles.learner import Learner
from manyhands.roles.process_setup import choose_device
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import (
    Algorithm,
    AnyDemand,
    Array,
    Backend,
    BadRequest,
    Batch,
    Environment,
    EnvSpec,
    Memory,
    Parameters,
    Source,
    Strategy,
    machine,
    users_files,
)
from manyhands.types.sizes import human

MakeEnv = Callable[[], Any]


def name_or_torso(network: MakeTorso | str | None) -> tuple[str, MakeTorso | None]:
    """Splits the argument into the name of a network and the caller's own torso."""
    return (network, None) if isinstance(network, str) else ("", network)


def make_algorithm(plan: Plan, spec: EnvSpec, network: MakeTorso | None, device: str) -> Algorithm:
    """The algorithm of the plan, with the user's own torso if one is given."""
    torso = network
    if torso is None and users_files.is_path(plan.network.torso):
        torso = users_files.load_name(plan.network.torso)
    shape, counts = spec.input_shape, spec.counts
    dtype = torch.uint8 if spec.frame_dtype == "uint8" else torch.float32
    if torso is not None:
        torsos.only_float32(plan.network, "a network of your own")

    def build() -> nn.Module:
        if torso is not None:
            made = own.make(torso, shape, dtype)
        else:
            made = torsos.make(plan.network, shape, scale=plan.env.obs_scale)
        return OneHot(made, counts) if counts else made

    module = registry.load("algorithms", plan.top.algorithm)
    given = dict[str, Any]()
    if plan.algorithm.needs_simulator:
        given["simulator"] = _simulator(plan, spec)
    if plan.algorithm.imagined_capacity:
        kept, at_once = plan.algorithm.imagined_capacity, plan.algorithm.imagined_at_once
        given["imagined"] = ImaginedMemory.alone(spec, kept, at_once)
    made: Algorithm = module.make(plan.algorithm, spec=spec, torso=build, device=device, **given)
    return made


def _simulator(plan: Plan, spec: EnvSpec) -> simulators.Simulator:
    """The true simulator, with rewards as they are learned from."""
    simulate, config = simulators.of(spec.id), plan.env

    def simulated(observation: Array, action: Array) -> simulators.Outcome:
        outcome = simulate(observation, action)
        return outcome._replace(reward=_learned_reward(outcome.reward, config))

    return simulated


def _learned_reward(reward: Array, config: EnvConfig) -> Array:
    """Clipped and scaled."""
    if config.reward_clip:
        reward = np.clip(reward, -config.reward_clip, config.reward_clip)
    return reward * np.float32(config.reward_scale)


def least_parameters(plan: Plan, spec: EnvSpec, network: MakeTorso | None) -> int:
    """A lower bound of the parameters, before they are made. 0: the network is the user's own."""
    if network is not None or users_files.is_path(plan.network.torso):
        return 0
    if not plan.algorithm.uses_torso:
        return spec.states * spec.actions
    weights, features = torsos.size(plan.network, spec.input_shape)
    return weights + features // 2 * spec.actions  # a dueling head has half as many features


def _refuse_too_large(parameters: int, optimizer: optim.Config) -> None:
    """Checks before the network is made: a few numbers in a configuration can ask for terabytes."""
    slots = optim.vectors(optimizer)
    copies = 3 + slots  # parameters, gradient, target network, optimizer
    saved = 2 + slots  # a checkpoint copies all but the gradient
    size, free = 4 * (copies + saved) * parameters, machine.free_bytes()
    if size > free:
        raise BadRequest(
            f"a network of {parameters:,} parameters takes {human(size)} with its optimizer, "
            f"{human(free)} are free",
            "lower --network.hidden or --network.channels",
        )


def seeded_algorithm(
    plan: Plan, spec: EnvSpec, network: MakeTorso | None, seed: np.random.SeedSequence
) -> Algorithm:
    """An algorithm to train."""
    _refuse_too_large(least_parameters(plan, spec, network), plan.optim)
    torch.manual_seed(int(seed.generate_state(1)[0]))
    return make_algorithm(plan, spec, network, choose_device(plan.top.device))


def make_actor(
    plan: Plan,
    env: Environment,
    algorithm: Algorithm,
    record: Record,
    *,
    rng: np.random.Generator,
    stopwatch: Stopwatch,
    rank: tuple[int, int] = (0, 1),
) -> Actor:
    """`rank`: the index of this actor, and how many there are."""
    powers, judged = ladder(plan, *rank)
    config = plan.env
    return Actor(
        env,
        algorithm,
        record,
        rng=rng,
        stopwatch=stopwatch,
        reward_clip=config.reward_clip,
        reward_scale=config.reward_scale,
        ladder=powers,
        judged=judged,
    )


def ladder(plan: Plan, actor: int, actors: int) -> tuple[Array, Array]:
    """The power of epsilon for each environment of this actor, and whether its episodes count.

    Ape-X (Horgan et al. 2018) gives each actor its own epsilon; here each environment has one.
    Only episodes of the actor that explores least count, or of the half that explores less if
    there is one actor.
    """
    lanes = plan.top.envs_per_worker
    spread = plan.algorithm.epsilon_spread
    if not spread:
        return np.ones(lanes), np.ones(lanes, bool)
    environments = lanes * actors
    index = actor * lanes + np.arange(lanes)
    rung = index / (environments - 1) if environments > 1 else np.full(1, 0.5)
    counted = max(1, min(lanes, environments // 2))
    return 1.0 + spread * rung, index >= environments - counted


def make_memory(
    plan: Plan,
    spec: EnvSpec,
    algorithm: Algorithm,
    rng: np.random.Generator,
    *,
    demand: AnyDemand,
    workers: int = 1,
    replay_lanes: Any = None,
) -> Memory:
    """One learner's memory. `replay_lanes`: the shared lanes of its rows, if it has none itself."""
    config = plan.memory
    share = replace(config, capacity=max(1, config.capacity // workers))
    given = {} if replay_lanes is None else {"replay_lanes": replay_lanes}
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
    demand: AnyDemand,
    stopwatch: Stopwatch,
    on_nonfinite: Callable[[Batch], None] = lambda _: None,
) -> Learner:
    return Learner(
        algorithm,
        memory,
        parameters,
        model,
        demand=demand,
        stopwatch=stopwatch,
        clip_norm=0.0 if parameters.clips else plan.optim.clip_norm,
        on_nonfinite=on_nonfinite,
    )


def memory_needed(
    plan: Plan, spec: EnvSpec, algorithm: Algorithm, workers: int = 1
) -> tuple[str, int]:
    """A line about what all memories need, and the bytes. Refuses what does not fit."""
    config, demand = plan.memory, algorithm.demand
    share = replace(config, capacity=max(1, config.capacity // workers))
    rows = memory.capacity_of(share, demand, spec)
    kind = memory.kind_of(share, demand)
    size = workers * memory.bytes_needed(spec, rows, algorithm.remembers, kind)
    if kind == "prioritized" and config.scope == "global":  # each has a tree of all
        readers = plan.top.learners if plan.top.actors else workers
        every_row = workers * spec.lanes * memory.rows_per_lane(spec, rows)
        size += (readers - 1) * memory.sumtree.bytes_needed(every_row)
    return memory.preflight(size, capacity=workers * rows), size


def make_strategy(plan: Plan, backend: Backend, model: optim.FlatModel, learners: int) -> Strategy:
    """The strategy of the plan, with the parameters of this model."""
    module = registry.load("strategies", plan.top.strategy)
    given = {"island_size": plan.top.island_size} if plan.strategy.has_islands else {}
    made: Strategy = module.make(
        plan.strategy,
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=plan.optim,
        learners=learners,
        **given,
    )
    return made
