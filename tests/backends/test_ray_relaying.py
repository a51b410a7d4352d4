"""Tells and asks of other nodes, without Ray: each is taken once, whatever is lost or doubled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch

from manyhands.backends.processes import Processes, hosted
from manyhands.backends.processes.mailbox import ASK, NO_VECTOR, TELL, Mailbox
from manyhands.backends.ray import pieces
from manyhands.backends.ray.boxes import Box
from manyhands.backends.ray.relaying import FENCED, Deliveries

NODE, CLIENT, PLACE, NUMBERS = 3, 7, 0, 4
ADD = ("add", TELL, NUMBERS, ())
TOTAL = ("total", ASK, NO_VECTOR, ())


class Sum:
    """What must survive is in shared memory."""

    def __init__(self, total: torch.Tensor) -> None:
        self._total = total

    def add(self, vector: torch.Tensor) -> None:
        self._total[1:] += vector
        self._total[0] += 1

    def total(self) -> tuple[torch.Tensor, int]:
        return self._total[1:], int(self._total[0])

    def fail(self) -> None:
        raise ValueError("no")


@pytest.fixture
def box() -> Iterator[Box]:
    """The mailbox of an object in its own process."""
    with closing(Processes()) as backend:
        total = backend.share(torch.zeros(1 + NUMBERS))
        handle = backend.host(lambda: Sum(total), numbers=NUMBERS)
        assert isinstance(handle, hosted.Handle)
        yield Box(PLACE, handle.mailbox)


def content(value: float) -> tuple[bytes, ...]:
    return tuple(pieces.cut([np.full(NUMBERS, value, np.float32)]))


def welcoming(box: Box) -> Deliveries:
    made = Deliveries({PLACE: box})
    made.welcome(NODE, CLIENT)
    return made


def test_a_delivery_that_comes_twice_is_taken_once(box: Box) -> None:
    deliveries = welcoming(box)
    for number in range(1, 6):
        for _ in range(2):
            given = [ADD, TOTAL], content(number)
            (answer,) = deliveries.take(NODE, PLACE, number, *given)
            assert answer.vector.tolist() == [sum(range(number + 1))] * NUMBERS
            assert answer.data == number


def test_more_tells_than_the_mailbox_holds_wait_for_room(box: Box) -> None:
    many = 20 * box.mailbox.ring
    given = [*[ADD] * many, TOTAL], tuple(pieces.cut([np.ones(many * NUMBERS, np.float32)]))
    (answer,) = welcoming(box).take(NODE, PLACE, 1, *given)
    assert answer.data == many


def test_a_new_runner_of_mains_node_repeats_questions_only(box: Box) -> None:
    """It knows which deliveries were taken, but not what was answered."""
    given = [ADD, TOTAL], content(1.0)
    welcoming(box).take(NODE, PLACE, 1, *given)
    (answer,) = welcoming(box).take(NODE, PLACE, 1, *given)
    assert answer.data == 1
    (answer,) = welcoming(box).take(NODE, PLACE, 2, *given)
    assert answer.data == 2


def test_an_error_is_an_answer(box: Box) -> None:
    (answer,) = welcoming(box).take(NODE, PLACE, 1, [("fail", ASK, NO_VECTOR, ())], ())
    assert answer.data == "fail raised ValueError: no"


def test_a_node_that_was_given_up_tells_nothing(box: Box) -> None:
    deliveries = welcoming(box)
    deliveries.part_with(NODE)
    assert deliveries.take(NODE, PLACE, 1, [ADD], content(1.0)) == FENCED
    assert not box.seen.any()


def test_requests_wait_in_the_order_they_were_made() -> None:
    mailbox = Mailbox(None, NUMBERS, depth=2)
    handles: list[Any] = []
    for client in (4, 2):
        mailbox.reserve(client)
        handles.append(hosted.Handle("host", mailbox, client))
    for at in (0, 1, 0):
        assert handles[at].tell("add", torch.zeros(NUMBERS))
    assert not handles[0].tell("add", torch.zeros(NUMBERS)), "two of its tells wait"
    assert mailbox.waiting() == [(4, 0), (2, 0), (4, 1)]
