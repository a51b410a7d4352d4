"""The jobs of a team: who acts and learns, who only acts, who only learns.

Each builds itself where it runs. They share what main made before anybody ran, tell main by
counters and a channel, and never wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, NamedTuple

import numpy as np

from manyhands import envs, optim, worker
from manyhands.actor import Actor, Record
from manyhands.config import Plan
from manyhands.learner import Learner
from manyhands.memory import queue, rings
from manyhands.memory.bank import MARGIN, Bank
from manyhands.memory.replay import AT_ONCE, Places, Replay
from manyhands.metrics import PARTS_OF_TIME, Laps
from manyhands.published import Published
from manyhands.types import (
    Algorithm,
    Array,
    Batch,
    Channel,
    Demand,
    EnvSpec,
    Seat,
    Source,
    Strategy,
)
from manyhands.worker import MakeEnv, MakeTorso, Worker

NUMBERS = ("agent_steps", "updates", "nonfinite", "drawn", "torn", "filled", "capacity")
FIELDS = (*NUMBERS, *PARTS_OF_TIME)
STEPS, UPDATES, NONFINITE, DRAWN, TORN, FILLED, CAPACITY = range(len(NUMBERS))
SPENT = slice(len(NUMBERS), None)  # seconds, by part
WAIT_S = 0.0005


@dataclass
class Shared:
    """What main made, the same for all."""

    plan: Plan
    spec: EnvSpec
    strategy: Strategy
    counters: Array  # [seats, FIELDS]; one writer a row
    episodes: Channel
    bank: Bank | queue.Queues | None  # None: memories that nobody else reads and nobody inherits
    published: Published | None
    threads: int
    since: int  # agent steps of the run before this start: another start, other seeds
    make_env: MakeEnv | None
    network: MakeTorso | None
    on_nonfinite: Callable[[Batch], None]

    def total(self, field: int, seats: range | None = None) -> int:
        """Of all, or of these."""
        of = slice(None) if seats is None else slice(seats.start, seats.stop)
        return int(self.counters[of, field].sum())

    def wanted(self) -> float:
        top = self.plan.top
        return np.inf if top.minutes else top.steps

    def seeds(self, seat: Seat) -> np.random.SeedSequence:
        """The first member's first start is seeded as a worker alone would be."""
        seed = self.plan.top.seed
        if seat.index == seat.incarnation == self.since == 0:
            return np.random.SeedSequence(seed)
        return np.random.SeedSequence((seed, seat.index, seat.incarnation, self.since))

    def _published(self) -> Published:
        assert self.published is not None  # main makes it for those who act or learn apart
        return self.published

    def takes_over(self, seat: Seat) -> bool:
        return bool(seat.incarnation or self.since)


class Row:
    """A seat's counters, those of who sat there before included."""

    def __init__(self, shared: Shared, seat: Seat) -> None:
        self._row, self._seat = shared.counters[seat.index], seat
        self._before = self._row.copy()
        self._episodes = shared.episodes

    @property
    def steps(self) -> int:
        return int(self._row[STEPS])

    def acted(self, actor: Actor) -> None:
        self._row[STEPS] = self._before[STEPS] + actor.agent_steps
        for episode in actor.scores.take_fresh():
            self._episodes.put({"episode": list(episode)})
        for found in actor.take_breaks():
            seat = self._seat
            me = (seat.role, seat.index, seat.incarnation, os.getpid())
            self._episodes.put({"break": list(found), "who": me})

    def learned(self, learner: Learner) -> None:
        kept: Any = learner.memory
        own = (learner.updates, learner.nonfinite_skipped)
        self._row[UPDATES : NONFINITE + 1] = self._before[UPDATES : NONFINITE + 1] + own
        self._row[TORN] = self._before[TORN] + getattr(kept, "torn_rows", 0)
        newest = learner.diagnostics_now_and_then()
        if newest:
            self._episodes.put({"diagnostics": dict(newest)})

    @property
    def drawn(self) -> int:
        return int(self._row[DRAWN])

    def drew(self, number: int) -> None:
        """Updates that were drawn for, and those forgiven: of all who sat here."""
        self._row[DRAWN] = number

    def keeps(self, filled: int, capacity: int) -> None:
        self._row[FILLED : CAPACITY + 1] = filled, capacity

    def spent(self, laps: Laps) -> None:
        self._row[SPENT] = self._before[SPENT] + list(laps.seconds.values())


