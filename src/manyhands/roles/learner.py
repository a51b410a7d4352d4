"""The learner: memory -> gradient -> parameters. One loop serves every algorithm and strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch

from manyhands import optim
from manyhands.networks.forward import Mode
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import (
    Algorithm,
    AnyDemand,
    Batch,
    Experience,
    Failure,
    Losses,
    Parameters,
    Source,
    State,
    restored,
)

NONFINITE_IN_A_ROW = 10
DIAGNOSTICS_PERIOD = 100  # updates
NEVER_PULLED = -1


class Learner:
    def __init__(
        self,
        algorithm: Algorithm,
        memory: Source,
        parameters: Parameters,
        model: optim.FlatModel,
        *,
        demand: AnyDemand | None = None,
        stopwatch: Stopwatch,
        clip_norm: float,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`demand`: this learner's share of the algorithm's demand; all of it by default."""
        self.algorithm, self.memory, self.parameters, self.model = (
            algorithm,
            memory,
            parameters,
            model,
        )
        self.demand = algorithm.demand if demand is None else demand
        self.stopwatch, self.clip_norm, self.on_nonfinite = stopwatch, clip_norm, on_nonfinite
        self._learning = Mode(*model.modules.values(), training=True)
        self.updates = self.nonfinite_skipped = self._nonfinite_in_a_row = 0
        self._next_diagnostics = 0
        self._version = NEVER_PULLED
        self._newest: tuple[Losses, float, float] | None = None
        # Called before each push: a learner killed while it pushes has counted the gradient.
        self.on_gradient: Callable[[], None] = lambda: None
        self.on_pulled: Callable[[], None] = lambda: None
        self.on_caught_up: Callable[[], None] = lambda: None  # also with what follows the weights
        self.scale_lr: Callable[[float], float] = lambda lr: lr  # what a user's hook asked for
        # Called after each pull with whether the state of the algorithm has changed.
        self.on_refreshed: Callable[[bool], None] = lambda _: None

    def catch_up(self) -> None:
        """Takes the newest parameters, as a learner that joins others must."""
        self._pull()
        self.on_refreshed(self.algorithm.refreshed(self._version))
        self.on_caught_up()

    def take_newest(self) -> None:
        """A resumed learner acts before its first update. Its algorithm is as it was saved."""
        self.parameters.pull(self.model)
        self.model.changed()
        self.on_pulled()

    def _pull(self) -> None:
        self._version = self.parameters.pull(self.model)
        self.model.changed()
        self.on_pulled()

    def step(self, agent_steps: int) -> None:
        """Makes the updates that are due.

        Parameters change right after a push and at no other time. So the next action always uses
        the updated weights, and the policy that made a rollout learns from it.
        """
        for batch in self.memory.due(self.demand, self._targets):
            self.stopwatch.lap("sample")
            if self._version == NEVER_PULLED:
                self._begin()
            with self._learning:
                for losses in self.algorithm.losses(batch.to(self.model.vector.device)):
                    self._learn(batch, losses, self.scale_lr(self.algorithm.lr(agent_steps)))
            self.catch_up()
            self.stopwatch.lap("pull")
        self.stopwatch.lap("sample")

    def _begin(self) -> None:
        """The algorithm of a resumed run knew its last version when it was saved."""
        if self.updates:
            self._pull()
        else:
            self.catch_up()

    def _learn(self, batch: Batch, losses: Losses, lr: float) -> None:
        """Computes the gradient of one part, and pushes it if it is finite."""
        loss, norm = self._gradient(batch, losses)
        self.stopwatch.lap("gradient")
        if not math.isfinite(loss + norm):  # the Huber gradient of an infinite loss is finite
            self._skip(batch)
            return
        self._nonfinite_in_a_row = 0
        gradient = self.model.gradient[self.model.parts[losses.part]]
        self.updates += 1
        self.on_gradient()
        self.parameters.push(gradient, part=losses.part, version=self._version, lr=lr, loss=loss)
        self.stopwatch.lap("push")
        self.memory.report(batch, losses.priorities)

    def _targets(self, drawn: Experience) -> Experience:
        self.stopwatch.lap("sample")
        experience: Experience = self.algorithm.targets(drawn.to(self.model.vector.device))
        self.stopwatch.lap("gradient")
        return experience

    def _gradient(self, batch: Batch, losses: Losses) -> tuple[float, float]:
        """Weights and averages the losses and clips the gradient. Nothing else does."""
        loss = losses.per_sample.dot(batch.weight) / len(batch.rows)  # inf if the sum overflows
        if not losses.replaces:
            self.model.clear()
        losses.differentiate(loss, batch.weight / len(batch.rows))
        if not losses.replaces:
            self.model.settle()
        norm = optim.clip(self.model.gradient[self.model.parts[losses.part]], self.clip_norm)
        self._newest = losses, float(loss.detach()), norm
        return self._newest[1:]

    def _skip(self, batch: Batch) -> None:
        """Counts a non-finite loss or gradient, which is never applied."""
        self.nonfinite_skipped += 1
        self._nonfinite_in_a_row += 1
        if self.nonfinite_skipped == 1:
            self.on_nonfinite(batch)
        if self._nonfinite_in_a_row >= NONFINITE_IN_A_ROW:
            raise Failure(
                f"the loss was not finite {NONFINITE_IN_A_ROW} times in a row, at update "
                f"{self.updates}; none of these gradients was applied",
                "lower the learning rate or set env.reward_scale; the batch is in the run's folder",
            )

    def periodic_diagnostics(self) -> Mapping[str, float]:
        """The diagnostics every so many updates, otherwise nothing.

        Not by the clock: runs in one process must repeat exactly.
        """
        if self.updates < self._next_diagnostics:
            return {}
        self._next_diagnostics = self.updates + DIAGNOSTICS_PERIOD
        return self.diagnostics()

    def diagnostics(self) -> Mapping[str, float]:
        """The losses and the gradient norm of the newest update."""
        if self._newest is None:
            return {}
        losses, loss, norm = self._newest
        means = {k: float(v.float().mean()) for k, v in losses.diagnostics.items()}
        named = {k if "/" in k else f"losses/{k}": mean for k, mean in means.items()}
        return {"losses/td_loss": loss, "losses/gradient_norm": norm, **named}

    def state(self) -> State:
        state: State = {
            "updates": self.updates,
            "nonfinite_skipped": self.nonfinite_skipped,
            "algorithm": self.algorithm.state(),
        }
        if self.algorithm.imagined is not None:
            state["imagined"] = self.algorithm.imagined.state()
        if self._learning.matters:  # dropout draws from torch's generator
            state["torch_rng"] = torch.get_rng_state().numpy()
        return state

    def restore(self, state: State) -> None:
        self.updates = restored.count(state, "updates")
        self.nonfinite_skipped = restored.count(state, "nonfinite_skipped")
        self.algorithm.restore(state["algorithm"])
        if self.algorithm.imagined is not None and "imagined" in state:
            self.algorithm.imagined.restore(state["imagined"])
        if "torch_rng" in state:
            torch.set_rng_state(torch.from_numpy(np.array(state["torch_rng"])))
