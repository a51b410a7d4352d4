"""The networks of the JAX loop, in flax."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

Array = Any


class Torso(nn.Module):  # type: ignore[misc]
    """Dense layers, or Nature's convolutions and 512. `norm`: layer norm after each, as PQN."""

    hidden: tuple[int, ...]
    norm: bool = False

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, seen: Array) -> Array:
        x = seen
        if not self.hidden:
            x = jnp.transpose(seen, (0, 2, 3, 1)).astype(jnp.float32) / 255.0
            for width, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                x = nn.Conv(width, (size, size), (stride, stride), padding="VALID")(x)
                x = self._active(x)
            x = x.reshape(x.shape[0], -1)
        for width in self.hidden or (512,):
            x = self._active(nn.Dense(width)(x))
        return x

    def _active(self, x: Array) -> Array:
        return nn.relu(nn.LayerNorm()(x) if self.norm else x)


class QValues(nn.Module):  # type: ignore[misc]
    hidden: tuple[int, ...]
    actions: int
    norm: bool = False

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, seen: Array) -> Array:
        return nn.Dense(self.actions)(Torso(self.hidden, self.norm)(seen))


class ActorCritic(nn.Module):  # type: ignore[misc]
    """Dense networks are separate for policy and value; convolutions are shared."""

    hidden: tuple[int, ...]
    actions: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, seen: Array) -> tuple[Array, Array]:
        acting = Torso(self.hidden)(seen)
        judging = Torso(self.hidden)(seen) if self.hidden else acting
        return nn.Dense(self.actions)(acting), nn.Dense(1)(judging)[:, 0]
