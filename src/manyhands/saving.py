"""What a run keeps of its crew: checkpoints, the best policy, snapshots of how it learned."""

from __future__ import annotations

from typing import Any

from manyhands import checkpoint, evaluate, snapshots
from manyhands.config import Plan
from manyhands.crew import Crew
from manyhands.progress import Progress
from manyhands.rundir import RunDir
from manyhands.types import Failure, State


class Saving:
    def __init__(self, folder: RunDir, plan: Plan, crew: Crew, progress: Progress) -> None:
        self._folder, self._plan, self._crew, self._progress = folder, plan, crew, progress

    def checkpoint(self, *, fresh_episodes: bool = False) -> None:
        """Everything, while all wait."""
        with self._crew.parked(), self._crew.newest():
            state = self._state(fresh_episodes=fresh_episodes)
            replay = state.get("memory", {}).pop("lanes", None)
            checkpoint.save(
                self._folder.checkpoints,
                self._crew.agent_steps,
                weights=self._weights(),
                state=state,
                replay=replay if self._plan["checkpoint"].replay else None,
            )

    def best(self, step: int) -> None:
        """What was evaluated at that step: others may have learned more meanwhile."""
        state = {name: kept for name, kept in self._state().items() if name != "memory"}
        checkpoint.save_best(self._folder.path, step, weights=self._weights(), state=state)

    def snapshot(self) -> None:
        state = {"spec": evaluate.spec_state(self._crew.spec)}
        step = self._crew.agent_steps
        with self._crew.newest():
            weights = self._weights()
        snapshots.save(self._folder.path, step, weights=weights, state=state)

    def _state(self, *, fresh_episodes: bool = False) -> State:
        return {
            "spec": evaluate.spec_state(self._crew.spec),
            "run": self._progress.state(),
            **self._crew.state(fresh_episodes=fresh_episodes),
        }

    def _weights(self) -> dict[str, Any]:
        """Main's own copy, as it is."""
        model = self._crew.model
        if not bool(model.vector.isfinite().all()):
            raise Failure("the weights are not finite and were not kept", "lower the learning rate")
        return model.named()
