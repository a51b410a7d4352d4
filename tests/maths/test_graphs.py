from __future__ import annotations

import numpy as np
import pytest

from manyhands.maths import graphs


@pytest.mark.parametrize("topology", graphs.TOPOLOGIES)
@pytest.mark.parametrize("learners", [1, 2, 3, 8, 13])
def test_neighbours_are_symmetric_few_and_connect_all(topology: str, learners: int) -> None:
    met = [set(graphs.neighbours(topology, learners, i)) for i in range(learners)]
    assert all(i not in met[i] for i in range(learners))
    assert all((i in met[j]) == (j in met[i]) for i in range(learners) for j in range(learners))
    reached, edge = {0}, {0}
    while edge:
        edge = set().union(*(met[i] for i in edge)) - reached
        reached |= edge
    assert reached == set(range(learners)), "everybody hears of everybody in the end"
    most = {"ring": 2, "complete": learners - 1, "exponential": 2 * learners.bit_length()}
    assert all(len(others) <= most[topology] for others in met)


@pytest.mark.parametrize("topology", graphs.TOPOLOGIES)
@pytest.mark.parametrize("learners", [1, 2, 3, 6, 9])
def test_metropolis_weights_average(topology: str, learners: int) -> None:
    weights = np.zeros((learners, learners))
    near = [graphs.neighbours(topology, learners, index) for index in range(learners)]
    for index, others in enumerate(near):
        for other in others:
            weights[index, other] = graphs.metropolis(len(others), len(near[other]))
    np.fill_diagonal(weights, 1.0 - weights.sum(1))
    np.testing.assert_array_equal(weights, weights.T)
    assert (weights.diagonal() > 0).all()
    assert np.linalg.matrix_power(weights, 500) == pytest.approx(1.0 / learners)
