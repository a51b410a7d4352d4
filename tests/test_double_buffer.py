"""A double buffer: the newest value stays whole, whatever becomes of its writer."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from manyhands.backends.inprocess import InProcess
from manyhands.roles.double_buffer import DoubleBuffer
from manyhands.types import Array


def make() -> DoubleBuffer[Array]:
    return DoubleBuffer(InProcess(), (np.zeros(2), np.zeros(2)))


def half_write(array: Array) -> None:
    array[0] = 9
    raise KeyboardInterrupt


def test_a_writer_killed_halfway_leaves_the_newest_value_whole() -> None:
    buffer = make()
    buffer.write(lambda array: array.fill(1))
    with pytest.raises(KeyboardInterrupt):
        buffer.write(half_write)
    value, number = buffer.read(np.copy)
    assert (value.tolist(), number) == ([1, 1], 1)
    buffer.write(lambda array: array.fill(2))
    value, number = buffer.read(np.copy)
    assert (value.tolist(), number) == ([2, 2], 2)


@pytest.mark.parametrize("writes", [1, 2])
def test_a_reader_overtaken_by_the_writer_reads_again(writes: int) -> None:
    buffer, reads = make(), 0

    def take(array: Array) -> Array:
        nonlocal reads
        reads += 1
        taken = array.copy()
        if reads == 1:
            for number in range(writes):
                buffer.write(partial(np.copyto, src=number + 1))
        return taken

    value, number = buffer.read(take)
    assert reads == writes  # one write went to the other copy
    assert value.tolist() == [number] * 2