@dataclass
class Both(Shared):
    """A worker: it acts and learns."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        made = self._made(seat)
        row = Row(self, seat)
        if seat.index or self.takes_over(seat):
            made.learner.catch_up()
        kept: Any = made.memory
        if self.takes_over(seat) and isinstance(kept, Replay):
            kept.go_on(row.steps, asked(made.algorithm))
        made.laps.begin()
        while self._goes_on(row, seat.index):
            made.actor.elsewhere = self._everywhere(row) - made.actor.agent_steps
            if isinstance(kept, Replay):
                kept.elsewhere = made.actor.elsewhere
            made.turn()
            row.acted(made.actor)
            row.learned(made.learner)
            row.keeps(kept.filled, kept.capacity)
            row.spent(made.laps)
            yield
        made.env.close()

    def _goes_on(self, row: Row, index: int) -> bool:
        if not in_step(self.strategy):
            return self.total(STEPS) < self.wanted()
        lanes = self.plan.top.envs_per_worker
        return row.steps < share_of(self.wanted(), len(self.counters), index, lanes)

    def _everywhere(self, row: Row) -> int:
        """Agent steps of all; of workers in step the same for each, whoever is a little ahead."""
        in_all = len(self.counters) * row.steps
        return in_all if in_step(self.strategy) else self.total(STEPS)

    def _made(self, seat: Seat) -> Worker:
        worker.set_threads(self.threads)
        return Worker(
            self.plan,
            threads=self.threads,
            join=lambda model: self.strategy.join(model, seat.index),
            seeds=self.seeds(seat),
            seat=(seat.index, len(self.counters)),
            places=self._places(seat),
            make_env=self.make_env,
            network=self.network,
            on_nonfinite=self.on_nonfinite,
        )

    def _places(self, seat: Seat) -> Places | None:
        if self.bank is None:
            return None
        assert isinstance(self.bank, Bank)  # queues are for those who act or learn apart
        own = self.bank.own(seat.index, margin=MARGIN if self.takes_over(seat) else 0)
        everybodys = self.plan["memory"].scope == "global"
        return Places(own, self.bank.everyone()) if everybodys else Places.alone(own)


@dataclass
class Acts(Shared):
    """An actor: it steps environments with the weights last published, and records."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        worker.set_threads(self.threads)
        laps, row = Laps(), Row(self, seat)
        actor, record, model = self._made(seat, laps)
        room = _room(self, seat, record, actor.algorithm)
        laps.begin()
        while self.total(STEPS) < self.wanted():
            if room():
                self._published().pull(model)
                laps.lap("pull")
                actor.elsewhere = self.total(STEPS) - actor.agent_steps
                actor.step()
                row.acted(actor)
            else:
                sleep(WAIT_S)
                laps.lap("idle")
            row.keeps(getattr(record, "filled", 0), getattr(record, "capacity", 0))
            row.spent(laps)
            yield
        actor.env.close()

    def _made(self, seat: Seat, laps: Laps) -> tuple[Actor, Record, optim.FlatModel]:
        plan = self.plan
        init, env_seed, act, _ = self.seeds(seat).spawn(4)
        env = envs.make(
            plan["env"],
            lanes=plan.top.envs_per_worker,
            seed=env_seed,
            threads=self.threads,
            factory=self.make_env,
        )
        algorithm = worker.seeded_algorithm(plan, env.spec, self.network, init)
        assert self.bank is not None
        record = self.bank.own(seat.index)
        actor = worker.make_actor(
            plan,
            env,
            algorithm,
            record,
            rng=np.random.default_rng(act),
            laps=laps,
            seat=(seat.index, plan.top.actors),
        )
        return actor, record, optim.FlatModel(algorithm.modules)


def _room(shared: Shared, seat: Seat, record: Record, algorithm: Algorithm) -> Callable[[], bool]:
    """What an actor asks before every step: whether it may, or is to wait for the learners."""
    if isinstance(record, rings.Writer):
        return record.has_room
    circle = next(circle for circle in circles(shared.plan) if seat.index in circle.actors)
    return Pace(shared, circle, asked(algorithm)).has_room


