"""Train with an algorithm of your own: this file is one. Expected SARSA, on DQN's parts.

python examples/own_algorithm.py [STEPS]
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

import manyhands as mh
from manyhands.algorithms import dqn
from manyhands.types import Batch, Losses, option


@dataclass(frozen=True)
class Config(dqn.Config):
    slips: float = option(0.1, "how often the evaluated policy moves at random", low=0, high=1)


class ExpectedSarsa(dqn.DQN):
    config: Config

    def losses(self, batch: Batch) -> Iterator[Losses]:
        """One loss per sample. The learner weights and averages them and takes the step."""
        then = batch.columns["next_values"]  # computed by `targets`, with the target network
        future = torch.lerp(then.amax(1), then.mean(1), self.config.slips)
        yield self.toward(batch, batch.reward + batch.discount * future)


make = ExpectedSarsa

if __name__ == "__main__":  # workers import this file as an algorithm
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
    values = {"lr": 1e-3, "steps_per_update": 4, "warmup_steps": 1_000, "slips": 0.05}
    run = mh.train("cartpole", algorithm=__file__, own_algorithm=values, steps=steps)
    print("greedy score:", run.evaluate(episodes=10).mean)
