"""JAX loop in CleanRL's manner: one file, jitted functions, gymnasium or EnvPool environments.

CleanRL is scripts, not a package, so nothing of it can be installed. This is written by us after
its design: `dqn_jax`, `ppo_atari_envpool_xla_jax` and `pqn` (here in JAX).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import envpool
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

import jax_rollouts
from jax_networks import QValues
from jobs import ENVPOOL, GYM, LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run

Array = Any
GAMMA, EPSILON, TARGET_PERIOD = 0.99, 0.01, 1_000


class One:
    """A single gymnasium environment, with EnvPool's interface."""

    def __init__(self, name: str) -> None:
        self._env = gymnasium.make(name)
        self.action_space = self._env.action_space

    def reset(self) -> tuple[Array, dict[str, Any]]:
        return self._env.reset()[0][None], {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        seen, reward, terminated, truncated, _ = self._env.step(int(actions[0]))
        if terminated or truncated:
            seen = self._env.reset()[0]
        row = (np.array([x]) for x in (seen, reward, terminated, truncated))
        return (*row, {})  # type: ignore[return-value]


def make_env(job: Job, threads: int) -> Any:
    """For one environment EnvPool's queue costs more than it gives."""
    if job.lanes == 1:
        return One(GYM[job.task])
    return envpool.make_gymnasium(ENVPOOL[job.task], num_envs=job.lanes, num_threads=threads)


def replay(job: Job, threads: int, clock: Clock) -> None:
    env, rng = make_env(job, threads), np.random.default_rng(0)
    seen = env.reset()[0]
    actions = int(env.action_space.n)
    network, optimizer = QValues(job.hidden, actions), optax.adam(1e-4)
    values = network.init(jax.random.key(0), seen[:1])
    target = jax.tree.map(jnp.copy, values)
    state = optimizer.init(values)
    best = jax.jit(lambda values, seen: network.apply(values, seen).argmax(1))

    @partial(jax.jit, donate_argnums=(0, 2))
    def update(values: Any, target: Any, state: Any, rows: tuple[Array, ...]) -> tuple[Any, Any]:
        before, action, reward, discount, after = rows
        wanted = reward + discount * network.apply(target, after).max(1)

        def loss(values: Any) -> Array:
            all_q = network.apply(values, before)
            return ((jnp.take_along_axis(all_q, action[:, None], 1)[:, 0] - wanted) ** 2).mean()

        changes, state = optimizer.update(jax.grad(loss)(values), state)
        return optax.apply_updates(values, changes), state

    rows = Rows(seen)
    steps = updates = 0
    while not clock.look(steps, updates):
        action = np.asarray(best(values, seen)).astype(np.int32)
        explores = rng.random(job.lanes) < EPSILON
        action[explores] = rng.integers(0, actions, explores.sum())
        after, reward, terminated, _, _ = env.step(action)
        rows.add(seen, action, reward, GAMMA * ~terminated, after)
        seen, steps = after, steps + job.lanes
        if steps < LEARNING_STARTS:
            continue
        for _ in range(max(1, job.lanes // job.steps_per_update)):
            values, state = update(values, target, state, rows.draw(rng, job.batch))
            updates += 1
            if updates % TARGET_PERIOD == 0:
                target = jax.tree.map(jnp.copy, values)


class Rows:
    """A replay memory: a ring of NumPy arrays."""

    def __init__(self, seen: Array) -> None:
        shape = (REPLAY_ROWS, *seen.shape[1:])
        kinds = (np.int32, np.float32, np.float32)
        plain = [np.zeros(REPLAY_ROWS, kind) for kind in kinds]
        self._arrays = [np.zeros(shape, seen.dtype), *plain, np.zeros(shape, seen.dtype)]
        self._at = self._filled = 0

    def add(self, *columns: Array) -> None:
        where = (self._at + np.arange(len(columns[1]))) % REPLAY_ROWS
        for array, column in zip(self._arrays, columns, strict=True):
            array[where] = column
        self._at = int(where[-1] + 1) % REPLAY_ROWS
        self._filled = min(REPLAY_ROWS, self._filled + len(where))

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[Array, ...]:
        where = rng.integers(0, self._filled, batch)
        return tuple(array[where] for array in self._arrays)


def drive(job: Job, threads: int, clock: Clock) -> None:
    if job.rollout:
        jax_rollouts.drive(job, make_env(job, threads), clock)
    else:
        replay(job, threads, clock)


if __name__ == "__main__":
    run(drive)
