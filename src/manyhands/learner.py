"""The learner: memory -> gradient -> parameters. One loop serves every algorithm and strategy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from manyhands import optim
from manyhands.metrics import Laps
from manyhands.types import (
    Algorithm,
    Batch,
    Experience,
    Failure,
    Losses,
    Parameters,
    Source,
    State,
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
        laps: Laps,
        clip_norm: float,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self.algorithm, self.memory, self.parameters, self.model = (
            algorithm,
            memory,
            parameters,
            model,
        )
        self.laps, self.clip_norm, self.on_nonfinite = laps, clip_norm, on_nonfinite
        self.updates = 0
        self.nonfinite_skipped = 0
        self._nonfinite_in_a_row = 0
        self._next_diagnostics = 0
        self._version = NEVER_PULLED
        self._newest: tuple[Losses, float, float] | None = None
        # After each pull: whether what the algorithm keeps has changed.
        self.on_refreshed: Callable[[bool], None] = lambda _: None

    def catch_up(self) -> None:
        """Who joins others that have learned already begins with what they know."""
        self._pull()
        self.on_refreshed(self.algorithm.refreshed(self._version))

    def _pull(self) -> None:
        self._version = self.parameters.pull(self.model)
        self.model.changed()

    def step(self, agent_steps: int) -> None:
        """Learns what is due.

        The parameters change after a push and at no other time. So who acts next acts with what was
        learned, as serial does; and a rollout is learned from by the policy that made it.
        """
        for batch in self.memory.due(self.algorithm.demand, self._targets):
            self.laps.lap("sample")
            if self._version == NEVER_PULLED:
                self._begin()
            for losses in self.algorithm.losses(batch.to(self.model.vector.device)):
                self._learn(batch, losses, self.algorithm.lr(agent_steps))
            self.catch_up()
            self.laps.lap("pull")
        self.laps.lap("sample")

    def _begin(self) -> None:
        """A resumed algorithm was told of its last version before it was saved."""
        if self.updates:
            self._pull()
        else:
            self.catch_up()

    def _learn(self, batch: Batch, losses: Losses, lr: float) -> None:
        """One part's gradient, applied if it is one."""
        loss, norm = self._gradient(batch, losses)
        self.laps.lap("gradient")
        if not math.isfinite(loss + norm):  # of an infinite loss Huber's gradient is finite
            self._skip(batch)
            return
        self._nonfinite_in_a_row = 0
        gradient = self.model.gradient[self.model.parts[losses.part]]
        self.parameters.push(gradient, part=losses.part, version=self._version, lr=lr, loss=loss)
        self.updates += 1
        self.laps.lap("push")
        self.memory.report(batch, losses.priorities)

    def _targets(self, drawn: Experience) -> Experience:
        self.laps.lap("sample")
        experience: Experience = self.algorithm.targets(drawn.to(self.model.vector.device))
        self.laps.lap("gradient")
        return experience

    def _gradient(self, batch: Batch, losses: Losses) -> tuple[float, float]:
        """The only place where losses are weighted and averaged, and gradients clipped."""
        loss = losses.per_sample.dot(batch.weight) / len(batch.weight)
        self.model.clear()
        loss.backward()  # type: ignore[no-untyped-call]
        self.model.settle()
        norm = optim.clip(self.model.gradient[self.model.parts[losses.part]], self.clip_norm)
        self._newest = losses, float(loss.detach()), norm
        return self._newest[1:]

    def _skip(self, batch: Batch) -> None:
        """A non-finite loss or gradient is counted and never applied."""
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

    def diagnostics_now_and_then(self) -> Mapping[str, float]:
        """Nothing, but every so many updates: for who sends them away.

        Not by the clock: to send is a turn, and turns must repeat.
        """
        if self.updates < self._next_diagnostics:
            return {}
        self._next_diagnostics = self.updates + DIAGNOSTICS_PERIOD
        return self.diagnostics()

    def diagnostics(self) -> Mapping[str, float]:
        """Of the newest update."""
        if self._newest is None:
            return {}
        losses, loss, norm = self._newest
        means = {f"losses/{k}": float(v.float().mean()) for k, v in losses.diagnostics.items()}
        return {"losses/td_loss": loss, "losses/gradient_norm": norm, **means}

    def state(self) -> State:
        return {
            "updates": self.updates,
            "nonfinite_skipped": self.nonfinite_skipped,
            "algorithm": self.algorithm.state(),
        }

    def restore(self, state: State) -> None:
        self.updates = int(state["updates"])
        self.nonfinite_skipped = int(state["nonfinite_skipped"])
        self.algorithm.restore(state["algorithm"])
