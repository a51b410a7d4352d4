"""The JAX loop's PPO, A2C and PQN: a rollout of many environments, then epochs of minibatches."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jax_networks import ActorCritic, QValues
from jobs import Clock, Job

Array = Any
GAMMA, EPSILON, CLIP, ENTROPY = 0.99, 0.05, 0.1, 0.01
LAMBDA = {"ppo": 0.95, "a2c": 1.0, "pqn": 0.65}
OPTIMIZERS = {
    "ppo": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(2.5e-4, eps=1e-5)),
    "a2c": optax.chain(optax.clip_by_global_norm(0.5), optax.rmsprop(7e-4, 0.99, 1e-5)),
    "pqn": optax.chain(optax.clip_by_global_norm(10.0), optax.radam(2.5e-4)),
}


def policy_loss(job: Job, network: Any, weights: Any, rows: dict[str, Array]) -> Array:
    logits, value = network.apply(weights, rows["seen"])
    logs = jax.nn.log_softmax(logits)
    log = jnp.take_along_axis(logs, rows["action"][:, None], 1)[:, 0]
    gain = rows["returns"] - rows["value"]
    if job.algorithm == "ppo":
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        ratio = jnp.exp(log - rows["log"])
        acting = jnp.minimum(ratio * gain, jnp.clip(ratio, 1 - CLIP, 1 + CLIP) * gain)
    else:
        acting = log * gain
    entropy = -(jnp.exp(logs) * logs).sum(1)
    return (0.5 * (value - rows["returns"]) ** 2 - acting - ENTROPY * entropy).mean()


def q_loss(job: Job, network: Any, weights: Any, rows: dict[str, Array]) -> Array:  # noqa: ARG001
    all_q = network.apply(weights, rows["seen"])
    chosen = jnp.take_along_axis(all_q, rows["action"][:, None], 1)[:, 0]
    return ((chosen - rows["returns"]) ** 2).mean()


def returns_of(reward: Array, going: Array, value: Array, last: Array, lam: float) -> Array:
    """Lambda-returns, from the last step to the first. All arrays: [steps, lanes]."""
    following = np.concatenate([value[1:], last[None]])
    result, later = np.zeros_like(reward), last
    for t in range(len(reward) - 1, -1, -1):
        mixed = (1 - lam) * following[t] + lam * later
        result[t] = later = reward[t] + GAMMA * going[t] * mixed
    return result


def drive(job: Job, env: Any, clock: Clock) -> None:
    seen, rng = env.reset()[0], np.random.default_rng(0)
    actions, q = int(env.action_space.n), job.algorithm == "pqn"
    network = QValues(job.hidden, actions, True) if q else ActorCritic(job.hidden, actions)
    weights = network.init(jax.random.key(0), seen[:1])
    optimizer, loss = OPTIMIZERS[job.algorithm], q_loss if q else policy_loss
    state = optimizer.init(weights)

    @jax.jit  # type: ignore[untyped-decorator]
    def judge(weights: Any, seen: Array, key: Array) -> tuple[Array, Array, Array]:
        """The action, its log-probability, and the value."""
        if q:
            all_q = network.apply(weights, seen)
            return all_q.argmax(1), jnp.zeros(len(seen)), all_q.max(1)
        logits, value = network.apply(weights, seen)
        action = jax.random.categorical(key, logits)
        logs = jax.nn.log_softmax(logits)
        return action, jnp.take_along_axis(logs, action[:, None], 1)[:, 0], value

    @jax.jit  # type: ignore[untyped-decorator]
    def update(weights: Any, state: Any, rows: dict[str, Array]) -> tuple[Any, Any]:
        gradient = jax.grad(lambda weights: loss(job, network, weights, rows))(weights)
        changes, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, changes), state

    key, steps, rollouts = jax.random.key(1), 0, 0
    while not clock.look(steps, rollouts):
        kept: dict[str, list[Array]] = {
            name: [] for name in ("seen", "action", "log", "value", "reward", "going")
        }
        for _ in range(job.rollout):
            key, now = jax.random.split(key)
            action, log, value = (np.asarray(x) for x in judge(weights, seen, now))
            if q:
                explores = rng.random(job.lanes) < EPSILON
                action = np.where(explores, rng.integers(0, actions, job.lanes), action)
            after, reward, terminated, truncated, _ = env.step(action.astype(np.int32))
            row = (seen, action, log, value, np.sign(reward), ~(terminated | truncated))
            for name, column in zip(kept, row, strict=True):
                kept[name].append(column)
            seen, steps = after, steps + job.lanes
        rows = {name: np.stack(column) for name, column in kept.items()}
        last = np.asarray(judge(weights, seen, key)[2])
        rows["returns"] = returns_of(
            rows.pop("reward").astype(np.float32), rows.pop("going"), rows["value"], last,
            LAMBDA[job.algorithm],
        )  # fmt: skip
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in rows.items()}
        for _ in range(job.epochs):
            order = rng.permutation(job.lanes * job.rollout).reshape(-1, job.batch)
            for part in order:
                some = {name: array[part] for name, array in flat.items()}
                weights, state = update(weights, state, some)
        jax.block_until_ready(weights)
        rollouts += 1
