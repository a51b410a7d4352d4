"""Saves checkpoints, the best weights and snapshots of a run; restores a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from manyhands.config.plans import Plan
from manyhands.roles.jobs.shared import unfit
from manyhands.runs import checkpoint, policies, restoring, snapshots
from manyhands.runs.checkpoint_files import FORMAT
from manyhands.runs.faults import sentence
from manyhands.runs.progress import Progress
from manyhands.runs.rundir import RunDir
from manyhands.runs.workers import Workers
from manyhands.types import BadRequest, Failure, Refusal, State, restored
from manyhands.types.sizes import human

PARKING_S, LAST_PARKING_S = 30.0, 10.0
LARGE_BYTES = 200_000_000


class Saving:
    def __init__(
        self,
        folder: RunDir,
        plan: Plan,
        workers: Workers,
        progress: Progress,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._say = say
        self._folder, self._plan, self._workers, self._progress = folder, plan, workers, progress
        self._resumed_at = -1  # the step of the checkpoint that the run resumed from

    def checkpoint(self) -> None:
        """Saves everything, while all workers wait."""
        with self._parked():
            self._save()

    def _announce(self, replay: State) -> None:
        """Says how long a large checkpoint will take, before it is written."""
        shared = replay["shared"] or {}
        size = sum(array.nbytes for array in shared.get("arrays", {}).values())
        if size < LARGE_BYTES or not self._plan.checkpoint.replay:
            return
        with suppress(OSError):
            seconds = checkpoint.seconds_to_write(self._folder.path, size)
            self._say(f"writing a checkpoint of {human(size)}: about {seconds:.0f} s")

    @contextmanager
    def _parked(self) -> Iterator[None]:
        """All processes wait between two turns, so shared state is consistent."""
        backend = self._workers.backend
        late = backend.park(PARKING_S)
        try:
            if late:
                raise Failure(
                    f"worker {min(late)} did not pause within {PARKING_S:.0f} s",
                    "the previous checkpoint is still good",
                )
            yield
        finally:
            backend.unpark()

    @contextmanager
    def _parked_last(self, leave: Callable[[], None]) -> Iterator[None]:
        """The same at the end of the run. `leave` ends the workers.

        If one does not wait, all leave at once, and their own states are lost.
        """
        backend = self._workers.backend
        try:
            if backend.park(LAST_PARKING_S):
                leave()
            yield
        finally:
            backend.stop()
            leave()

    def _save(self) -> None:
        state = self._state()
        replay = _split_off_replay(state)
        self._announce(replay)
        with self._workers.newest():
            checkpoint.save(
                self._folder.checkpoints,
                self._workers.agent_steps,
                weights=self._weights(),
                state=state,
                replay=replay if self._plan.checkpoint.replay else None,
            )

    def last(self, leave: Callable[[], None]) -> Refusal | None:
        """Writes the last checkpoint and ends the workers; returns the error if that failed.

        A run that took no step since it was resumed has its checkpoint already.
        """
        try:
            with self._parked_last(leave):
                if self._resumed_at != self._workers.agent_steps:
                    self._save()
        except Exception as error:  # must not hide the failure that ended the run
            self._folder.add_fault(sentence(error), "the previous checkpoint is still good")
            return error if isinstance(error, Failure) else Failure(sentence(error))
        return None

    def best(self, step: int) -> None:
        """Saves main's copy, which was evaluated at ``step``. Workers may be further by now."""
        state = {"spec": policies.spec_state(self._workers.spec), "run": self._progress.state()}
        checkpoint.save_best(self._folder.path, step, weights=self._weights(), state=state)

    def snapshot(self) -> None:
        state = {"spec": policies.spec_state(self._workers.spec)}
        step = self._workers.agent_steps
        with self._workers.newest():
            weights = self._weights()
        snapshots.save(self._folder.path, step, weights=weights, state=state)

    def restore(self) -> int:
        """Restores the newest good checkpoint; returns its step."""
        self._announce_reading()
        loaded, notes = checkpoint.newest(self._folder.checkpoints), self._progress.notes
        for problem in loaded.problems:
            self._folder.add_fault(problem, f"used checkpoint {loaded.step}")
            notes.append(problem)
        if loaded.format != FORMAT:
            raise BadRequest(
                f"checkpoint {loaded.step} has format {loaded.format}, and this manyhands resumes "
                f"format {FORMAT}",
                "resume it with manyhands 0.1.0; evaluate, record and watch read it here too",
            )
        if loaded.replay is None:
            notes.append("the checkpoint has no replay: the memory starts empty")
        try:
            workers, state = self._workers, loaded.state
            changed = restoring.restore(workers, loaded.weights, state, loaded.replay)
            notes += [f"changed: {changed}"] if changed else []
            if self._workers.agent_steps != loaded.step:
                steps = self._workers.agent_steps
                raise ValueError(f"its step is {loaded.step}, that of its state is {steps}")
            self._progress.restore(loaded.state["run"])
        except restored.UNFIT as error:
            raise unfit(error) from error
        self._resumed_at = loaded.step
        return loaded.step

    def _announce_reading(self) -> None:
        with suppress(OSError):  # reading it will say what is wrong
            size, seconds = checkpoint.seconds_to_read(self._folder.checkpoints)
            if size >= LARGE_BYTES:
                told = f"reading a checkpoint of {human(size)}: about {seconds:.0f} s"
                self._workers.tell(told)

    def _state(self) -> State:
        return {
            "spec": policies.spec_state(self._workers.spec),
            "run": self._progress.state(),
            "arrangement": restoring.arrangement_of(self._plan)._asdict(),
            **self._workers.state(),
        }

    def _weights(self) -> dict[str, Any]:
        """Main's copy."""
        model = self._workers.model
        if not bool(model.vector.isfinite().all()):
            raise Failure("weights are not finite and were not saved", "lower the learning rate")
        return model.named()


def _split_off_replay(state: State) -> State:
    """Takes the large arrays out of the state. Only the newest checkpoint keeps them."""
    rollouts = {}
    for rank, process in state["processes"].items():
        if (lanes := process.get("memory", {}).pop("lanes", None)) is not None:
            rollouts[rank] = lanes
    return {"shared": state.pop("experience"), "rollouts": rollouts}
