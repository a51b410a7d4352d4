"""inprocess: all workers in one process, taking turns in an order drawn from a seed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.types import State

if TYPE_CHECKING:
    from torch import Tensor


class Done:
    """A future that is there already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout_s: float) -> Any:  # noqa: ARG002  (there is nothing to wait for)
        return self._value


class LocalHandle:
    """A hosted object in this process: a tell and an ask are calls, on copies of the vector."""

    def __init__(self, factory: Callable[[], object]) -> None:
        self._hosted = factory()

    def tell(self, method: str, vector: Tensor) -> bool:
        getattr(self._hosted, method)(vector.clone())
        return True

    def ask(self, method: str, vector: Tensor | None = None) -> Done:
        call = getattr(self._hosted, method)
        return Done(call() if vector is None else call(vector.clone()))


class LocalChannel:
    """The newest `capacity` items; older ones are dropped."""

    def __init__(self, capacity: int) -> None:
        self._items: deque[State] = deque(maxlen=capacity)

    def put(self, item: State) -> bool:
        had_room = len(self._items) < (self._items.maxlen or 0)
        self._items.append(item)
        return had_room

    def drain(self) -> list[State]:
        items = list(self._items)
        self._items.clear()
        return items


class LocalGroup:
    """A group of one: its average is itself."""

    def reduce(self, vector: Tensor) -> Tensor:
        return vector

    def exchange(self, vector: Tensor, peer: int) -> Tensor:
        if peer != 0:
            raise IndexError(f"a group of one has no member {peer}")
        return vector

    def members(self) -> frozenset[int]:
        return frozenset({0})


class InProcess:
    """Turns change hands where a worker yields, to whom a seeded generator says."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)

    def share(self, tensor: Tensor) -> Tensor:
        return tensor

    def host(self, factory: Callable[[], object]) -> LocalHandle:
        return LocalHandle(factory)

    def channel(self, capacity: int) -> LocalChannel:
        return LocalChannel(capacity)

    def group(self, n: int) -> LocalGroup:
        if n != 1:
            raise ValueError("workers that take turns cannot wait for each other: group(1) only")
        return LocalGroup()

    def run(self, workers: Sequence[Callable[[], Iterator[None]]]) -> Iterator[None]:
        running = [start() for start in workers]
        while running:
            turn = int(self._rng.integers(len(running))) if len(running) > 1 else 0
            try:
                next(running[turn])
            except StopIteration:
                del running[turn]
            yield


make = InProcess
