"""A batch of random transitions for algorithms that learn action values."""

from __future__ import annotations

import numpy as np
import torch

from manyhands.types import Batch, EnvSpec

SPEC = EnvSpec("test", lanes=1, frame_shape=(3,), frame_dtype="float32", stack=1, actions=4)


def a_batch(n: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    return Batch(
        observation=torch.randn(n, 3, generator=generator),
        action=torch.randint(0, 4, (n,), generator=generator),
        reward=torch.randn(n, generator=generator) * 3,
        discount=torch.tensor([0.99, 0.0, 0.9, 0.99, 0.0, 0.5]),
        next_observation=torch.randn(n, 3, generator=generator),
        weight=torch.ones(n),
        rows=np.arange(n),
    )
