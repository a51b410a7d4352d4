"""A world model: an ensemble of dense networks that predicts what follows an action.

Each member predicts five things: the change of the observation, the reward if the episode
continues, the reward if it ends, the logit of its end, and how wrong it will be. The members see
the same batches and differ by their first weights.

What is imagined is an expectation: over ending and continuing, and over the members. The model is
trusted where its members agree and expect small errors. Disagreement alone is not enough: all
members agree on the mean of what chance decides, such as a contact with the ground.

Numbers that are always whole, such as the contact of a leg, are imagined whole: Q has never seen
others, and its values for them are wild.

The running means and scales are buffers: checkpoints hold them, and learners share them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from manyhands.networks.closed import Passes, chain
from manyhands.networks.forward import Forward, Gradients
from manyhands.networks.heads import OneOutput
from manyhands.networks.layers import dense_layers

LARGEST_INPUT = 6.0  # standard deviations; a network cannot extrapolate further
HUBER_FROM = 3.0  # standard deviations; contacts and crashes are outliers
SLOWEST_RATE = 1e-3  # of the running means; the first ones count more
ALWAYS_TRUSTED = 0.05  # standard deviations; a model that agrees so well needs no gate
JUDGING_RATE = 0.04  # of the held-out error and the gate, per judged batch
JUDGED = 4  # one batch in so many is judged: it takes as long as a third of a fit
LEAST_SCALE = 1e-4  # a constant has no scale of its own
END_REWARD, END, DOUBT = -3, -2, -1  # the last outputs
Backward = Callable[[Tensor], None]  # of the weight of every step


class Imagined(NamedTuple):
    """What the model expects after b actions."""

    observation: Tensor  # [b, d]
    reward: Tensor  # [b]
    continues: Tensor  # [b] float32; the probability that the episode does not end
    trusted: Tensor  # [b] bool; errors as small as on most real steps


class Transitions(NamedTuple):
    """b real steps to learn from."""

    observation: Tensor  # [b, d]
    action: Tensor  # [b]
    reward: Tensor  # [b]
    ended: Tensor  # [b] bool
    next_observation: Tensor  # [b, d]


class Member(nn.Module):
    """One network of the ensemble."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        *inner, outputs = sizes
        self.hidden, self.last = dense_layers(inner, norm=False), nn.Linear(inner[-1], outputs)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                most = 1 / math.sqrt(layer.in_features)
                nn.init.uniform_(layer.weight, -most, most)
                nn.init.zeros_(layer.bias)

    def forward(self, seen: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.hidden(seen))
        return outputs

    def closed(self) -> Passes:
        return OneOutput(chain(self.hidden, self.last))


