"""Everybody's lanes between real processes: rows of all are drawn, none of them torn."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import cloudpickle
import numpy as np

from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.config import plans
from manyhands.memory import Config, replay
from manyhands.memory.replay import ReplayLanes
from manyhands.memory.storage.shared_lanes import MARGIN, SharedLanes
from manyhands.roles import jobs
from manyhands.types import Demand, EnvSpec, Job, Rank, Rows

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest
SPEC = EnvSpec("toy", 1, (64,), "float32", 1, 5)
ROWS, FEW = 200, 60
SECOND = 1_000_000.0  # the second member's rows begin there


def row(number: float) -> Rows:
    """All of it the same number, so that halves of two do not fit."""
    frame = np.full((1, 64), number, np.float32)
    return Rows(
        frame=frame, action=np.array([int(number) % 5], np.int32),
        reward=np.array([number], np.float32), discount=np.ones(1, np.float32),
        first=np.zeros(1, bool), ended=np.zeros(1, bool), last_frame=frame[:0],
        next_frame=frame + 1, columns={},
    )  # fmt: skip


def test_rows_of_all_are_drawn_in_proportion_and_none_is_torn() -> None:
    """One writes without end, the other a few rows, and draws."""
    with closing(Processes()) as backend:
        shared_lanes = SharedLanes(SPEC, ROWS, members=2, columns={}, backend=backend)
        over, found = (
            backend.allocate((1,), np.dtype(np.int64)),
            backend.allocate((4,), np.dtype(np.int64)),
        )

        def write(_: Rank) -> Iterator[None]:
            own, number = shared_lanes.own(0), 0.0
            while not over[0]:
                for _row in range(100):
                    own.extend(row(number))
                    number = (number + 1) % 500_000
                yield

        def draw(_: Rank) -> Iterator[None]:
            own = shared_lanes.own(1)
            for number in range(FEW):
                own.extend(row(SECOND + number))
            rng, lanes = np.random.default_rng(1), shared_lanes.view_all()
            while lanes.filled < FEW + ROWS - MARGIN:  # the other has begun
                lanes.refresh()
                yield
            replay_lanes = ReplayLanes.alone(lanes)
            memory = replay.make(
                shared_lanes.whole, Config(), columns={}, rng=rng, replay_lanes=replay_lanes
            )
            for turn in range(1000):
                memory.steps_seen = 64 * (turn + 1)
                for batch in memory.due(Demand(64, 64.0, 0, 1, 0.9), lambda drawn: drawn):
                    numbers = batch.reward[:, None]
                    whole = (batch.observation == numbers).all()
                    followed = (batch.next_observation == numbers + 1).all()
                    found[0] += not (bool(whole) and bool(followed))
                    found[1] += len(numbers)
                    found[2] += int((numbers >= SECOND).sum())
                yield
            found[3], over[0] = memory.torn_rows, 1

        assert not any(backend.run([Job(write), Job(draw)]))
    torn, drawn, of_the_second, drawn_again = found.tolist()
    assert torn == 0
    assert drawn_again > 0, "or nothing was tried"
    assert drawn > 10_000
    assert 0.7 < of_the_second / drawn / (FEW / (FEW + ROWS)) < 1.5


def places_of(scope: str) -> Any:
    plan = plans.resolve(
        "cartpole",
        {"run": {"strategy": "hogwild", "workers": 2}, "memory": {"scope": scope}},
    )
    backend = InProcess()
    shared_lanes: Any = SharedLanes(SPEC, ROWS, members=2, columns={}, backend=backend)
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "strategy",
            "episodes",
            "published",
            "kept_state",
            "buffers",
            "make_env",
            "network",
            "on_nonfinite",
            "in_step",
            "budget",
            "imagined",
            "acted",
        )
    )
    counters, lr_scale = (backend.table(2, 8, np.dtype(np.float64)) for _ in range(2))
    worker = jobs.WorkerJob(
        plan=plan,
        spec=SPEC,
        shared_lanes=shared_lanes,
        counters=counters,
        ranks=2,
        lr_scale=lr_scale,
        saved={},
        kept_queues=False,
        threads=1,
        since=0,
        **nothing,
    )
    shared_lanes.own(0).extend(row(1))
    shared_lanes.own(0).extend(row(2))
    return worker._replay_lanes(Rank(1, 0, "worker"))


def test_the_scope_decides_which_lanes_a_worker_draws_from() -> None:
    for scope, filled in (("global", 2), ("local", 0)):
        replay_lanes = places_of(scope)
        replay_lanes.drawn.refresh()
        assert (replay_lanes.drawn.filled, replay_lanes.written.filled) == (filled, 0)
