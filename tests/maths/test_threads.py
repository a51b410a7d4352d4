"""Calls side by side: results in order, errors raised where they are waited for."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from manyhands.maths import threads


@pytest.fixture(autouse=True)
def _one_thread_afterwards() -> Iterator[None]:
    yield
    threads.use(1)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_results_come_in_order(number: int) -> None:
    threads.use(number)
    assert threads.count() == number
    calls = [lambda n=n: (n, threading.get_ident()) for n in range(number)]
    found = threads.each(calls)
    assert [n for n, _ in found] == list(range(number))
    assert len({thread for _, thread in found}) == number


def test_calls_run_at_the_same_time() -> None:
    """Each waits for the other, which one thread alone never could."""
    threads.use(2)
    both = threading.Barrier(2, timeout=60)
    assert sorted(threads.each([both.wait, both.wait])) == [0, 1]


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_is_raised_after_all_have_ended(failing: int) -> None:
    threads.use(2)
    ended = []

    def fail() -> None:
        raise ValueError("no number")

    calls = [lambda: ended.append(1)] * 2
    calls[failing] = fail
    with pytest.raises(ValueError, match="no number"):
        threads.each(calls)
    assert ended == [1]
    assert threads.each([lambda: 1, lambda: 2]) == [1, 2]


def test_fewer_threads_end_the_others() -> None:
    before = threading.active_count()
    threads.use(3)
    assert threading.active_count() == before + 2
    threads.use(1)
    assert threading.active_count() == before
    assert threads.each([lambda: 7]) == [7]


def test_shares_cover_all_rows_once() -> None:
    threads.use(3)
    rows = list(range(20))
    much, little = 100 * threads.WORTH_A_THREAD, threads.WORTH_A_THREAD / 2
    assert [row for some in threads.shares(20, much) for row in rows[some]] == rows
    assert len(threads.shares(20, much)) == 3
    assert len(threads.shares(20, 2 * threads.WORTH_A_THREAD)) == 2
    assert len(threads.shares(2, much)) == 2
    assert threads.shares(5, little) == [slice(0, 5)]
    assert threads.shares(0, much) == [slice(0, 0)]
