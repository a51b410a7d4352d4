"""Proximal: every learner has its own vector, and all find one regularised optimum together.

Learner k minimizes the mean of all losses plus R, which is l1, l2 or nothing. In a round each
exchanges one vector with its neighbours. Plain gossip with a constant rate stays away from the
optimum when learners have different losses. Here each keeps a correction that cancels the
difference between its own gradient and the mean:

    psi = w - step                           the optimizer's step for the own gradient
    m = psi + c            (prox-ed)         Prox-ED (Alghunaim et al. 2021), for noisy gradients
    m = w - last step + c  (p2d2)            P2D2 (Alghunaim, Yuan and Sayed 2019)
    c = c + sum of a[k, s] * (m[s] - m) / 2  over the neighbours s, with Metropolis weights a
    w = prox(psi + c)                        of R times the learning rate

Without R they are exact diffusion and EXTRA (Shi et al. 2015). The papers write the same recursion
for z = psi + c. Here the differences cancel in pairs, so rounding keeps the sum of all c at zero.

It differs from the papers in that the optimizer makes the step from the gradient. The theory holds
for plain SGD only. With several parts, a learner steps and regularises the part it pushes.

Only corrections whose sum is zero lead to the optimum. So when a learner dies, joins or ends, all
the others begin again with c = 0 at their present vectors, on the graph of those that are left. A
restarted learner takes another's vector and optimizer state, and drops the gradient it brought. A
vector is made beside the current one, and one number makes it current.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.maths import graphs, regularisers
from manyhands.strategies import Layout, Ledger, copy, load, mean, saved
from manyhands.types import (
    Array,
    Backend,
    BadRequest,
    Model,
    Options,
    Parameters,
    PlanView,
    State,
    Strategy,
    option,
    restored,
)


@dataclass(frozen=True)
class Config(Options):
    in_step: ClassVar[bool] = True

    form: str = option(
        "prox-ed",
        "exchange vectors after the step (prox-ed) or before it (p2d2)",
        choices=("prox-ed", "p2d2"),
    )
    topology: str = option(
        "ring",
        "neighbours of a learner: the next two, all, or those 1, 2, 4, … ranks away",
        choices=graphs.TOPOLOGIES,
    )
    regulariser: str = option("none", "R, added to the loss", choices=regularisers.NAMES)
    strength: float = option(1e-4, "what R is multiplied by", low=0)

    def check(self, plan: PlanView) -> None:
        """Refuses only what a person has just asked for: an older run may resume with it."""
        if plan.is_from_flag(self, "strength") and self.regulariser == "none":
            raise BadRequest(
                f"{plan.flag(self, 'strength')} {self.strength}: there is no regulariser",
                f"add {plan.flag(self, 'regulariser')} l2, or leave it out",
            )


class Proximal(Strategy):
    in_step = True

    def __init__(
        self,
        config: Config,
        *,
        backend: Backend,
        vector: Tensor,
        parts: Mapping[str, slice],
        optimizer: optim.Config,
        learners: int = 1,
    ) -> None:
        self.config, self.parts, self.learners = config, parts, learners
        self.ledger = Ledger(backend, learners)
        self.group = backend.group(learners, 1)  # says which learners are in a round
        self.rounds = backend.allocate((learners,), np.dtype(np.int64))
        self._layout = Layout(optimizer, vector, parts)
        # Of each learner: vector `rounds % 2` is current, the other is being made.
        self._vectors = backend.share(vector.repeat(learners, 2, 1))
        self.memories = backend.share(self._layout.memory(self._layout.first).repeat(learners, 1))
        zeros = torch.zeros_like(vector)
        self.corrections = backend.share(zeros.repeat(learners, 1))
        self.last_steps = backend.share(zeros.repeat(learners if config.form == "p2d2" else 0, 1))
        # Message `rounds % 2` is read in this round, so none is replaced while it is read.
        self.messages = backend.share(zeros.repeat(learners, 2, 1))

    def join(self, model: Model, index: int) -> Replica:
        return Replica(self, model, index)

    def vector(self, index: int, rounds: int) -> Tensor:
        return self._vectors[index, rounds % 2]

    def optimizers(self, index: int, rounds: int) -> dict[str, optim.PartOptimizer]:
        return self._layout.optimizers(self.vector(index, rounds), self.memories[index])

    def copy_of(self, index: int) -> tuple[Tensor, int]:
        """A learner's vector, complete, and its number of rounds."""
        while True:
            rounds = int(self.rounds[index])
            vector = self.vector(index, rounds).clone()
            if rounds == self.rounds[index]:  # so its learner has not begun to replace it
                return vector, rounds

    def present(self) -> list[int]:
        """The learners that make rounds, not those that wait to be restarted."""
        newest = int(self.rounds.max())
        return [index for index, rounds in enumerate(self.rounds) if rounds >= newest - 1]

    def copies(self) -> Tensor:
        return torch.stack([self.copy_of(index)[0] for index in self.present()])

    def newest(self) -> Tensor:
        """The mean of the vectors: the first plus the mean difference, so equal ones stay equal."""
        copies = self.copies()
        return copies[0] + (copies - copies[0]).mean(0)

    def version(self) -> int:
        return int(self.rounds.max())

    def consensus_distance(self) -> float:
        """Root mean square of the vectors' distances from their mean."""
        apart = self.copies()
        apart -= apart.mean(0)
        return math.sqrt(float(apart.square().sum()) / len(apart))

    def diagnostics(self) -> Mapping[str, float]:
        return {"charts/consensus_distance": self.consensus_distance()}

    def state(self) -> State:
        """Its own state has for each learner vector, correction, last step and optimizer state."""
        version = self.version()
        optimizers = [saved(self.optimizers(i, version)) for i in range(self.learners)]
        own = {
            "vectors": _array(torch.stack([self.copy_of(i)[0] for i in range(self.learners)])),
            "corrections": _array(self.corrections),
            "last_steps": _array(self.last_steps),
            "optimizers": {str(index): each for index, each in enumerate(optimizers)},
        }
        return {"version": version, "optimizers": mean(optimizers), "own": {"proximal": own}}

    def restore(self, vector: Tensor, state: State) -> None:
        """Restores each learner. All get the same vector if others than these were saved."""
        own = state["own"].get("proximal", {})
        if len(own.get("optimizers", ())) != self.learners:
            own = self._alike(vector, state)
        version = restored.count(state, "version")
        self.rounds[:] = version
        for name, into in (
            ("vectors", self._vectors[:, version % 2]),
            ("corrections", self.corrections),
            ("last_steps", self.last_steps),
        ):
            found = restored.array(own, name, into.numpy(force=True))
            into.copy_(torch.from_numpy(np.array(found)))
        for index in range(self.learners):
            load(self.optimizers(index, version), own["optimizers"][str(index)])

    def _alike(self, vector: Tensor, state: State) -> State:
        """Equal vectors without corrections, made of another strategy's state."""
        return {
            "vectors": np.tile(_array(vector), (self.learners, 1)),
            "corrections": np.zeros_like(_array(self.corrections)),
            "last_steps": np.zeros_like(_array(self.last_steps)),
            "optimizers": {str(index): state["optimizers"] for index in range(self.learners)},
        }


