"""Which learners exchange with which, and with what weight."""

from __future__ import annotations

TOPOLOGIES = ("ring", "complete", "exponential")


def neighbours(topology: str, learners: int, index: int) -> list[int]:
    """The learners that this one exchanges with. The relation is symmetric."""
    distances = {
        "ring": range(1, 2),
        "complete": range(1, learners),
        "exponential": [2**k for k in range(learners.bit_length())],
    }[topology]
    near = {(index + sign * d) % learners for d in distances for sign in (1, -1)}
    return sorted(near - {index})


def metropolis(degree: int, other: int) -> float:
    """The weight of an edge between two learners that have so many neighbours.

    It is symmetric, and leaves each learner a positive weight of its own (Xiao and Boyd 2004).
    """
    return 1.0 / (1 + max(degree, other))
