"""The job of an actor in its own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np

from manyhands import envs, optim
from manyhands.memory.storage import rings
from manyhands.memory.storage.lanes import Lanes
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import making
from manyhands.roles.actor import Actor, Record
from manyhands.roles.backoff import Backoff
from manyhands.roles.counters import STEPS, Row
from manyhands.roles.jobs.shared import Shared, replay_demand
from manyhands.roles.pacing import Pace, pairings
from manyhands.roles.process_setup import set_threads_for
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import Algorithm, Keep, Rank, State

LONGEST_WAIT_S = 900.0  # for learners; a hanging learner is killed long before


@dataclass
class ActorJob(Shared):
    """An actor: it acts with the weights last published, and records what happens."""

    def __call__(self, rank: Rank) -> Iterator[Keep | None]:
        set_threads_for(self.plan, self.threads, self.network)
        stopwatch, row = Stopwatch(), Row(self.counters, self.episodes, rank)
        actor, record, model = self._make(rank, stopwatch)
        self._resume(actor, record, row, rank)
        has_room = _has_room(self, rank, record, actor.algorithm)
        stopwatch.begin()
        limit, published, backoff = self.step_limit(), self._published().reader(), Backoff()
        longest_s = max(LONGEST_WAIT_S, 3 * self.plan.top.hang_s)
        if self.own_state(rank) is not None and published.pull(model):
            model.changed()  # it may be in the middle of a rollout
            self._take_buffers(model)
        with closing(actor.env), row.flushed(stopwatch, record):
            while True:
                everywhere, updates = self.steps_and_updates()
                if everywhere >= limit:
                    break
                if self.budget.has_rest() and has_room():
                    if not record.mid_rollout:  # one policy makes a whole rollout
                        if published.pull(model):
                            model.changed()
                            self._take_buffers(model)
                        stopwatch.lap("pull")
                    self._count_staleness(rank, updates - published.learned)
                    actor.step(everywhere - actor.agent_steps)
                    row.count_actor(actor)
                    backoff.over()
                else:
                    backoff.nap()
                    backoff.give_up_after(longest_s)
                    stopwatch.lap("idle")
                row.flush_periodically(stopwatch, record)
                yield partial(_state, actor, record)

    def _resume(self, actor: Actor, record: Record, row: Row, rank: Rank) -> None:
        own = self.own_state(rank)
        if own is None:
            return
        with self.fitting():
            actor.restore(own["actor"])
            if isinstance(record, rings.Writer) and self.kept_queues:
                record.restore(own["record"])
        row.resumed(actor)

    def _count_staleness(self, rank: Rank, updates: int) -> None:
        """`updates`: since its weights were published. Learners in step make a version together."""
        assert self.acted is not None  # as `published`
        self.acted.applied(rank.index, updates // (self.plan.top.learners if self.in_step else 1))

    def _take_buffers(self, model: optim.FlatModel) -> None:
        if self.buffers is not None:
            model.buffers.load(self.buffers.get())

    def _make(
        self, rank: Rank, stopwatch: Stopwatch
    ) -> tuple[Actor, Lanes | rings.Writer, optim.FlatModel]:
        plan = self.plan
        init, env_seed, act, _ = self.seeds(rank).spawn(4)
        env = envs.make(
            plan.env,
            lanes=plan.top.envs_per_worker,
            seed=env_seed,
            threads=self.threads,
            factory=self.make_env,
        )
        algorithm = making.seeded_algorithm(plan, env.spec, self.network, init)
        assert self.shared_lanes is not None
        record = self.shared_lanes.own(rank.index)
        actor = making.make_actor(
            plan,
            env,
            algorithm,
            record,
            rng=np.random.default_rng(act),
            stopwatch=stopwatch,
            rank=(rank.index, plan.top.actors),
        )
        return actor, record, optim.FlatModel(algorithm.modules)


def _state(actor: Actor, record: Record) -> State:
    kept = record.state() if isinstance(record, rings.Writer) else {}
    return {"actor": actor.state(), "record": kept}


def _has_room(
    shared: Shared, rank: Rank, record: Record, algorithm: Algorithm
) -> Callable[[], bool]:
    """What an actor calls before every step: False if it must wait for the learners."""
    if isinstance(record, rings.Writer):
        return record.has_room
    pairing = next(pairing for pairing in pairings(shared.plan) if rank.index in pairing.actors)
    demand, ahead_steps = replay_demand(algorithm), shared.plan.memory.ahead_steps
    steps, lanes = partial(shared.total, STEPS), shared.shared_lanes
    pace = Pace(steps, shared.drawn, pairing, demand, ahead_steps)
    assert isinstance(lanes, SharedLanes)
    return lambda: lanes.stream.has_room(rank.index) and pace.has_room()