def _array(tensor: Tensor) -> Array:
    return tensor.numpy(force=True).copy()


class Replica(Parameters):
    """One learner's vector, correction and messages, and what it reads of its neighbours."""

    def __init__(self, shared: Proximal, model: Model, index: int) -> None:
        self._shared, self._index = shared, index
        self._correction, self._messages = shared.corrections[index], shared.messages[index]
        self._optimizers = [shared.optimizers(index, row) for row in range(2)]
        self._nothing, self._pull = torch.zeros(1), torch.empty_like(self._correction)
        self._members = frozenset(range(shared.learners))  # of the last round
        self._is_new = False  # its corrections do not fit those of the others
        self._is_joining = shared.group.join(index, self._catch_up)
        if self._is_joining:
            self._catch_up()  # it acts with this until its first push
        model.live_in(shared.vector(index, self._rounds))

    @property
    def _rounds(self) -> int:
        return int(self._shared.rounds[self._index])

    def _catch_up(self) -> None:
        """Takes the vector and optimizer state of a learner that made the newest round."""
        shared, index = self._shared, self._index
        other = int(shared.rounds.argmax())
        vector, rounds = shared.copy_of(other)
        shared.memories[index].copy_(shared.memories[other])
        self._correction.zero_()
        shared.last_steps[index : index + 1].zero_()
        shared.vector(index, rounds).copy_(vector)
        shared.rounds[index] = rounds

    def pull(self, model: Model) -> int:
        rounds = self._rounds
        vector = self._shared.vector(self._index, rounds)
        if vector.data_ptr() != model.vector.data_ptr():
            model.live_in(vector)
        return rounds

    def push(
        self,
        gradient: Tensor,
        *,
        part: str,
        version: int,
        lr: float,
        loss: float = 0.0,  # noqa: ARG002
    ) -> None:
        if self._is_joining:
            self._join_a_round()
            return
        shared, index, rounds = self._shared, self._index, self._rounds
        current, following = shared.vector(index, rounds), shared.vector(index, rounds + 1)
        copy(current, following)
        self._optimizers[(rounds + 1) % 2][part].step(gradient, lr)
        self._write_message(current, following, self._messages[rounds % 2])
        members = shared.group.reduce(self._nothing, self._is_new).numbers
        self._correct(members, rounds)
        following += self._correction
        where = shared.parts[part]
        amount = lr * shared.config.strength
        following[where] = regularisers.prox(shared.config.regulariser, following[where], amount)
        shared.rounds[index] = rounds + 1
        shared.ledger.applied(index, rounds - version)

    def _write_message(self, current: Tensor, stepped: Tensor, message: Tensor) -> None:
        """Before the round: what its neighbours read in it."""
        if self._shared.config.form == "prox-ed":
            torch.add(stepped, self._correction, out=message)
            return
        last_step = self._shared.last_steps[self._index]
        torch.sub(current, last_step, out=message).add_(self._correction)
        torch.sub(current, stepped, out=last_step)

    def _correct(self, members: Mapping[int, tuple[float, ...]], rounds: int) -> None:
        """Adds what the neighbours' messages differ by; from zero if the learners changed."""
        present = frozenset(members)
        if present != self._members or any(is_new for (is_new,) in members.values()):
            self._correction.zero_()
        self._members, self._is_new = present, False
        ranks, topology = sorted(present), self._shared.config.topology
        near = graphs.neighbours(topology, len(ranks), ranks.index(self._index))
        if not near:
            return
        weight = graphs.metropolis(len(near), len(near)) / 2  # all have as many neighbours
        own = self._messages[rounds % 2]
        for place in near:
            theirs = self._shared.messages[ranks[place], rounds % 2]
            self._correction.add_(torch.sub(theirs, own, out=self._pull), alpha=weight)

    def _join_a_round(self) -> None:
        """A round of the others, in which it catches up. In the next one it takes part."""
        shared, index = self._shared, self._index
        average = shared.group.reduce(self._nothing, True)
        self._is_joining, self._is_new = False, True
        rounds = self._rounds
        if average.vector is not None:
            copy(shared.vector(index, rounds), shared.vector(index, rounds + 1))
            shared.rounds[index] = rounds + 1
        shared.ledger.dropped(index)


make = Proximal
