"""The jobs of a team: who acts and learns, who only acts, who only learns.

Each builds itself where it runs. They share what main made before anybody ran, tell main by
counters and a channel, and never wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from time import sleep
from typing import Any

import numpy as np

from manyhands import dues, envs, optim, worker
from manyhands.actor import Actor, Record
from manyhands.circles import Circle, Pace, among, circles
from manyhands.config import Plan
from manyhands.counters import DRAWN, STEPS, Row
from manyhands.learner import Learner
from manyhands.memory import queue, rings
from manyhands.memory.bank import MARGIN, Bank
from manyhands.memory.replay import Places, Replay
from manyhands.metrics import Laps
from manyhands.published import Published
from manyhands.shelf import Shelf
from manyhands.types import (
    Algorithm,
    Array,
    Batch,
    Channel,
    Demand,
    EnvSpec,
    Failure,
    Seat,
    Source,
    Strategy,
)
from manyhands.worker import MakeEnv, MakeTorso, Worker

SHORTEST_NAP_S, LONGEST_NAP_S = 0.0005, 0.002
LONGEST_WAIT_S = 900.0  # of actors for learners, of whom one that hangs is killed long before


class Naps:
    """Waiting for others: who looks too often takes the core from those it waits for."""

    def __init__(self) -> None:
        self._next_s, self._napped_s = SHORTEST_NAP_S, 0.0

    def nap(self) -> None:
        sleep(self._next_s)
        self._napped_s += self._next_s  # not by the clock: time while all are stopped is nobody's
        self._next_s = min(2 * self._next_s, LONGEST_NAP_S)

    def over(self) -> None:
        self._next_s, self._napped_s = SHORTEST_NAP_S, 0.0

    def give_up_after(self, longest_s: float) -> None:
        if self._napped_s > longest_s:
            raise Failure(
                f"an actor has waited {longest_s:.0f} s for learners that draw nothing",
                "resume the run; a larger --memory.ahead_steps lets actors run further ahead",
            )


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
    shelf: Shelf | None
    threads: int
    since: int  # agent steps of the run before this start: another start, other seeds
    make_env: MakeEnv | None
    network: MakeTorso | None
    on_nonfinite: Callable[[Batch], None]

    def total(self, field: int, seats: range | None = None) -> int:
        """Of all, or of these."""
        of = slice(None) if seats is None else slice(seats.start, seats.stop)
        return int(self.counters[of, field].sum())

    def drawn(self, learners: range) -> int:
        """By all of them. Who is in step with others draws as often as they do: one who lost some
        updates, when it was killed, must not keep the actors of all waiting.
        """
        if not in_step(self.strategy):
            return self.total(DRAWN, learners)
        return len(learners) * int(self.counters[list(learners), DRAWN].max())

    def wanted(self) -> float:
        top = self.plan.top
        return np.inf if top.minutes else top.steps

    def seeds(self, seat: Seat) -> np.random.SeedSequence:
        """The first member's first start is seeded as a worker alone would be."""
        seed = self.plan.top.seed
        if seat.index == seat.incarnation == self.since == 0:
            return np.random.SeedSequence(seed)
        return np.random.SeedSequence((seed, seat.index, seat.incarnation, self.since))

    def _joins(self, learner: Learner, seat: Seat) -> None:
        """With what others know, if there were any before; the target network is one of them."""
        kept = self.shelf.get() if self.shelf is not None and self.takes_over(seat) else {}
        if kept:
            learner.algorithm.restore(kept)
        learner.catch_up()

    def _keep(self, learner: Learner) -> None:
        if self.shelf is not None:
            self.shelf.put(learner.algorithm.state())

    def _published(self) -> Published:
        assert self.published is not None  # main makes it for those who act or learn apart
        return self.published

    def takes_over(self, seat: Seat) -> bool:
        return bool(seat.incarnation or self.since)


