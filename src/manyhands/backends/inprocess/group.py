"""A group in one process: members wait for each other in turns, and none dies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from manyhands.backends.inprocess.hosted import flat
from manyhands.backends.inprocess.turns import Turns
from manyhands.types import Average

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Round:
    given: dict[int, tuple[Tensor, tuple[float, ...]]] = field(default_factory=dict)
    mean: Tensor | None = None  # set when all vectors are here

    def average(self) -> None:
        """Averages in the order of the members."""
        first, *rest = (self.given[member][0] for member in sorted(self.given))
        self.mean = first.clone()
        for vector in rest:
            self.mean += vector
        self.mean /= len(self.given)


class LocalGroup:
    def __init__(self, turns: Turns, n: int, numbers: int) -> None:
        self._turns, self._n, self._numbers = turns, n, numbers
        self._workers: dict[int, int] = {}  # member -> index of its worker
        self._now = Round()

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:  # noqa: ARG002
        self._workers[index] = self._turns.current
        return False

    def members(self) -> frozenset[int]:
        gone = {index for index, worker in self._workers.items() if self._turns.ended(worker)}
        return frozenset(range(self._n)) - gone

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        if vector.numel() > self._numbers:
            raise ValueError(f"{vector.numel()} numbers in a group of {self._numbers}")
        if self._n == 1:
            return Average(flat(vector), {0: tuple(map(float, numbers))})
        mine, here = self._now, self._turns.current
        me = next(index for index, worker in self._workers.items() if worker == here)
        mine.given[me] = flat(vector), tuple(map(float, numbers))
        self._turns.pause(
            lambda: mine.mean is not None or self.members() <= mine.given.keys(), rests=True
        )
        if mine.mean is None:
            mine.average()
            self._now = Round()
        assert mine.mean is not None
        sent = {member: mine.given[member][1] for member in sorted(mine.given)}
        return Average(mine.mean.clone(), sent)
