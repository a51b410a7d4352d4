"""The job of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.shared_lanes import MARGIN, SharedLanes
from manyhands.roles.counters import STEPS, Row
from manyhands.roles.jobs.shared import Shared
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.worker import Worker
from manyhands.types import Demand, Rank


@dataclass
class WorkerJob(Shared):
    """A worker: it acts and learns in one loop."""

    def __call__(self, rank: Rank) -> Iterator[None]:
        worker = self._make(rank)
        with closing(worker.env):
            yield from self._work(worker, rank)

    def _work(self, worker: Worker, rank: Rank) -> Iterator[None]:
        row = Row(self.counters, self.episodes, rank)
        row.count_gradients(worker.learner)
        self._share_buffers(worker.learner, first=rank.index == 0)
        if rank.index == 0:
            worker.learner.on_refreshed = lambda new: (
                self._keep_state(worker.learner) if new else None
            )
        if rank.index or self.takes_over(rank):
            self._catch_up(worker.learner, rank)
        memory, demand = worker.memory, worker.demand
        if self.takes_over(rank) and isinstance(memory, Replay):
            assert isinstance(demand, Demand)
            memory.resume_from(row.steps, demand)
        worker.stopwatch.begin()
        with row.flushed(worker.stopwatch, memory):
            for everywhere in self._turns(row, rank.index):
                elsewhere = everywhere - worker.actor.agent_steps
                if isinstance(memory, Replay):
                    memory.count_steps(elsewhere=elsewhere)
                worker.turn(elsewhere)
                row.count_actor(worker.actor)
                row.count_learner(worker.learner)
                row.flush_periodically(worker.stopwatch, memory)
                yield

    def _turns(self, row: Row, index: int) -> Iterator[int]:
        """Yields the agent steps of all workers before each turn, until all are taken.

        Workers in step all count the same, even if one is a little ahead.
        """
        limit, workers = self.step_limit(), len(self.counters)
        if not self.strategy.in_step:
            while (everywhere := self.total(STEPS)) < limit:
                yield everywhere
            return
        share = share_of(limit, workers, index, self.plan.top.envs_per_worker)
        while row.steps < share:
            yield workers * row.steps

    def _make(self, rank: Rank) -> Worker:
        set_threads_for(self.plan, self.threads, self.network)
        return Worker(
            self.plan,
            threads=self.threads,
            join=lambda model: self.strategy.join(model, rank.index),
            seeds=self.seeds(rank),
            rank=(rank.index, len(self.counters)),
            replay_lanes=self._replay_lanes(rank),
            make_env=self.make_env,
            network=self.network,
            on_nonfinite=self.on_nonfinite,
        )

    def _replay_lanes(self, rank: Rank) -> ReplayLanes | None:
        if self.shared_lanes is None:
            return None
        lanes = self.shared_lanes
        assert isinstance(lanes, SharedLanes)  # workers have no queues
        own = lanes.own(rank.index, margin=MARGIN if self.takes_over(rank) else 0)
        drawn = lanes.view_all() if self.plan.memory.scope == "global" else own
        return ReplayLanes(own, drawn, lanes.priorities(rank.index))


def share_of(steps: float, workers: int, index: int, lanes: int) -> float:
    """The steps of one worker, if all make the same number of turns or one more."""
    if steps == np.inf:
        return steps
    turns = -int(-steps // lanes)
    return lanes * (turns // workers + (index < turns % workers))
