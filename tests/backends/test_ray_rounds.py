"""Members of other nodes in a group, without Ray: their proxies, and what becomes of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pytest
import torch

from manyhands.backends.processes import Processes
from manyhands.backends.processes.mailbox import ASK, NO_VECTOR, Mailbox
from manyhands.backends.ray import pieces
from manyhands.backends.ray.boxes import NO_PROXY, Rounds
from manyhands.backends.ray.relaying import FENCED, Answer
from manyhands.backends.ray.rounds import GIVE, NEWCOMER, Proxies
from manyhands.types import Array, Job, Rank

cloudpickle.register_pickle_by_value(sys.modules[__name__])
NODE, PLACE, CLIENT, PROXY, NUMBERS, ROUNDS = 3, 0, 5, 200, 4, 5
HERE, AWAY = range(2)  # members


class Group(NamedTuple):
    backend: Processes
    rounds: Rounds
    proxies: Proxies
    lost: list[int]  # nodes
    means: Array  # that the member here got


@pytest.fixture
def made() -> Iterator[Group]:
    with closing(Processes()) as backend:
        group = backend.group(2, NUMBERS)
        rows = backend.share(torch.zeros(2, NUMBERS)).numpy()
        stamps, proxies = (backend.allocate((2,), np.dtype(np.int64)) for _ in range(2))
        proxies[:] = NO_PROXY
        mailbox = Mailbox(None, NUMBERS, depth=1)
        rounds = Rounds(PLACE, mailbox, group, rows, stamps, proxies, backend._table)
        rounds.proxy(AWAY, lambda: PROXY)
        lost: list[int] = []
        found = Proxies({PLACE: rounds}, lambda node: FENCED if node in lost else "")
        means = backend.allocate((ROUNDS,), np.dtype(np.float64))
        yield Group(backend, rounds, found, lost, means)


class Member:
    """That of the other node, as its node runner asks for it."""

    def __init__(self, made: Group) -> None:
        self._proxies, self._number = made.proxies, 0

    def ask(self, method: str, *numbers: float, vector: float | None = None) -> Answer:
        length = NO_VECTOR if vector is None else NUMBERS
        request = (method, ASK, length, (float(AWAY), *numbers))
        content = pieces.cut([np.full(max(0, length), vector or 0.0, np.float32)])
        given = NODE, PLACE, (CLIENT, self._number), request, content
        self._number += 1
        answers = [self._proxies.meet(*given) for _ in range(2)]  # the second time it is a repeat
        assert answers[0] is answers[1]
        answer: Answer = answers[0]
        return answer


def run(made: Group, away: Any) -> None:
    """The member here takes part in all rounds; `away` runs beside it."""
    group, means = made.rounds.group, made.means
    assert group is not None

    def work(rank: Rank) -> Iterator[None]:  # noqa: ARG001
        group.join(HERE, lambda: None)
        for number in range(ROUNDS):
            average = group.reduce(torch.full((NUMBERS,), float(number)), 7.0)
            assert average.vector is not None
            means[number] = float(average.vector[0])
            yield

    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            away(Member(made))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    assert [fault for fault in made.backend.run([Job(work)]) if fault] == []
    thread.join(20)
    assert errors == []


def test_both_get_the_same_average(made: Group) -> None:
    def away(member: Member) -> None:
        assert member.ask("join", 0).data == [0, 0]
        for number in range(ROUNDS):
            answer = member.ask("reduce", 0, 8.0, vector=number + 10)
            assert answer.vector is not None
            assert answer.vector.tolist() == [number + 5] * NUMBERS
            assert sorted(answer.data) == [[HERE, 7.0], [AWAY, 8.0]]

    run(made, away)
    assert made.means.tolist() == [number + 5 for number in range(ROUNDS)]


def test_the_others_go_on_without_a_lost_node(made: Group) -> None:
    def away(member: Member) -> None:
        member.ask("join", 0)
        member.ask("reduce", 0, vector=10)
        made.lost.append(NODE)
        made.rounds.note_life(AWAY, 1)
        assert (
            made.proxies.meet(NODE, PLACE, (CLIENT, 9), ("members", ASK, -1, (1.0,)), ()) == FENCED
        )

    run(made, away)
    assert made.means.tolist() == [5, 1, 2, 3, 4]


def test_one_that_comes_back_enters_between_two_rounds(made: Group) -> None:
    """With the newest row; its own vector counts from the next round on."""

    def away(member: Member) -> None:
        member.ask("join", 0)
        member.ask("reduce", 0, vector=10)
        made.rounds.rows[HERE], made.rounds.stamps[HERE] = 3.0, 8  # type: ignore[index]
        answer = member.ask("join", 1)
        assert answer.data == [NEWCOMER, 8]
        entered = member.ask("enter")
        assert entered.vector is not None
        assert (entered.vector.tolist(), entered.data) == ([3.0] * NUMBERS, 8)
        assert member.ask("complete").data == [[HERE, 7.0]]
        for _ in range(ROUNDS - 2):
            member.ask("reduce", 8, vector=0)

    run(made, away)
    assert made.means.tolist() == [5, 1, 1, 1.5, 2]


def test_a_row_that_is_newer_than_all_here_is_asked_for(made: Group) -> None:
    def away(member: Member) -> None:
        member.ask("join", 0)
        for number in range(ROUNDS):
            answer = member.ask("reduce", 2, vector=number)
            if number == 0:
                assert answer.data == GIVE
                member.ask("take", 2, vector=6.0)
                member.ask("reduce", 2, vector=number)

    run(made, away)
    assert made.rounds.rows is not None
    assert made.rounds.rows[AWAY].tolist() == [6.0] * NUMBERS
