"""Compiled chains of dense layers: threads and other rows of the batch change no bit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from manyhands import optim
from manyhands.maths import compiled, threads
from manyhands.networks import heads
from manyhands.networks.closed import passes_of
from manyhands.networks.torsos import mlp

pytestmark = pytest.mark.skipif(compiled.library() is None, reason=compiled.found().why)


@pytest.fixture(autouse=True)
def one_thread_afterwards() -> Iterator[None]:
    yield
    threads.use(1)


def network(inputs: int, width: int, *, norm: bool) -> nn.Module:
    torch.manual_seed(width)
    torso = mlp.MLP((inputs,), (width, width + 3), scale=1.0, norm=norm)
    return heads.QNetwork(torso, width + 3, 5)


def computed(module: Any, x: np.ndarray, slopes: np.ndarray) -> tuple[bytes, bytes]:
    """The outputs, and the gradients of the parameters."""
    model = optim.FlatModel({"q": module})
    passes: Any = passes_of(module)
    (outputs,) = passes.forward(x)
    found = outputs.tobytes()
    passes.backward(slopes.copy())
    return found, model.gradient.numpy().tobytes()


def some(rows: int, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    x, slopes = rng.normal(size=(rows, inputs)), rng.normal(size=(rows, 5))
    return x.astype(np.float32), slopes.astype(np.float32)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(9, 200),
    inputs=st.integers(1, 70),
    width=st.integers(1, 70),
    norm=st.booleans(),
)
def test_threads_change_no_bit(rows: int, inputs: int, width: int, norm: bool) -> None:
    x, slopes = some(rows, inputs)
    found = []
    for count in (1, 2, 3):
        threads.use(count)
        found.append(computed(network(inputs, width, norm=norm), x, slopes))
    assert found[0] == found[1] == found[2]


def test_helpers_that_sleep_and_wake_many_times() -> None:
    x, slopes = some(100, 8)
    module = network(8, 16, norm=False)
    expected = computed(module, x, slopes)
    threads.use(3)
    for _ in range(500):
        assert computed(module, x, slopes) == expected


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(9, 100), width=st.integers(1, 70), norm=st.booleans())
def test_a_row_does_not_depend_on_the_others(rows: int, width: int, norm: bool) -> None:
    passes = passes_of(network(8, width, norm=norm))
    assert passes is not None
    x = some(rows, 8)[0]
    whole = passes.forward(x)[0].copy()
    rest = passes.forward(x[: rows // 2 + 5])[0]
    assert np.array_equal(whole[: rows // 2 + 5], rest)


def test_a_process_that_is_forked_has_helpers_of_its_own() -> None:
    x, slopes = some(100, 8)
    module = network(8, 16, norm=True)
    threads.use(2)
    expected = computed(module, x, slopes)
    child = os.fork()
    if child == 0:
        os._exit(0 if computed(module, x, slopes) == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
