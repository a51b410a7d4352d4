"""What strategies promise many workers: a stop inside a push, what is lost, how stale it is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import manyhands as mh
from manyhands import optim
from manyhands.backends.inprocess import InProcess
from manyhands.backends.processes import Processes
from manyhands.config import registry
from manyhands.types import Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers need no pytest

INT64 = np.dtype(np.int64)
SIZE = 410  # numbers: enough that each of three shards has some
WAIT = {"lock": True, "hogwild": False, "parameter_server": False}  # for one stopped in a push


def make_model() -> optim.FlatModel:
    torch.manual_seed(5)
    model = optim.FlatModel({"a": nn.Linear(40, 10)})
    model.vector.zero_()
    return model


def found(strategy: str, backend: Any, learners: int, **values: Any) -> Any:
    module, model = registry.load("strategies", strategy), make_model()
    return module.make(
        module.Config(**values),
        backend=backend,
        vector=model.vector,
        parts=model.parts,
        optimizer=optim.Config(name="sgd", momentum=0.0),
        learners=learners,
    )


@pytest.mark.parametrize("strategy", WAIT)
def test_one_stopped_inside_a_push(strategy: str) -> None:
    """Without a lock it holds up no other. With a lock the others wait until it dies."""
    with closing(Processes()) as backend:
        shared = found(strategy, backend, 2)
        pushes, stopped = backend.allocate((2,), INT64), backend.allocate((1,), INT64)
        enough = backend.allocate((1,), INT64)

        def stop_inside(frame: Any, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_name in ("step", "tell"):
                sys.setprofile(None)
                stopped[0] = os.getpid()
                os.kill(os.getpid(), signal.SIGSTOP)

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            model = make_model()
            hold = shared.join(model, rank.index)
            while not enough[0]:
                version = hold.pull(model)
                if (rank.index, rank.incarnation) == (0, 0) and pushes.min() >= 5:
                    sys.setprofile(stop_inside)
                hold.push(torch.ones(SIZE), part="a", version=version, lr=1e-3)
                pushes[rank.index] += 1
                yield

        running = backend.run([Job(work), Job(work)])
        while not stopped[0]:
            next(running)
        list(islice(running, 10))  # it may have been in the middle of something
        before = int(pushes[1])
        if WAIT[strategy]:
            list(islice(running, 25))
            assert pushes[1] == before
        else:
            while pushes[1] < before + 500:
                next(running)
        os.kill(int(stopped[0]), signal.SIGKILL)
        after, faults = int(pushes[1]), list[Any]()
        while pushes[1] < after + 500 or not faults:
            faults += [fault for fault in (next(running),) if fault is not None]
        enough[0] = 1
        faults += [fault for fault in running if fault is not None]
        assert [fault.cause for fault in faults] == ["killed by SIGKILL"]
        assert torch.isfinite(shared.newest()).all()
        if strategy == "lock":
            assert shared.state()["version"] == pushes.sum(), "what was interrupted left nothing"


def test_no_push_of_four_processes_is_lost_under_the_lock() -> None:
    """A gradient is a value handed over, too: it is spoilt as soon as it is pushed."""
    with closing(Processes()) as backend:
        shared = found("lock", backend, 4)

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            model, gradient = make_model(), torch.empty(SIZE)
            hold = shared.join(model, rank.index)
            for turn in range(2500):
                gradient.fill_(-1.0)
                hold.push(gradient, part="a", version=turn, lr=1.0)
                gradient.fill_(float("nan"))
                if turn % 50 == 0:
                    yield

        assert not any(backend.run([Job(work)] * 4))
        assert shared.newest().tolist() == [10_000.0] * SIZE
        assert shared.state()["version"] == 10_000


def test_what_is_read_under_the_lock_is_of_one_version() -> None:
    """By a worker and by main, while another pushes as fast as it can."""
    large = 1_000_000
    with closing(Processes()) as backend:
        shared = registry.load("strategies", "lock").make(
            None, backend=backend, vector=torch.zeros(large), parts={"a": slice(0, large)},
            optimizer=optim.Config(name="sgd", momentum=0.0), learners=2,
        )  # fmt: skip
        torn, over = backend.allocate((1,), INT64), backend.allocate((1,), INT64)

        def is_torn(vector: torch.Tensor) -> bool:
            return bool(vector.min() != vector.max())

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            model = optim.FlatModel({"a": nn.Linear(large // 2 - 1, 2)})
            hold, gradient = shared.join(model, rank.index), torch.ones(large)
            while not over[0]:
                if rank.index:
                    hold.pull(model)
                    torn[0] += is_torn(model.vector)
                else:
                    hold.push(gradient, part="a", version=0, lr=1.0)
                yield

        looks = 0
        for fault in backend.run([Job(work), Job(work)]):
            assert fault is None
            if shared.version():
                assert not is_torn(shared.newest())
                looks += 1
            over[0] = looks >= 50
        assert not torn[0]


@pytest.mark.parametrize(
    ("strategy", "values"), [("lock", {}), ("hogwild", {}), ("hogwild", {"copy": True}),
     ("parameter_server", {}), ("parameter_server", {"shards": 3})],
)  # fmt: skip
@settings(max_examples=20, deadline=None)
@given(turns=st.lists(st.integers(0, 2), max_size=30))
def test_staleness_is_that_of_the_interleaving(
    strategy: str, values: dict[str, Any], turns: list[int]
) -> None:
    """In its turn a learner pulls if it has pushed, and pushes if it has pulled."""
    shared = found(strategy, InProcess(), 3, **values)
    models = [make_model() for _ in range(3)]
    holds = [shared.join(model, index) for index, model in enumerate(models)]
    pulled: dict[int, int] = {}
    expected, applied = list[int](), 0
    for index in turns:
        if index not in pulled:
            pulled[index] = holds[index].pull(models[index])
            assert pulled[index] == applied
            continue
        version = pulled.pop(index)
        holds[index].push(torch.ones(SIZE), part="a", version=version, lr=0.1)
        expected.append(applied - version)
        applied += 1
    shared.newest()  # all that was pushed has come to be applied
    mean, late, dropped = shared.ledger.staleness()
    assert mean == pytest.approx(np.mean(expected) if expected else 0.0)
    assert late <= max(expected, default=0)
    assert dropped == 0


@pytest.mark.parametrize("strategy", WAIT)
def test_staleness_is_that_of_two_processes_that_take_turns(strategy: str) -> None:
    """One pulls; the other pulls and pushes three times; then the first one pushes."""
    with closing(Processes()) as backend:
        shared, turn = found(strategy, backend, 2), backend.allocate((1,), INT64)

        def update(hold: Any, model: optim.FlatModel, version: int) -> None:
            hold.push(torch.ones(SIZE), part="a", version=version, lr=1e-3)
            while hold.pull(model) <= version:  # until it has come to be applied
                pass

        def work(rank: Rank) -> Iterator[None]:
            torch.set_num_threads(1)
            model = make_model()
            hold = shared.join(model, rank.index)
            if rank.index == 0:
                version = hold.pull(model)
                turn[0] = 1
                while turn[0] != 2:
                    yield
                update(hold, model, version)
            else:
                while turn[0] != 1:
                    yield
                for _ in range(3):
                    update(hold, model, hold.pull(model))
                turn[0] = 2

        assert not any(backend.run([Job(work), Job(work)]))
        shared.newest()
        assert shared.ledger.staleness() == (3 / 4, 3.0, 0)  # 0, 0, 0, 3


@pytest.mark.parametrize("transport", ["slots", "queue"])
def test_a_worker_that_fetches_ahead_does_not_wait_for_a_shard(transport: str) -> None:
    with closing(Processes()) as backend:
        shared = found("parameter_server", backend, 1, fetch="ahead", shards=2, transport=transport)
        model = make_model()
        hold = shared.join(model, 0)

        def update() -> int:
            version: int = hold.pull(model)
            hold.push(torch.ones(SIZE), part="a", version=version, lr=1.0)
            return version

        def answered() -> int:
            shared.newest()  # what was asked for before is there by now
            return update()

        assert [update(), answered(), answered()] == [0, 0, 1], "asked for one pull before"
        shared.newest()
        stopped = [
            post.pid for post in backend.process_table() if (post.role, post.index) == ("shard", 1)
        ]
        os.kill(stopped[0], signal.SIGSTOP)
        assert [update(), update()] == [2, 2], "with what it has"
        assert model.vector.tolist() == [-2.0] * SIZE, "all of one fetch"
        os.kill(stopped[0], signal.SIGCONT)
        shared.newest()
        assert hold.pull(model) == 3
        assert model.vector.tolist() == [-3.0] * SIZE


def test_a_reader_has_what_the_shards_have_by_now() -> None:
    with closing(Processes()) as backend:
        shared = found("parameter_server", backend, 1, shards=2, fetch="read")
        model = make_model()
        hold = shared.join(model, 0)
        for turn in range(3):
            assert hold.pull(model) == turn
            assert model.vector.tolist() == [-float(turn)] * SIZE
            hold.push(torch.ones(SIZE), part="a", version=turn, lr=1.0)
            shared.newest()
        stopped = [
            post.pid for post in backend.process_table() if (post.role, post.index) == ("shard", 1)
        ]
        os.kill(stopped[0], signal.SIGSTOP)
        hold.push(torch.ones(SIZE), part="a", version=3, lr=1.0)
        shared.handles[0].ask("fetch").result(60)
        assert hold.pull(model) == 3, "the version all shards have come to"
        os.kill(stopped[0], signal.SIGCONT)


def test_nobody_reads_past_a_queue() -> None:
    with closing(Processes()) as backend:
        shared = found("parameter_server", backend, 1, fetch="read", transport="queue")
        model = make_model()
        hold = shared.join(model, 0)
        for turn in range(3):  # nobody but the pull waits for the shard
            assert hold.pull(model) == turn
            hold.push(torch.ones(SIZE), part="a", version=turn, lr=1.0)


@pytest.mark.parametrize("strategy", registry.names("strategies"))
def test_one_worker_pulls_and_pushes_as_many_do(strategy: str, tmp_path: Any) -> None:
    run = mh.Run(
        "cartpole", strategy=strategy, backend="inprocess", steps=200, out=tmp_path / "run",
        dqn={"warmup_steps": 50, "batch_size": 8, "steps_per_update": 2},
        memory={"capacity": 200}, network={"hidden": (8,)}, threads=1,
    )  # fmt: skip
    learner, counts = run.worker.learner, {"pull": 0, "push": 0}
    hold: Any = learner.parameters

    class Counted:
        def __getattr__(self, name: str) -> Any:
            counts[name] += 1
            return getattr(hold, name)

    learner.parameters = Counted()
    run.finish()
    first = 1  # before anything is learned
    assert counts == {"pull": first + run.summary["updates"], "push": run.summary["updates"]}
    assert run.summary["updates"] > 50
    assert type(hold).__module__.startswith(f"manyhands.strategies.{strategy}"), "its own code"
    assert hold.pull(run.worker.model) == run.summary["updates"]


WORKERS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"strategy": "hogwild", "workers": 1}, {"worker": 1}),
    ({"strategy": "hogwild", "workers": 2}, {"worker": 2}),
    ({"strategy": "serial", "actors": 2}, {"actor": 2, "learner": 1}),
    ({"strategy": "lock", "actors": 2, "learners": 2}, {"actor": 2, "learner": 2}),
]


@pytest.mark.parametrize(("options", "members"), WORKERS)
def test_the_time_split_of_every_role_is_its_time(
    options: dict[str, Any], members: dict[str, int], tmp_path: Any
) -> None:
    run = mh.train(
        "cartpole", backend="processes", steps=2000, **options,
        out=tmp_path / "run", dqn={"warmup_steps": 50, "batch_size": 8}, threads=1,
        memory={"capacity": 200}, network={"hidden": (8,)}, quiet=True,
    )  # fmt: skip
    split, wall_s = run.summary["time_split"], run.summary["wall_s"]
    spent = {role: sum(parts.values()) for role, parts in split.items()}
    assert spent == {n: pytest.approx(many * wall_s, rel=0.05) for n, many in members.items()}
    assert all(seconds >= 0 for parts in split.values() for seconds in parts.values())
    for role, parts in split.items():  # what nobody counted is "other": some must be counted
        assert (parts["env"] > 0) == (role in ("worker", "actor"))
        assert (parts["gradient"] > 0) == (role in ("worker", "learner"))
