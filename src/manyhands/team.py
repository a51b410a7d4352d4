"""A crew of many: workers in processes of their own, seen from main by counters and a channel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from manyhands import circles, counters, envs, members, memory, optim, shelf, worker
from manyhands.config import Plan
from manyhands.crew import diagnostics_of, fault_of, restore_strategy, staleness_of
from manyhands.memory.bank import Bank
from manyhands.memory.queue import Queues
from manyhands.metrics import PARTS_OF_TIME, Episode, Scores
from manyhands.published import Published
from manyhands.types import (
    Array,
    Backend,
    BadRequest,
    Batch,
    Break,
    Demand,
    EnvSpec,
    Failure,
    Fault,
    Job,
    Post,
    QueueDemand,
    State,
)
from manyhands.worker import MakeEnv, MakeTorso

EPISODES_WAITING = 1024  # of each member, until main looks; more are lost, their steps counted
PARKING_S = 30.0
ACTORS_NICE = 5  # actors wait for a learner that gets no core; a learner seldom for one actor


class Team:
    """Many workers in processes of their own. Main has the strategy, counters and a channel."""

    def __init__(
        self,
        plan: Plan,
        backend: Backend,
        *,
        threads: int,
        make_env: MakeEnv | None,
        network: MakeTorso | None,
        on_nonfinite: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        self.plan, self.backend, self.threads = plan, backend, threads
        self._make_env, self._network, self._on_nonfinite = make_env, network, on_nonfinite
        self._breaks: list[Fault] = []
        top = plan.top
        self.apart = top.actors > 0
        acting, learners = (top.actors, top.learners) if self.apart else (top.workers, top.workers)
        self.spec = _spec(plan, make_env)
        init = np.random.SeedSequence(plan.top.seed).spawn(1)[0]
        self.algorithm = worker.seeded_algorithm(plan, self.spec, network, init)
        self.model = optim.FlatModel(self.algorithm.modules)
        self.strategy = worker.found(plan, backend, self.model, learners)
        self.scores = Scores(1)
        self.preflight, self.memory_bytes = worker.needed(plan, self.spec, self.algorithm, acting)
        self.bank = self._bank(acting)
        self.published = Published(backend, self.model.vector) if self.apart else None
        self.shelf = shelf.make(backend, self.algorithm.state())
        self.restarts = 0
        self._began_s, self._before_s = perf_counter(), 0.0
        self._since, self._closed = 0, False
        self._newest: dict[str, float] = {}
        seats = acting + learners if self.apart else acting
        self._counters = backend.allocate((seats, len(counters.FIELDS)), np.dtype(np.float64))
        self._channel = backend.channel(EPISODES_WAITING)

    def _bank(self, acting: int) -> Bank | Queues | None:
        """A replay lies where who follows finds it; a rollout is given up with its worker."""
        config, demand = self.plan["memory"], self.algorithm.demand
        given: dict[str, Any] = {
            "members": acting,
            "columns": self.algorithm.remembers,
            "allocate": self.backend.allocate,
        }
        if isinstance(demand, Demand):
            self._refuse_too_few_actors()
            rows = memory.rows_per_lane(self.spec, max(1, config.capacity // acting))
            return Bank(self.spec, rows, marked=self._marked(demand, acting), **given)
        if isinstance(demand, QueueDemand) and self.apart:
            return self._queues(demand, given)
        if self.apart:
            raise BadRequest(
                f"{self.plan.top.algorithm} learns from what it has just done itself, so "
                "--actors apart from learners make no sense",
                "use --workers N with a strategy that shares parameters",
            )
        return None

    def _marked(self, demand: Demand, acting: int) -> list[int]:
        """Of how many members each learner has the rows, if it draws by priorities."""
        config = self.plan["memory"]
        if memory.kind_of(config, demand) != "prioritized":
            return []
        if self.apart:
            each = circles.circles(self.plan)
            return [len(circle.actors) for circle in each for _ in circle.learners]
        return [acting if config.scope == "global" else 1] * acting

    def _queues(self, demand: QueueDemand, given: dict[str, Any]) -> Queues:
        self._refuse_too_few_actors()
        return Queues(self.spec, demand, learners=self.plan.top.learners, **given)

    def _refuse_too_few_actors(self) -> None:
        """Where every learner has actors of its own."""
        top, shared = self.plan.top, self.plan["memory"].scope == "global"
        if not self.apart or top.learners <= top.actors:
            return
        if isinstance(self.algorithm.demand, Demand) and shared:
            return
        raise BadRequest(
            f"--learners {top.learners}, --actors {top.actors}: each learner needs an actor",
            f"use --actors {top.learners} or more, or a replay with --memory.scope global",
        )

    @property
    def agent_steps(self) -> int:
        return int(self._counters[:, counters.STEPS].sum())

    @property
    def updates(self) -> int:
        return self.strategy.version()

    @property
    def gradients(self) -> int:
        return int(self._counters[:, [counters.UPDATES, counters.NONFINITE]].sum())

    @property
    def caught_up(self) -> bool:
        demand = self.algorithm.demand
        if not self.apart or not isinstance(demand, Demand):
            return True
        return all(self._has_caught_up(circle, demand) for circle in circles.circles(self.plan))

    def _has_caught_up(self, circle: circles.Circle, demand: Demand) -> bool:
        share = circles.among(circle.share_of(demand), len(circle.learners))
        recorded = self._counters[list(circle.actors), counters.STEPS].sum()
        due = (recorded - share.warmup_steps) // share.steps_per_update
        return bool((self._counters[list(circle.learners), counters.DRAWN] >= due).all())

    def jobs(self) -> list[Job]:
        shared = (
            self.plan,
            self.spec,
            self.strategy,
            self._counters,
            self._channel,
            self.bank,
            self.published,
            self.shelf,
            self.threads,
            self._since,
            self._make_env,
            self._network,
            self._on_nonfinite,
        )
        top = self.plan.top
        if not self.apart:
            return [Job(members.Both(*shared), threads=self.threads)] * top.workers
        act = Job(members.Acts(*shared), role="actor", threads=self.threads, nice=ACTORS_NICE)
        learn = Job(members.Learns(*shared), role="learner", threads=self.threads)
        return [act] * top.actors + [learn] * top.learners

    def look(self) -> None:
        for item in self._channel.drain():
            if "episode" in item:
                score, length, steps, judged = item["episode"]
                self.scores.ended(Episode(float(score), int(length), int(steps), bool(judged)))
            elif "break" in item:
                self._breaks.append(fault_of(Post(*item["who"]), Break(*item["break"])))
            else:
                self._newest = item["diagnostics"]

    @contextmanager
    def newest(self) -> Iterator[None]:
        """Once all have left main's own copy is the last."""
        if not self._closed:
            self.model.overwrite(self.strategy.newest())
        yield

    def begin(self) -> None:
        """Every worker has its own clock; what it has not counted yet is ours to tell."""
        self._began_s = perf_counter()

    def rest(self) -> None:
        """Workers go on while main does something else."""

    def note(self, fault: Fault) -> None:
        self.restarts += fault.action.startswith("restarted")

    def take_breaks(self) -> list[Fault]:
        breaks, self._breaks = self._breaks, []
        return breaks

    def faults(self) -> dict[str, int]:
        skipped, torn = self._counters[:, [counters.NONFINITE, counters.TORN]].sum(0)
        restarts = self.restarts
        return {"restarts": restarts, "nonfinite_skipped": int(skipped), "torn_rows": int(torn)}

    def time_split(self) -> dict[str, dict[str, float]]:
        """What nobody counted is the time it takes to start, to be followed and to leave."""
        acting = self.plan.top.actors
        seats = {"actor": slice(acting), "learner": slice(acting, None)}
        return {
            role: self._spent(rows)
            for role, rows in (seats if self.apart else {"worker": slice(None)}).items()
        }

    def _spent(self, seats: slice) -> dict[str, float]:
        spent = self._counters[seats, counters.SPENT]
        split = dict(zip(PARTS_OF_TIME, map(float, spent.sum(0)), strict=True))
        split["other"] += max(0.0, len(spent) * self._elapsed_s() - float(spent.sum()))
        return split

    def _elapsed_s(self) -> float:
        return self._before_s + perf_counter() - self._began_s

    def memory_fill(self) -> float | None:
        filled, capacity = self._counters[:, [counters.FILLED, counters.CAPACITY]].sum(0)
        return float(filled / capacity) if capacity else None

    def diagnostics(self) -> Mapping[str, float]:
        return {**self._newest, **diagnostics_of(self.strategy), **self._pace()}

    def _pace(self) -> dict[str, float]:
        """How often a step was drawn, where those who act do not learn."""
        demand = self.algorithm.demand
        recorded = self.agent_steps - getattr(demand, "warmup_steps", 0)
        if not self.apart or recorded <= 0:
            return {}
        if isinstance(demand, Demand):
            drawn = self._counters[:, counters.UPDATES].sum() * demand.batch_size
        else:
            assert isinstance(demand, QueueDemand)  # others do not act apart
            drawn = self._counters[:, counters.DRAWN].sum() * demand.batch_steps(self.spec.lanes)
        return {"charts/samples_per_insert": float(drawn / recorded)}

    def staleness(self) -> dict[str, float]:
        return staleness_of(self.strategy)

    def staff(self) -> list[dict[str, Any]]:
        return [
            {
                "id": post.index,
                "role": post.role,
                "pid": post.pid,
                "incarnation": post.incarnation,
                "agent_steps": self._steps_of(post.role, post.index),
            }
            for post in self.backend.staff()
        ]

    def _steps_of(self, role: str, index: int) -> int:
        acts = role in ("worker", "actor")
        return int(self._counters[index, counters.STEPS]) if acts else 0

    @contextmanager
    def parked(self) -> Iterator[None]:
        """Everybody waits between two turns: nothing is half done."""
        late = self.backend.park(PARKING_S)
        try:
            if late:
                raise Failure(
                    f"worker {min(late)} did not come to rest within {PARKING_S:.0f} s",
                    "the checkpoint before is still good",
                )
            yield
        finally:
            self.backend.go_on()

    def state(self, *, fresh_episodes: bool = False) -> State:  # noqa: ARG002
        """Running episodes are not kept: who acts starts anew, as after a kill."""
        self.look()
        return {
            "algorithm": {} if self.shelf is None else self.shelf.get(),
            "memory": {"lanes": self.bank.state()} if isinstance(self.bank, Bank) else {},
            "counters": self._counters.copy(),
            "scores": self.scores.state(),
            "strategy": self.strategy.state(),
            "ledger": self.strategy.ledger.state(),
            "restarts": self.restarts,
            "elapsed_s": self._elapsed_s(),
        }

    def restore(self, weights: Mapping[str, Array], state: State, replay: State | None) -> None:
        self.model.load(weights)
        if isinstance(self.bank, Bank) and replay is not None:
            self.bank.restore(replay)
        if self.published is not None:
            self.published.publish(self.model.vector)
        if self.shelf is not None and state.get("algorithm"):
            self.shelf.put(state["algorithm"])
        restore_strategy(self.strategy, self.model, state)
        self.scores.restore(state["scores"])
        self._counters[:] = state["counters"]
        self.restarts = int(state["restarts"])
        self._before_s = float(state.get("elapsed_s", 0.0))
        self._since = self.agent_steps

    def close(self) -> None:
        """What is kept in shared memory goes with the backend."""
        self._closed = True


def _spec(plan: Plan, make_env: MakeEnv | None) -> EnvSpec:
    """What a worker's environments will be like: found by making them once."""
    seed = np.random.SeedSequence(plan.top.seed)
    lanes = plan.top.envs_per_worker
    env = envs.make(plan["env"], lanes=lanes, seed=seed, threads=1, factory=make_env)
    try:
        return env.spec
    finally:
        env.close()
