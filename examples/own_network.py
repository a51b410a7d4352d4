"""Train with a network of your own: a torso turns observations into features.

python examples/own_network.py [STEPS]
"""

import sys

import torch
from torch import Tensor, nn

import manyhands as mh


class Waves(nn.Module):
    """Returns [batch, features]. The algorithm adds its own head."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], 64)

    def forward(self, observation: Tensor) -> Tensor:
        return torch.sin(self.layer(observation))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
run = mh.train("cartpole", network=Waves, steps=steps)
policy = mh.load(run.path, network=Waves)  # a run's folder holds weights, not code
print("greedy score:", run.evaluate(episodes=10).mean)
print("action on zeros:", policy.act(torch.zeros(4).numpy()))
