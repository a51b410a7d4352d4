"""What is carried between nodes, without Ray: lost and doubled batches, counts, room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.backends.processes import control, hosted, lock, segment
from manyhands.backends.ray import pieces
from manyhands.backends.ray.boxes import Box
from manyhands.backends.ray.carrier import Hub
from manyhands.backends.ray.carrying import (
    Batch,
    Notices,
    Outgoing,
    Punching,
    apply_tables,
    note_left,
    parts,
    ranges_of,
)
from manyhands.backends.ray.parcels import Known, arrays_of, pack_for_another_node
from manyhands.backends.ray.places import Budget, Live, Notice, Stream, Table
from manyhands.backends.ray.relaying import FENCED
from manyhands.types import BadRequest

INT = np.dtype(np.int64)
WRITERS, LANES, ENTRIES, NODE = 2, 2, 8, 3
STREAM, TAILS, COUNTS, NOTICE = range(4)


def places() -> dict[int, Any]:
    """The places of one node."""

    def table(place: int, fields: int) -> Table:
        return Table(place, segment.allocate((WRITERS, fields), INT))

    kinds = {"value": ((WRITERS * LANES, ENTRIES), INT)}
    tails = table(TAILS, LANES)
    return {
        STREAM: Stream(STREAM, kinds, table(-1, LANES + 1), tails),
        TAILS: tails,
        COUNTS: table(COUNTS, 1),
        NOTICE: Notice(NOTICE, (np.zeros(3),)),
    }


def nodes() -> tuple[dict[int, Any], dict[int, Any], Hub]:
    """Main's node, another one with its copies, and what takes batches on main's node."""
    home, away = places(), places()
    for number, place in home.items():
        away[number].adopt(place.given())
    hub = Hub(home, np.zeros(8, np.int64))
    hub.welcome(NODE, None, frozenset(home), 1)
    return home, away, hub


def write(away: dict[int, Any], writer: int, value: int) -> bool:
    """One step of a writer: an entry in each of its lanes, then its heads, then its count."""
    stream = away[STREAM]
    if not stream.has_room(writer):
        return False
    head = stream.heads.row(writer)
    for lane in range(LANES):
        stream.arrays["value"][writer * LANES + lane, head[lane] % ENTRIES] = value + lane
    head[:LANES] += 1
    head[LANES] = -value  # a plain number
    away[COUNTS].row(writer)[0] += 1
    return True


def assert_right(home: dict[int, Any]) -> None:
    """Each lane has the entries that its head counts, and no count is ahead of its entries."""
    stream, counts = home[STREAM], home[COUNTS].array[:, 0]
    heads = stream.heads.array[:, :LANES]
    assert (counts[:, None] <= heads).all()
    for lane, head in enumerate(heads.reshape(-1).tolist()):
        newest = range(max(0, head - ENTRIES // 2), head)
        found = [int(stream.arrays["value"][lane, n % ENTRIES]) for n in newest]
        assert found == [100 * n + lane % LANES for n in newest]


STEPS = st.lists(st.sampled_from(["write 0", "write 1", "send", "lose", "double"]), max_size=60)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_each_entry_arrives_once_and_before_its_count(steps: list[str]) -> None:
    home, away, hub = nodes()
    outgoing, waiting, number = Outgoing(away), list[tuple[int, Batch]](), 0
    written = [0, 0]
    for step in [*steps, "send", "send"]:
        if step.startswith("write"):
            writer = int(step[-1])
            written[writer] += write(away, writer, 100 * written[writer])
            continue
        for batch in outgoing.batches():
            number += 1
            waiting.append((number, batch))
        for each in waiting if step != "lose" else waiting[1:]:
            for _ in range(2 if step == "double" else 1):
                seen, tables = hub.take(NODE, *each)
        assert_right(home)
        while waiting and step != "lose" and waiting[0][0] <= seen:
            for entries in waiting.pop(0)[1].streams.values():
                note_left(away[STREAM], entries)
            apply_tables(away, tables)
    assert home[COUNTS].array[:, 0].tolist() == written
    assert home[STREAM].heads.array[:, 0].tolist() == written


def test_a_writer_waits_while_nothing_leaves() -> None:
    home, away, _ = nodes()
    assert sum(write(away, 0, 100 * n) for n in range(50)) == ENTRIES // 2
    assert not away[STREAM].has_room(0)
    assert away[STREAM].has_room(1)
    assert home[STREAM].has_room(0), "where the readers are there is always room"


def test_what_is_overwritten_is_told_before() -> None:
    home, away, hub = nodes()
    write(away, 0, 0)
    for number, batch in enumerate(Outgoing(away).batches(), 1):
        hub.take(NODE, number, batch)
    heads, overwritten = home[STREAM].heads.array, home[STREAM].overwritten()
    assert (overwritten >= heads).all()
    assert overwritten[0, 0] > heads[0, 0]


def test_a_node_that_was_given_up_changes_nothing() -> None:
    home, away, hub = nodes()
    hub.part_with(NODE)
    write(away, 0, 0)
    answers = [hub.take(NODE, n, batch) for n, batch in enumerate(Outgoing(away).batches(), 1)]
    assert set(answers) == {FENCED}
    assert not home[COUNTS].array.any()


def test_a_flush_has_the_entry_that_is_being_written() -> None:
    """A checkpoint needs the rollout that an actor has begun."""
    home, away, hub = nodes()
    write(away, 1, 0)
    away[STREAM].arrays["value"][LANES, 1] = 77  # the next entry of the first lane of writer 1
    for number, batch in enumerate(Outgoing(away).batches(with_unfinished=True), 1):
        hub.take(NODE, number, batch)
    assert home[STREAM].arrays["value"][LANES, 1] == 77
    assert home[STREAM].heads.array[1, 0] == 1


def test_a_new_node_has_the_newest_entries_and_rows() -> None:
    home, away, hub = nodes()
    for n in range(3):
        write(away, 0, 100 * n)
    for number, batch in enumerate(Outgoing(away).batches(), 1):
        hub.take(NODE, number, batch)
    home[NOTICE].put(7, [np.full(3, 5.0)])
    later = places()
    later[COUNTS].row(1)[0] = 9  # written there
    for number, place in home.items():
        later[number].adopt(place.given())
    assert later[COUNTS].array[:, 0].tolist() == [3, 9]
    assert later[STREAM].heads.array[0].tolist() == [3, 3, -200]
    assert later[STREAM].arrays["value"][0, 2] == 200, "a writer may read its newest entry again"
    assert later[STREAM].arrays["value"][0, 1] == 0, "older ones stay where they are read"
    into = np.zeros(3)
    assert (later[NOTICE].read(into), into[0]) == (7, 5.0)


def test_an_older_notice_that_comes_late_is_not_taken() -> None:
    notice, into = Notice(NOTICE, (np.zeros(3),)), np.zeros(3)
    for number in (4, 3):
        notice.adopt([np.array(number), np.full(3, float(number))])
    assert (notice.read(into), into.tolist()) == (4, [4.0] * 3)


def test_memory_of_entries_that_left_is_given_back() -> None:
    entries = 4096
    kinds = {"value": ((1, entries, 1024), np.dtype(np.int64))}  # 32 MB
    stream = Stream(0, kinds, Table(-1, segment.allocate((1, 1), INT)), Table(1, np.zeros((1, 1))))
    stream.arrays["value"][:] = 1
    punching = Punching()
    punching.punch(stream)
    stream.left[0] = 3000
    punching.punch(stream)
    assert not stream.arrays["value"][0, :2998].any()
    assert stream.arrays["value"][0, 2998:].all()


def test_a_live_vector_is_never_older_than_its_count() -> None:
    """The count comes with the vector, not with the other rows of its table."""

    def made() -> dict[int, Any]:
        counts = Table(0, segment.allocate((2, 1), INT))
        return {0: counts, 1: Live(1, np.zeros(3), counts, 1)}

    home, away = made(), made()
    for number, place in home.items():
        away[number].adopt(place.given())
    home[1].vector[:], home[0].row(1)[0], home[0].row(0)[0] = 7.0, 7, 5
    assert list(Notices(home).newer({1: 0})) == [(1, 7)]
    old = [np.array(6), np.full(3, 6.0)]
    apply_tables(away, {0: home[0].array})
    assert away[0].array[:, 0].tolist() == [5, 0]
    away[1].adopt(home[1].given())
    away[1].adopt(old)
    into = np.zeros(3)
    away[1].read(into)
    assert (away[0].array[1, 0], into.tolist()) == (7, [7.0] * 3)


def test_entries_that_are_kept_stay_and_follow_their_writer() -> None:
    def made() -> Stream:
        kinds = {"value": ((1, 4096, 1024), INT)}  # 32 MB
        heads, tails = (Table(n, segment.allocate((1, 1), INT)) for n in (-1, 1))
        return Stream(0, kinds, heads, tails, kept=True)

    home, away = made(), made()
    home.arrays["value"][0] = np.arange(4096)[:, None]
    home.heads.row(0)[0] = 5000  # the ring is full
    away.adopt(home.given())
    for ranges in ranges_of(home, [0]):
        pieces.write(pieces.cut(list(parts(home, ranges))), parts(away, ranges))
    assert (away.arrays["value"] == home.arrays["value"]).all()
    punching = Punching()
    for left in (0, 4000):
        away.left[0] = left
        punching.punch(away)
    assert away.arrays["value"][0, 1:].all()


# --- Budgets --------------------------------------------------------------------------------------

MOST, EACH, NODES = 90, 4, (1, 2)  # a writer adds so many at once
TABLE, BUDGET = range(2)


class Spender:
    """A node with one writer; None: main's node, where the hub is."""

    def __init__(self, node: int | None, home: dict[int, Any] | None, hub: Hub | None) -> None:
        self.node, self.hub = node, hub
        table = Table(TABLE, segment.allocate((3, 1), np.dtype(np.float64)))
        self.places: dict[int, Any] = {TABLE: table, BUDGET: Budget(BUDGET, table, 0, MOST)}
        self.row, self.outgoing = table.row(node or 0), Outgoing(self.places)
        self.number, self.answers = 0, list[Any]()
        for number, place in (home or {}).items():
            self.places[number].adopt(place.given())

    def write(self) -> bool:
        has_rest: bool = self.places[BUDGET].has_rest()
        self.row[0] += EACH * has_rest
        return has_rest

    def send(self) -> None:
        assert self.hub is not None
        batches: list[Batch | None] = [*self.outgoing.batches()]
        for batch in batches or [None]:
            self.number += 1
            self.answers.append(self.hub.take(self.node or 0, self.number, batch))

    def hear(self) -> None:
        for _, tables in self.answers[::-1]:  # they may overtake each other
            apply_tables(self.places, tables)
        self.answers.clear()


