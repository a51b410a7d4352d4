"""The job of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from manyhands import envs
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.shared_lanes import MARGIN, SharedLanes
from manyhands.roles.backoff import Backoff
from manyhands.roles.counters import STEPS, Row
from manyhands.roles.jobs.shared import Shared
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.worker import Worker, env_seed
from manyhands.types import Demand, Environment, Keep, Rank, State, Strategy


@dataclass
class WorkerJob(Shared):
    """A worker: it acts and learns in one loop."""

    strategy: Strategy
    prepared: Worker | None = None  # made already, in main's process

    def __call__(self, rank: Rank) -> Iterator[Keep | None]:
        if self.prepared is not None:  # main closes its environment
            yield from self._work(self.prepared, rank)
            return
        worker = self.make(rank)
        with closing(worker.env):
            yield from self._work(worker, rank)

    def _work(self, worker: Worker, rank: Rank) -> Iterator[Keep | None]:
        row = Row(self.counters, self.episodes, rank)
        self._connect(worker, row, rank)
        alone, backoff = self.ranks == 1, Backoff()
        keep = worker.state if alone else partial(_kept, worker)
        worker.stopwatch.begin()
        with row.flushed(worker.stopwatch, worker.memory):
            for everywhere in self._turns(row, rank.index):
                if self._must_wait(rank):
                    backoff.nap()
                    worker.stopwatch.lap("idle")
                    row.flush_periodically(worker.stopwatch, worker.memory)
                    yield keep
                    continue
                backoff.over()
                elsewhere = everywhere - worker.actor.agent_steps
                if isinstance(worker.memory, Replay):
                    seen = worker.memory.steps_seen  # also those of earlier processes of this rank
                    worker.memory.count_steps(elsewhere=max(0, everywhere - seen))
                try:
                    worker.turn(elsewhere)
                finally:  # an error ends the run, but what was done before it counts
                    row.count_actor(worker.actor)
                    row.count_learner(worker.learner)
                row.flush_periodically(worker.stopwatch, worker.memory)
                yield keep
                worker.stopwatch.lap("other" if alone else "idle")  # main had the turn, or others

    def _connect(self, worker: Worker, row: Row, rank: Rank) -> None:
        """Connects the worker with what all share: counters, buffers, the newest parameters."""
        learner, memory = worker.learner, worker.memory
        row.count_gradients(learner)
        learner.scale_lr = self.scaled_lr
        self._share_buffers(learner, first=rank.index == 0)
        if rank.index == 0:
            learner.on_refreshed = lambda new: self._keep_state(learner) if new else None
        if self.own_state(rank) is not None:
            row.resumed(worker.actor, learner)
            learner.take_newest()
            return
        if rank.index or self.takes_over(rank):
            self._catch_up(learner, rank)
        if self.takes_over(rank) and isinstance(memory, Replay):
            assert isinstance(worker.demand, Demand)
            memory.resume_from(row.steps, worker.demand)

    def _must_wait(self, rank: Rank) -> bool:
        """For other nodes that use up the steps that are left, or for rows to leave this node."""
        lanes = self.shared_lanes
        has_room = not isinstance(lanes, SharedLanes) or lanes.stream.has_room(rank.index)
        return not has_room or (not self.in_step and self.budget.must_wait())

    def _turns(self, row: Row, index: int) -> Iterator[int]:
        """Yields the agent steps of all workers before each turn, until all are taken.

        Workers in step all count the same, even if one is a little ahead.
        """
        limit = self.step_limit()
        if not self.in_step:
            while (everywhere := self.total(STEPS)) < limit:
                yield everywhere
            return
        share = share_of(limit, self.ranks, index, self.plan.top.envs_per_worker)
        while row.steps < share:
            yield self.ranks * row.steps

    def make(self, rank: Rank, env: Environment | None = None) -> Worker:
        """`env`: already made. Restores the state that a checkpoint has of this rank."""
        set_threads_for(self.plan, self.threads, self.network)
        plan, seeds = self.plan, self.seeds(rank)
        env = env or envs.make(
            plan.env,
            lanes=plan.top.envs_per_worker,
            seed=env_seed(seeds),
            threads=self.threads,
            factory=self.make_env,
        )
        worker = Worker(
            plan,
            env,
            join=lambda model: self.strategy.join(model, rank.index),
            seeds=seeds,
            rank=(rank.index, self.ranks),
            replay_lanes=self._replay_lanes(rank),
            network=self.network,
            on_nonfinite=self.on_nonfinite,
        )
        if (own := self.own_state(rank)) is not None:
            with self.fitting():
                worker.restore(own)
        return worker

    def _replay_lanes(self, rank: Rank) -> ReplayLanes | None:
        if self.shared_lanes is None:
            return None
        lanes = self.shared_lanes
        assert isinstance(lanes, SharedLanes)  # workers have no queues
        replaces = self.takes_over(rank) and self.own_state(rank) is None
        own = lanes.own(rank.index, margin=MARGIN if replaces else 0)
        from_all = self.plan.memory.scope == "global" and self.ranks > 1
        drawn = lanes.view_all() if from_all else own
        return ReplayLanes(own, drawn, lanes.priorities(rank.index))


def _kept(worker: Worker) -> State:
    """Before a checkpoint main's node gets the parameters of a worker on another one."""
    worker.learner.parameters.keep()
    return worker.state()


def share_of(steps: float, workers: int, index: int, lanes: int) -> float:
    """The steps of one worker, if all make the same number of turns or one more."""
    if steps == np.inf:
        return steps
    turns = -int(-steps // lanes)
    return lanes * (turns // workers + (index < turns % workers))
