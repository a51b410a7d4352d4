"""The job of a learner in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from manyhands import optim
from manyhands.memory import queue
from manyhands.memory.replay import Replay, ReplayLanes
from manyhands.memory.storage.imagined import ImaginedMemory
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import making
from manyhands.roles.backoff import Backoff
from manyhands.roles.counters import UPDATES, Row
from manyhands.roles.jobs.shared import Shared, replay_demand
from manyhands.roles.learner import Learner
from manyhands.roles.pacing import Pairing, learner_share, pairings, schedule_for
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import Algorithm, AnyDemand, Keep, Rank, Source, State, Strategy


@dataclass
class LearnerJob(Shared):
    """A learner: it draws from what its actors recorded. The first learner publishes weights."""

    strategy: Strategy

    def __call__(self, rank: Rank) -> Iterator[Keep | None]:
        set_threads_for(self.plan, self.threads, self.network)
        stopwatch, row = Stopwatch(), Row(self.counters, self.episodes, rank)
        learner = self._make(rank, stopwatch)
        row.count_gradients(learner)
        learner.scale_lr = self.scaled_lr
        first = rank.index == self.plan.top.actors
        self._share_buffers(learner, first=first)
        if first:
            learner.on_refreshed = self._publisher(learner, row)
        exact = self._resume(learner, row, rank)
        schedule = schedule_for(
            learner.memory, learner.demand, self.total, self._pairing(rank),
            drawn=self._drawn_before(row, rank), resumes=self.takes_over(rank) and not exact,
        )  # fmt: skip
        row.set_drawn(schedule.drawn())
        limit, backoff = self.step_limit(), Backoff()
        stopwatch.begin()
        with row.flushed(stopwatch):
            while not schedule.finished(limit):
                before = learner.updates
                learner.step(schedule.advance())
                if learner.updates > before:
                    backoff.over()
                else:
                    backoff.nap()
                    stopwatch.lap("idle")
                row.count_learner(learner)
                row.set_drawn(schedule.drawn())
                row.flush_periodically(stopwatch)
                yield partial(_state, learner)

    def _resume(self, learner: Learner, row: Row, rank: Rank) -> bool:
        """True: with its own state from the checkpoint. Else it catches up with the others."""
        own = self.own_state(rank)
        if own is None:
            self._catch_up(learner, rank)
            return False
        with self.fitting():
            learner.restore(own["learner"])
            if isinstance(learner.memory, Replay):
                learner.memory.restore(own["memory"])
        row.resumed(learner=learner)
        learner.take_newest()
        return True

    def _drawn_before(self, row: Row, rank: Rank) -> int:
        """Batches drawn by earlier incarnations of this rank.

        Learners in step share one count. With a lower one this learner would have updates left
        when the others end, and would wait for them.
        """
        learners = self._pairing(rank).learners
        if isinstance(self.shared_lanes, SharedLanes) and self.in_step:
            return self.drawn(learners) // len(learners)
        return row.drawn

    def _publisher(self, learner: Learner, row: Row) -> Callable[[bool], None]:
        """Called after each pull of the first learner. Keeps the algorithm's state for processes
        that start later, and publishes weights every `publish_every` updates.
        """
        published, every, last = self._published(), self.plan.top.publish_every, 0

        def publish(new: bool) -> None:
            nonlocal last
            learner.stopwatch.lap("pull")
            if new:
                self._keep_state(learner)
            if learner.updates - last >= every:
                alone = self.plan.top.learners == 1  # then it need not look at the others
                learned = row.updates if alone else self.total(UPDATES)
                published.publish(learner.model.vector, learned)
                last = learner.updates
            learner.stopwatch.lap("push")

        return publish

    def _pairing(self, rank: Rank) -> Pairing:
        return next(pairing for pairing in pairings(self.plan) if rank.index in pairing.learners)

    def _make(self, rank: Rank, stopwatch: Stopwatch) -> Learner:
        plan, index = self.plan, rank.index - self.plan.top.actors
        init, _, _, draw = self.seeds(rank).spawn(4)
        algorithm = making.seeded_algorithm(plan, self.spec, self.network, init)
        if self.imagined is not None:
            at_once = plan.algorithm.imagined_at_once
            imagined = ImaginedMemory(self.imagined, at_once=at_once, writer=index)
            algorithm.divide(index, plan.top.learners, imagined)  # type: ignore[attr-defined]
        demand = self._demand(algorithm, rank)
        memory = self._memory(algorithm, demand, rank, np.random.default_rng(draw))
        model = optim.FlatModel(algorithm.modules)
        parameters = self.strategy.join(model, index)
        return making.make_learner(
            plan,
            algorithm,
            memory,
            parameters,
            model,
            demand=demand,
            stopwatch=stopwatch,
            on_nonfinite=self.on_nonfinite,
        )

    def _demand(self, algorithm: Algorithm, rank: Rank) -> AnyDemand:
        """This learner's share of what the algorithm demands of a replay."""
        if isinstance(self.shared_lanes, queue.Queues):
            return algorithm.demand
        pairing = self._pairing(rank)
        return learner_share(pairing.share_of(replay_demand(algorithm)), len(pairing.learners))

    def _memory(
        self, algorithm: Algorithm, demand: AnyDemand, rank: Rank, rng: np.random.Generator
    ) -> Source:
        shared_lanes, top = self.shared_lanes, self.plan.top
        assert shared_lanes is not None
        if isinstance(shared_lanes, queue.Queues):
            return shared_lanes.inbox(rank.index - top.actors, top.learners)
        lanes = shared_lanes.view(self._pairing(rank).actors)
        replay_lanes = ReplayLanes.alone(lanes, shared_lanes.priorities(rank.index - top.actors))
        return making.make_memory(
            self.plan, lanes.spec, algorithm, rng, demand=demand, replay_lanes=replay_lanes
        )


def _state(learner: Learner) -> State:
    memory = learner.memory
    return {
        "learner": learner.state(),
        "memory": memory.state() if isinstance(memory, Replay) else {},
    }