@dataclass
class Learns(Shared):
    """A learner: it draws from what the actors of its circle recorded; the first publishes."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        worker.set_threads(self.threads)
        laps, row = Laps(), Row(self, seat)
        learner = self._made(seat, laps)
        learner.catch_up()
        memory = learner.memory
        if isinstance(memory, Replay) and self.takes_over(seat):
            recorded = self.total(STEPS, self._circle(seat).actors)
            memory.go_on(recorded, asked(learner.algorithm), row.drawn)
        told = 0
        laps.begin()
        while not self._over(learner, seat):
            before = learner.updates
            learner.step(self._steps(learner, seat))
            if self._first(seat) and learner.updates - told >= self.plan.top.publish_every:
                self._published().publish(learner.model.vector)
                told = learner.updates
                laps.lap("push")
            if learner.updates == before:
                sleep(WAIT_S)
                laps.lap("idle")
            row.learned(learner)
            if isinstance(memory, Replay):
                row.drew(memory.updates_drawn + memory.updates_forgiven)
            row.spent(laps)
            yield

    def _first(self, seat: Seat) -> bool:
        return seat.index == self.plan.top.actors

    def _circle(self, seat: Seat) -> Circle:
        return next(circle for circle in circles(self.plan) if seat.index in circle.learners)

    def _made(self, seat: Seat, laps: Laps) -> Learner:
        plan, index = self.plan, seat.index - self.plan.top.actors
        init, _, _, draw = self.seeds(seat).spawn(4)
        algorithm = worker.seeded_algorithm(plan, self.spec, self.network, init)
        memory = self._memory(algorithm, seat, np.random.default_rng(draw))
        model = optim.FlatModel(algorithm.modules)
        parameters = self.strategy.join(model, index)
        return worker.make_learner(
            plan, algorithm, memory, parameters, model, laps=laps, on_nonfinite=self.on_nonfinite
        )

    def _memory(self, algorithm: Algorithm, seat: Seat, rng: np.random.Generator) -> Source:
        bank, top = self.bank, self.plan.top
        assert bank is not None
        if isinstance(bank, queue.Queues):
            return bank.inbox(seat.index - top.actors, top.learners)
        circle = self._circle(seat)
        algorithm.demand = among(circle.share_of(asked(algorithm)), len(circle.learners))
        lanes = bank.some(circle.actors)
        return worker.make_memory(self.plan, lanes.spec, algorithm, rng, places=Places.alone(lanes))

    def _over(self, learner: Learner, seat: Seat) -> bool:
        """When all steps are taken, and what they pay for is learned."""
        steps, memory = self.total(STEPS), learner.memory
        if steps < self.wanted() or not isinstance(memory, Replay):
            return steps >= self.wanted()
        recorded = self.total(STEPS, self._circle(seat).actors)
        return memory.steps_seen >= recorded and not memory.owes(asked(learner.algorithm))

    def _steps(self, learner: Learner, seat: Seat) -> int:
        """The steps that count now: so many more in a turn that nobody is kept waiting long."""
        total, memory = self.total(STEPS), learner.memory
        if not isinstance(memory, Replay):
            return total
        demand, recorded = asked(learner.algorithm), self.total(STEPS, self._circle(seat).actors)
        chunk = max(1, int(AT_ONCE * demand.steps_per_update))
        memory.steps_seen = min(recorded, max(memory.steps_seen, demand.warmup_steps) + chunk)
        memory.elsewhere = max(0, total - recorded)
        return memory.steps_seen + memory.elsewhere


def in_step(strategy: Strategy) -> bool:
    """Whether everybody makes as many updates as everybody else, at the same time."""
    return bool(getattr(strategy, "in_step", False))


def share_of(steps: float, hands: int, index: int, lanes: int) -> float:
    """Of workers in step, so that all are there when the steps asked for are."""
    if steps == np.inf:
        return steps
    turns = -int(-steps // lanes)
    return lanes * (turns // hands + (index < turns % hands))


def asked(algorithm: Algorithm) -> Demand:
    """What it asks of a replay; other memories are not in a bank."""
    assert isinstance(algorithm.demand, Demand)
    return algorithm.demand


def among(demand: Demand, learners: int) -> Demand:
    """One learner's share of the updates that all steps pay for."""
    return replace(demand, steps_per_update=demand.steps_per_update * learners)


class Circle(NamedTuple):
    """Seats of learners, and of the actors whose experience they draw from."""

    actors: range
    learners: range
    everyone: int  # who acts, of all circles

    def share_of(self, demand: Demand) -> Demand:
        """Of the warm-up, which is a total. Updates are paid for by steps, here by its own."""
        return replace(demand, warmup_steps=demand.warmup_steps * len(self.actors) // self.everyone)


def circles(plan: Plan) -> list[Circle]:
    """One of all; or of each learner with actors of its own, where its memory is local."""
    actors, learners = plan.top.actors, plan.top.learners
    many = learners if plan["memory"].scope == "local" else 1
    cuts = [-(-actors * n // many) for n in range(many + 1)]
    each = learners // many
    return [
        Circle(range(*cuts[n : n + 2]), range(actors + each * n, actors + each * (n + 1)), actors)
        for n in range(many)
    ]


class Pace:
    """Keeps actors from running away: learners draw for every step, at their own speed."""

    def __init__(self, shared: Shared, circle: Circle, demand: Demand) -> None:
        self._shared, self._circle, self._demand = shared, circle, circle.share_of(demand)
        self._most = shared.plan["memory"].ahead_steps

    def has_room(self) -> bool:
        drawn = self._shared.total(DRAWN, self._circle.learners)
        recorded = self._shared.total(STEPS, self._circle.actors) - self._demand.warmup_steps
        return bool(recorded - drawn * self._demand.steps_per_update <= self._most)