@dataclass
class Both(Shared):
    """A worker: it acts and learns."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        made = self._made(seat)
        with closing(made.env):
            yield from self._work(made, seat)

    def _work(self, made: Worker, seat: Seat) -> Iterator[None]:
        row = Row(self.counters, self.episodes, seat)
        if seat.index == 0:
            made.learner.on_refreshed = lambda new: self._keep(made.learner) if new else None
        if seat.index or self.takes_over(seat):
            self._joins(made.learner, seat)
        kept: Any = made.memory
        if self.takes_over(seat) and isinstance(kept, Replay):
            kept.go_on(row.steps, asked(made.algorithm))
        made.laps.begin()
        with row.kept(made.laps, kept):
            for everywhere in self._turns(row, seat.index):
                made.actor.elsewhere = everywhere - made.actor.agent_steps
                if isinstance(kept, Replay):
                    kept.elsewhere = made.actor.elsewhere
                made.turn()
                row.acted(made.actor)
                row.learned(made.learner)
                row.now_and_then(made.laps, kept)
                yield

    def _turns(self, row: Row, index: int) -> Iterator[int]:
        """While there is something to do: the agent steps of all. Of workers in step they are the
        same for each, whoever is a little ahead.
        """
        wanted, hands = self.wanted(), len(self.counters)
        if not in_step(self.strategy):
            while (everywhere := self.total(STEPS)) < wanted:
                yield everywhere
            return
        share = share_of(wanted, hands, index, self.plan.top.envs_per_worker)
        while row.steps < share:
            yield hands * row.steps

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
        return Places(own, self.bank.everyone() if everybodys else own, self.bank.marks(seat.index))


@dataclass
class Acts(Shared):
    """An actor: it steps environments with the weights last published, and records."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        worker.set_threads(self.threads)
        laps, row = Laps(), Row(self.counters, self.episodes, seat)
        actor, record, model = self._made(seat, laps)
        room = _room(self, seat, record, actor.algorithm)
        laps.begin()
        wanted, published, naps = self.wanted(), self._published().reader(), Naps()
        longest_s = max(LONGEST_WAIT_S, 3 * self.plan.top.hang_s)
        with closing(actor.env), row.kept(laps, record):
            while (everywhere := self.total(STEPS)) < wanted:
                if room():
                    if not getattr(record, "taken", 0):  # a rollout is one policy's
                        if published.pull(model):
                            model.changed()
                        laps.lap("pull")
                    actor.elsewhere = everywhere - actor.agent_steps
                    actor.step()
                    row.acted(actor)
                    naps.over()
                else:
                    naps.nap()
                    naps.give_up_after(longest_s)
                    laps.lap("idle")
                row.now_and_then(laps, record)
                yield

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
    most = shared.plan["memory"].ahead_steps
    steps = partial(shared.total, STEPS)
    return Pace(steps, shared.drawn, circle, asked(algorithm), most).has_room


@dataclass
class Learns(Shared):
    """A learner: it draws from what the actors of its circle recorded; the first publishes."""

    def __call__(self, seat: Seat) -> Iterator[None]:
        worker.set_threads(self.threads)
        laps, row = Laps(), Row(self.counters, self.episodes, seat)
        learner = self._made(seat, laps)
        if seat.index == self.plan.top.actors:
            learner.on_refreshed = self._teller(learner)
        self._joins(learner, seat)
        owed = dues.make(
            learner.memory, learner.algorithm.demand, self.total, self._circle(seat),
            drawn=self._drawn_before(row, seat), follows=self.takes_over(seat),
        )  # fmt: skip
        row.drew(owed.drawn())
        wanted, naps = self.wanted(), Naps()
        laps.begin()
        with row.kept(laps):
            while not owed.paid(wanted):
                before = learner.updates
                learner.step(owed.steps())
                if learner.updates > before:
                    naps.over()
                else:
                    naps.nap()
                    laps.lap("idle")
                row.learned(learner)
                row.drew(owed.drawn())
                row.now_and_then(laps)
                yield

    def _drawn_before(self, row: Row, seat: Seat) -> int:
        """In this seat; in step with others what they have, or it would wait for them at the end
        of what they owe.
        """
        learners = self._circle(seat).learners
        if isinstance(self.bank, Bank) and in_step(self.strategy):
            return self.drawn(learners) // len(learners)
        return row.drawn

    def _teller(self, learner: Learner) -> Callable[[bool], None]:
        """The first one's: actors are told of every so many updates, whoever comes later of all
        that the algorithm keeps.
        """
        published, every, told = self._published(), self.plan.top.publish_every, 0

        def tell(new: bool) -> None:
            nonlocal told
            learner.laps.lap("pull")
            if new:
                self._keep(learner)
            if learner.updates - told >= every:
                published.publish(learner.model.vector)
                told = learner.updates
            learner.laps.lap("push")

        return tell

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
        places = Places.alone(lanes, bank.marks(seat.index - top.actors))
        return worker.make_memory(self.plan, lanes.spec, algorithm, rng, places=places)


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
