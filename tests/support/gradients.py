"""The gradient of losses: as the learner takes it, and by autograd through the whole loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from manyhands.networks.forward import Gradients
from manyhands.types import Losses


def backward(losses: Losses) -> None:
    """The backward pass of the mean loss, as the learner makes it."""
    assert losses.backward is not None
    samples = len(losses.per_sample)
    losses.backward(torch.full((samples,), 1 / samples))


class WithGraph(Gradients):
    """Outputs keep their graph, so autograd can differentiate every loss made of them."""

    def __call__(self, network: nn.Module, observation: Tensor) -> tuple[Tensor, ...]:
        output = network(observation)
        return output if isinstance(output, tuple) else (output,)
