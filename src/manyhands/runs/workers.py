"""The workers of a run as main sees them: one in main's process, or many in other processes.

`Run` and `Progress` use the same protocol for both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import numpy as np

from manyhands import optim
from manyhands.config.plans import Plan
from manyhands.roles.making import MakeEnv, MakeTorso, make_strategy
from manyhands.roles.scores import Scores
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.roles.worker import Worker
from manyhands.types import (
    Algorithm,
    Array,
    Backend,
    Batch,
    Break,
    EnvSpec,
    Fault,
    Job,
    ProcessInfo,
    State,
    Strategy,
    restored,
)


class Workers(Protocol):
    plan: Plan
    spec: EnvSpec
    algorithm: Algorithm  # main's copy, for evaluation
    model: optim.FlatModel  # its parameters; inside `newest` they are the newest
    scores: Scores
    preflight: str
    memory_bytes: int

    @property
    def agent_steps(self) -> int: ...

    @property
    def updates(self) -> int: ...  # gradients applied to the shared parameters

    @property
    def gradients(self) -> int: ...  # computed, applied or not

    @property
    def caught_up(self) -> bool: ...  # all updates that are due were made

    def jobs(self) -> list[Job]: ...

    def look(self) -> None:
        """Takes in what workers sent since the last call."""

    def newest(self) -> AbstractContextManager[None]:
        """Inside this block main's copy has the newest parameters."""

    def begin(self) -> None: ...  # starts the clock

    def rest(self) -> None: ...  # counts the time since the last turn as "other"

    def note(self, fault: Fault) -> None: ...

    def take_breaks(self) -> list[Fault]: ...  # environments that failed and were made again

    def faults(self) -> dict[str, int]: ...

    def time_split(self) -> dict[str, dict[str, float]]: ...

    def memory_fill(self) -> float | None: ...

    def diagnostics(self) -> Mapping[str, float]: ...

    def staleness(self) -> dict[str, float]: ...

    def process_table(self) -> list[dict[str, Any]]: ...

    def parked(self) -> AbstractContextManager[None]: ...  # around a checkpoint

    def state(self, *, fresh_episodes: bool = False) -> State: ...

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None: ...

    def close(self) -> None: ...


def staleness_of(strategy: Strategy) -> dict[str, float]:
    mean, late, dropped = strategy.ledger.staleness()
    return {"mean": mean, "p95": late, "dropped": dropped}


def restore_strategy(strategy: Strategy, model: optim.FlatModel, state: State) -> None:
    strategy.restore(model.vector.clone(), state["strategy"])
    if "ledger" in state:
        strategy.ledger.restore(state["ledger"])


def fault_of(process: ProcessInfo, failure: Break) -> Fault:
    return Fault(time.time(), process, failure.cause, "environment made again", failure.detail)


class OneWorker:
    """One worker in this process. A checkpoint holds all of its state, so a resume is exact."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        threads: int,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        on_nonfinite: Callable[[Batch], None],
        tell: Callable[[str], None],
    ) -> None:
        def join(model: optim.FlatModel) -> Any:
            self.strategy = make_strategy(plan, backend, model, 1)
            return self.strategy.join(model, 0)

        self.plan = plan
        self.worker = Worker(
            plan,
            threads=threads,
            join=join,
            seeds=np.random.SeedSequence(plan.top.seed),
            make_env=make_env,
            network=network,
            on_nonfinite=on_nonfinite,
            tell=tell,
        )
        self.spec, self.algorithm = self.worker.env.spec, self.worker.algorithm
        self.model, self.scores = self.worker.model, self.worker.actor.scores
        self.preflight, self.memory_bytes = self.worker.preflight, self.worker.memory_bytes

    @property
    def agent_steps(self) -> int:
        return self.worker.actor.agent_steps

    @property
    def updates(self) -> int:
        return self.strategy.version()

    @property
    def gradients(self) -> int:
        learner = self.worker.learner
        return learner.updates + learner.nonfinite_skipped

    @property
    def caught_up(self) -> bool:
        """Every turn makes all updates that are due."""
        return True

    def jobs(self) -> list[Job]:
        return [Job(self.worker.run)]

    def look(self) -> None:
        """Does nothing: main and the worker share everything."""

    @contextmanager
    def newest(self) -> Iterator[None]:
        """The strategy's parameters may differ from the worker's, which are put back at the end.

        Buffers are put back too, because a network may change them in every forward pass.
        """
        newest, model = self.strategy.newest(), self.model
        with model.buffers.kept():
            if newest.data_ptr() == model.vector.data_ptr():
                yield
                return
            own = model.vector.clone()
            model.overwrite(newest)
            try:
                yield
            finally:
                model.overwrite(own)

    def begin(self) -> None:
        self.worker.stopwatch.begin()

    def rest(self) -> None:
        self.worker.stopwatch.lap("other")

    def note(self, fault: Fault) -> None:
        """Does nothing: in this process an error is an exception."""

    def take_breaks(self) -> list[Fault]:
        if not self.worker.actor.breaks:
            return []
        me = ProcessInfo("worker", 0, 0, os.getpid())
        return [fault_of(me, found) for found in self.worker.actor.take_breaks()]

    def faults(self) -> dict[str, int]:
        skipped = self.worker.learner.nonfinite_skipped
        return {"restarts": 0, "nonfinite_skipped": skipped, "torn_rows": 0}

    def time_split(self) -> dict[str, dict[str, float]]:
        return {"worker": dict(self.worker.stopwatch.seconds)}

    def memory_fill(self) -> float | None:
        """None if the memory has no capacity."""
        memory = self.worker.memory
        return memory.filled / memory.capacity if memory.capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        return {**self.worker.learner.diagnostics(), **self.strategy.diagnostics()}

    def staleness(self) -> dict[str, float]:
        return staleness_of(self.strategy)

    def process_table(self) -> list[dict[str, Any]]:
        return [
            {
                "id": 0,
                "role": "worker",
                "pid": os.getpid(),
                "incarnation": 0,
                "agent_steps": self.agent_steps,
            }
        ]

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Nothing else runs in this process."""
        yield

    def state(self, *, fresh_episodes: bool = False) -> State:
        own = self.worker.state(fresh_episodes=fresh_episodes)
        kept = self.worker.memory.state()
        return {
            **own,
            "memory": kept,
            "strategy": self.strategy.state(),
            "ledger": self.strategy.ledger.state(),
            "laps": dict(self.worker.stopwatch.seconds),
        }

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None:
        self.model.load(weights)
        restore_strategy(self.strategy, self.model, state)
        self.worker.restore(state, replay)
        self.worker.stopwatch.seconds.update(
            restored.numbers(state["laps"], PARTS_OF_TIME, least=0)
        )

    def close(self) -> None:
        self.worker.env.close()