SPENDING = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["write", "send", "hear"])), max_size=80
)


@settings(max_examples=60, deadline=None)
@given(steps=SPENDING, lost=st.booleans())
def test_a_budget_is_used_up_and_hardly_exceeded(
    steps: list[tuple[int, str]], *, lost: bool
) -> None:
    main = Spender(None, None, None)
    hub = Hub(main.places, np.zeros(8, np.int64))
    for node in NODES:
        hub.welcome(node, None, frozenset(main.places), node)
    spenders = [main, *(Spender(node, main.places, hub) for node in NODES)]
    for who, step in steps:
        if step == "write" or who:
            getattr(spenders[who], step)()
    if lost:  # what it has not sent does not count
        hub.part_with(2)
        main.places[BUDGET].end_lease(2)
        del spenders[2]
    for _ in range(200):
        for each in spenders[1:]:
            each.send()
            each.hear()
        has_rest = [each.write() for each in spenders]
        if not any(has_rest):
            break
    for each in spenders[1:]:
        each.send()
    assert MOST <= main.places[TABLE].array.sum() < MOST + 3 * EACH


# --- What may be given to another node ------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "tensor", "lock", "handle"])
def test_memory_of_one_node_is_not_given_to_another(kind: str) -> None:
    table = control.new_table()
    made: dict[str, Callable[[], Any]] = {
        "array": lambda: segment.allocate((3,), INT),
        "tensor": lambda: segment.share(torch.zeros(3)),
        "lock": lock.Lock,
        "handle": lambda: hosted.make("host", numbers=8, depth=1, look=lambda: None)[1],
    }
    thing = made[kind]()
    with pytest.raises(BadRequest, match="in memory of one node was given to a process of another"):
        pack_for_another_node([thing], client=1, name="actor 0", known=Known(table))


def test_handles_that_other_nodes_know_may_be_given() -> None:
    """Without memory for the client there: this number may be another process here."""
    mailbox, handle = hosted.make("host", numbers=8, depth=1, look=lambda: None)
    known, box = Known(control.new_table()), Box(5, mailbox)
    known.add_place(box)
    parcel, used = pack_for_another_node([handle], client=9, name="worker 1", known=known)
    assert used == {5: box}
    assert mailbox.memory in parcel.kept


def test_a_lock_that_each_node_has_may_be_given() -> None:
    known, made = Known(control.new_table()), lock.Lock()
    known.add_segment(made.memory)
    parcel, used = pack_for_another_node([made], client=9, name="worker 1", known=known)
    assert used == {}
    assert list(parcel.kept) == [made.memory]


def test_places_and_plain_things_may_be_given() -> None:
    known, there = Known(control.new_table()), places()
    for place in there.values():
        known.add(list(arrays_of(place)))
    given = {"places": [there[STREAM], there[NOTICE]], "plain": np.zeros(3), "none": None}
    parcel, used = pack_for_another_node(given, client=1, name="actor 0", known=known)
    assert set(used) == {STREAM, TAILS, NOTICE}
    assert parcel.kept
