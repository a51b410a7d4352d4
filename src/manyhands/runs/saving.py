"""Saves checkpoints, the best weights and snapshots of a run; restores a checkpoint."""

from __future__ import annotations

from typing import Any

from manyhands.config.plans import Plan
from manyhands.runs import checkpoint, policies, snapshots
from manyhands.runs.faults import sentence
from manyhands.runs.progress import Progress
from manyhands.runs.rundir import RunDir
from manyhands.runs.workers import Workers
from manyhands.types import Failure, Refusal, State, restored


class Saving:
    def __init__(self, folder: RunDir, plan: Plan, workers: Workers, progress: Progress) -> None:
        self._folder, self._plan, self._workers, self._progress = folder, plan, workers, progress

    def checkpoint(self, *, fresh_episodes: bool = False) -> None:
        """Saves everything, while all workers wait."""
        with self._workers.parked(), self._workers.newest():
            state = self._state(fresh_episodes=fresh_episodes)
            replay = state.get("memory", {}).pop("lanes", None)
            checkpoint.save(
                self._folder.checkpoints,
                self._workers.agent_steps,
                weights=self._weights(),
                state=state,
                replay=replay if self._plan.checkpoint.replay else None,
            )

    def last(self, *, fresh_episodes: bool = False) -> Refusal | None:
        """Writes the last checkpoint; returns the error if that failed."""
        try:
            self.checkpoint(fresh_episodes=fresh_episodes)
        except Exception as error:  # must not hide the failure that ended the run
            self._folder.add_fault(sentence(error), "the previous checkpoint is still good")
            return error if isinstance(error, Failure) else Failure(sentence(error))
        return None

    def best(self, step: int) -> None:
        """Saves main's copy, which was evaluated at ``step``. Workers may be further by now."""
        state = {name: part for name, part in self._state().items() if name != "memory"}
        checkpoint.save_best(self._folder.path, step, weights=self._weights(), state=state)

    def snapshot(self) -> None:
        state = {"spec": policies.spec_state(self._workers.spec)}
        step = self._workers.agent_steps
        with self._workers.newest():
            weights = self._weights()
        snapshots.save(self._folder.path, step, weights=weights, state=state)

    def restore(self) -> int:
        """Restores the newest good checkpoint; returns its step."""
        loaded, notes = checkpoint.newest(self._folder.checkpoints), self._progress.notes
        for problem in loaded.problems:
            self._folder.add_fault(problem, f"used checkpoint {loaded.step}")
            notes.append(problem)
        if loaded.replay is None:
            notes.append("the checkpoint has no replay: the memory starts empty")
        try:
            self._workers.restore(loaded.weights, loaded.state, loaded.replay)
            if self._workers.agent_steps != loaded.step:
                steps = self._workers.agent_steps
                raise ValueError(f"its step is {loaded.step}, that of its state is {steps}")
            self._progress.restore(loaded.state["run"])
        except restored.UNFIT as error:
            raise Failure(
                f"the checkpoint does not fit this run: {type(error).__name__}: {error}",
                "resume with the configuration that it was saved with",
            ) from error
        return loaded.step

    def _state(self, *, fresh_episodes: bool = False) -> State:
        return {
            "spec": policies.spec_state(self._workers.spec),
            "run": self._progress.state(),
            **self._workers.state(fresh_episodes=fresh_episodes),
        }

    def _weights(self) -> dict[str, Any]:
        """Main's copy."""
        model = self._workers.model
        if not bool(model.vector.isfinite().all()):
            raise Failure("weights are not finite and were not saved", "lower the learning rate")
        return model.named()
