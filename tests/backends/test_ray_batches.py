"""What a node sends to main's node. Nothing here needs Ray."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from manyhands.backends.ray import pieces
from manyhands.backends.ray.carrying import Incoming, Outgoing
from manyhands.backends.ray.places import INT, Stream, Table
from manyhands.types import Array

WRITERS, ENTRIES = 2, 64
LARGE = 400_000  # numbers of an entry: a batch has room for two


def new_stream() -> Stream:
    heads, tails = (Table(-1, np.zeros((WRITERS, 1), INT)) for _ in range(2))
    kinds = {"value": ((WRITERS, ENTRIES, LARGE), np.dtype(np.float32))}
    return Stream(7, kinds, heads, tails)


def write(stream: Stream, writer: int, values: list[float]) -> None:
    head: Array = stream.heads.row(writer)
    for value in values:
        stream.arrays["value"][writer, head[0] % ENTRIES] = value
        head[0] += 1


def test_entries_arrive_in_order_by_many_batches() -> None:
    there, home = new_stream(), new_stream()
    write(there, 1, [1.0, 2.0, 3.0, 4.0, 5.0])
    batches = list(Outgoing({7: there}).batches())
    assert len(batches) > 1
    incoming = Incoming({7: home})
    for batch in batches:
        incoming.write(1, batch)
    assert home.heads.array[:, 0].tolist() == [0, 5]
    assert home.arrays["value"][1, :5, 0].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_flush_ends_though_others_have_written_more() -> None:
    there = new_stream()
    there.heads.array[0] = 50  # written on another node
    write(there, 1, [1.0, 2.0, 3.0])
    outgoing = Outgoing({7: there})
    assert len(list(islice(outgoing.batches(with_unfinished=True), 20))) < 20
    assert len(list(islice(outgoing.batches(with_unfinished=True), 20))) < 20


def test_a_new_writer_is_told_though_its_row_is_as_before() -> None:
    """Main's node leases it a part of a budget only if it knows of it."""
    table = Table(3, np.zeros((2, 1), INT))
    outgoing = Outgoing({3: table})
    assert list(outgoing.batches()) == []
    table.row(1)
    (batch,) = outgoing.batches()
    assert batch.tables[3][0].tolist() == [1]
    assert list(outgoing.batches()) == []


@pytest.mark.parametrize("rows", [1, 30, 3_000], ids=["one piece", "inline", "store"])
def test_pieces_have_all_bytes_in_order(rows: int) -> None:
    random = np.random.default_rng(rows)
    shapes = [(rows, 4, 1000), (rows,), (rows, 0), (2,)]
    arrays = [
        random.integers(0, 99, shape).astype(kind)
        for shape, kind in zip(shapes, "fb?d", strict=True)
    ]
    cut = pieces.cut(arrays)
    assert sum(map(len, cut)) == sum(array.nbytes for array in arrays)
    assert max(map(len, cut)) < 100_000 or rows == 3_000, "Ray sends such arguments with the call"
    into = [np.zeros_like(array) for array in arrays]
    pieces.write(cut, into)
    for array, same in zip(arrays, into, strict=True):
        np.testing.assert_array_equal(array, same)