class World(nn.Module):
    def __init__(
        self, size: int, actions: int, *, hidden: tuple[int, ...], members: int, gate: float
    ) -> None:
        """`gate`: the share of held-out real steps whose doubt is small enough to trust."""
        super().__init__()
        self.size, self.actions, self.gate = size, actions, gate
        sizes = (size + actions, *hidden, size + 4)
        self.members = nn.ModuleList(Member(sizes) for _ in range(members))
        self._forwards = [Forward(torch.device("cpu")) for _ in range(members)]
        self._gradients = [Gradients() for _ in range(members)]
        for name, outputs in (("seen", size), ("follows", size + 1), ("end", 1)):
            self.register_buffer(f"{name}_count", torch.zeros(1))
            self.register_buffer(f"{name}_mean", torch.zeros(outputs))
            self.register_buffer(f"{name}_square", torch.ones(outputs))
        self.register_buffer("whole", torch.ones(size))  # 1: all numbers seen were whole
        self.register_buffer("error", torch.ones(1))  # held out, of trusted steps; 1: no model
        self.register_buffer("limit", torch.zeros(1))  # the largest doubt that is trusted

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        """[members, b, d + 4]: changes, rewards and doubt in standard deviations, and the logit."""
        seen = self._seen(observation, action)
        pairs = zip(self._forwards, self.members, strict=True)
        return torch.stack([forward.tensors(member, seen)[0] for forward, member in pairs])

    def _seen(self, observation: Tensor, action: Tensor) -> Tensor:
        known = self._normal("seen", observation).clamp_(-LARGEST_INPUT, LARGEST_INPUT)
        return torch.cat([known, F.one_hot(action, self.actions).to(known.dtype)], 1)

    @torch.no_grad()
    def imagine(self, observation: Tensor, action: Tensor) -> Imagined:
        out = self(observation, action)
        expected = out.mean(0)
        follows = expected[:, :END_REWARD] * self._scale("follows") + self.get_buffer(
            "follows_mean"
        )
        last = expected[:, END_REWARD] * self._scale("end") + self.get_buffer("end_mean")
        continues = (-out[..., END]).sigmoid().mean(0)
        after = observation + follows[:, :-1]
        return Imagined(
            torch.where(self.get_buffer("whole") > 0, after.round(), after),
            continues * follows[:, -1] + (1 - continues) * last,
            continues,
            self.doubt(out) <= self.get_buffer("limit"),
        )

    def doubt(self, out: Tensor) -> Tensor:
        """[b]: the largest disagreement of the members, and the error that they expect."""
        disagreement = out[..., :END_REWARD].std(0).amax(-1)
        return disagreement + out[..., DOUBT].mean(0)

    @torch.no_grad()
    def losses(self, steps: Transitions, held_out: Tensor) -> tuple[Tensor, Backward]:
        """One loss a step, the sum over the members; 0 for steps that are held out.

        What follows an end is not learned: it is often outside of what else happens. The second
        result takes the weight of every step and writes the gradients of the parameters.
        """
        follows = torch.cat([steps.next_observation - steps.observation, steps.reward[:, None]], 1)
        self._note("seen", steps.observation)
        self.get_buffer("whole").mul_((steps.observation == steps.observation.round()).all(0))
        self._note("follows", follows[~steps.ended])
        self._note("end", steps.reward[steps.ended, None])
        goal = self._normal("follows", follows)
        seen = self._seen(steps.observation, steps.action)
        pairs = zip(self._gradients, self.members, strict=True)
        out = torch.stack([gradients(member, seen)[0] for gradients, member in pairs])
        if int(self.get_buffer("seen_count")) // len(goal) % JUDGED == 1:
            self._judge(out, goal, held_out & ~steps.ended)
        away, counts = self._errors(out, goal, steps, held_out)
        bent = away.clamp(-HUBER_FROM, HUBER_FROM)  # the slopes of the Huber loss
        huber = bent * (away - 0.5 * bent)
        logit, ended = out[..., END], steps.ended.to(goal.dtype)
        huber[..., END] = F.binary_cross_entropy_with_logits(
            logit, ended.expand_as(logit), reduction="none"
        )
        bent[..., END] = logit.sigmoid() - ended

        def backward(weight: Tensor) -> None:
            slopes = bent * (counts * weight[:, None])
            for gradients, slope in zip(self._gradients, slopes, strict=True):
                gradients.backward(slope)

        return (huber * counts).sum((0, 2)), backward

    def _errors(
        self, out: Tensor, goal: Tensor, steps: Transitions, held_out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[members, b, d + 4] the errors of all outputs but the logit; [b, d + 4] their weights."""
        away, size = torch.empty_like(out), self.size
        torch.sub(out[..., :END_REWARD], goal, out=away[..., :END_REWARD])
        away[..., END_REWARD] = (
            out[..., END_REWARD] - self._normal("end", steps.reward[:, None])[:, 0]
        )
        largest = away[..., :END_REWARD].abs().amax(-1)
        away[..., DOUBT] = out[..., DOUBT] - largest
        ended = steps.ended.to(out.dtype)
        counts = (1 - ended)[:, None].expand(-1, size + 4).clone()
        counts[:, :size] /= size
        counts[:, END_REWARD], counts[:, END] = ended, 1.0
        return away, counts * ~held_out[:, None]

    @property
    def replaces(self) -> bool:
        """Whether the last `backward` replaces the gradients of the parameters; else it adds."""
        return all(gradients.replaces for gradients in self._gradients)

    def _note(self, name: str, values: Tensor) -> None:
        """Follows the means and scales of observations, of what follows, and of last rewards."""
        count = self.get_buffer(f"{name}_count")
        if len(values):
            rate = max(len(values) / (float(count) + len(values)), SLOWEST_RATE)
            self.get_buffer(f"{name}_mean").lerp_(values.mean(0), rate)
            self.get_buffer(f"{name}_square").lerp_(values.square().mean(0), rate)
            count += len(values)

    def _scale(self, name: str) -> Tensor:
        mean, square = self.get_buffer(f"{name}_mean"), self.get_buffer(f"{name}_square")
        return (square - mean.square()).clamp(min=LEAST_SCALE**2).sqrt()

    def _normal(self, name: str, values: Tensor) -> Tensor:
        return (values - self.get_buffer(f"{name}_mean")) / self._scale(name)

    def _judge(self, out: Tensor, goal: Tensor, held_out: Tensor) -> None:
        """Follows the doubt about held-out steps, and the error of those that are trusted."""
        if not held_out.any():
            return
        out, goal = out[:, held_out], goal[held_out]
        doubt, limit = self.doubt(out), self.get_buffer("limit")
        usual = doubt.quantile(self.gate).clamp(min=ALWAYS_TRUSTED)
        limit.copy_(limit.lerp(usual, JUDGING_RATE) if limit > 0 else usual)
        error = (out[..., :END_REWARD].mean(0) - goal).square().mean(1)
        trusted = doubt <= limit
        if trusted.any():
            self.get_buffer("error").lerp_(error[trusted].mean().clamp(max=10.0), JUDGING_RATE)
