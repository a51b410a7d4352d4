"""inprocess: all workers in one process, taking turns in an order drawn from a seed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from manyhands.backends.inprocess import late
from manyhands.backends.inprocess.group import LocalGroup
from manyhands.backends.inprocess.hosted import LocalHandle, plain
from manyhands.backends.inprocess.turns import Turns
from manyhands.types import Array, Fault, Job, ProcessInfo, State, Table

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.types.needs import Needs


class LocalChannel:
    """Keeps each writer's first `capacity` items since the last drain."""

    def __init__(self, turns: Turns, capacity: int) -> None:
        self._turns, self._capacity = turns, capacity
        self._items: list[tuple[int, State]] = []

    def put(self, item: State) -> bool:
        self._turns.pause()
        own = self._turns.current
        if sum(writer == own for writer, _ in self._items) >= self._capacity:
            return False
        self._items.append((own, plain(item)))
        return True

    def drain(self) -> list[State]:
        items, self._items = self._items, []
        return [item for _, item in items]


class LocalLock:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._holder: int | None = None

    def __enter__(self) -> bool:
        if self._holder == self._turns.current:
            raise RuntimeError("this worker holds the lock already")
        self._turns.pause(lambda: self._holder is None)
        self._holder = self._turns.current
        return True  # a worker that dies here ends the run

    def __exit__(self, *error: object) -> None:
        self._holder = None
        self._turns.pause()


class InProcess:
    """A turn ends at a worker's yield or in one of these primitives. An error ends the run."""

    def __init__(
        self,
        seed: int = 0,
        *,
        hang_s: float = 0.0,  # noqa: ARG002
        imports: Sequence[str] = (),  # noqa: ARG002
    ) -> None:
        """`hang_s` has no effect: a worker that hangs here blocks main as well. Nor has `imports`:
        all workers share what main imports.
        """
        self._turns = Turns(seed)
        self._mirrors = late.Mirrors(self._turns, seed)
        self._hosted: list[str] = []

    def reserve(self, needs: Needs, tell: Callable[[str], None]) -> None:
        """Nothing: a machine may run more processes than it has cores."""

    def share(self, tensor: Tensor, *, elsewhere: int | None = None) -> Tensor:  # noqa: ARG002
        return tensor.clone()

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype, *, elsewhere: int | None = None  # noqa: ARG002
    ) -> Array:  # fmt: skip
        return np.zeros(shape, dtype)

    def table(self, rows: int, fields: int, dtype: np.dtype) -> late.LateTable:
        return late.LateTable(
            self._mirrors, lambda: self._turns.current, np.zeros((rows, fields), dtype)
        )

    def budget(self, table: Table, field: int, most: float) -> late.PromptBudget:
        assert isinstance(table, late.LateTable)
        return late.PromptBudget(table, field, most)

    def notice(self, *arrays: Array) -> late.LateNotice:
        return late.LateNotice(self._mirrors, arrays)

    def live(
        self, vector: Array, counts: Table | None = None, row: int = 0  # noqa: ARG002
    ) -> late.LateVector:  # fmt: skip
        return late.LateVector(self._mirrors, vector)

    def stream(
        self, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], *, writers: int, fields: int,
        kept: bool = False,  # noqa: ARG002
    ) -> late.LateStream:  # fmt: skip
        heads, tails = (self.table(writers, fields, np.dtype(np.int64)) for _ in range(2))
        return late.LateStream(kinds, heads, tails)

    def look(self) -> None:
        self._mirrors.look()

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",  # noqa: ARG002
        near: int | None = None,  # noqa: ARG002
    ) -> LocalHandle:  # fmt: skip
        """`threads`, `transport` and `near` have no effect in one process."""
        self._hosted.append(name)
        return LocalHandle(factory, self._turns, numbers=numbers, depth=depth)

    def channel(self, capacity: int) -> LocalChannel:
        return LocalChannel(self._turns, capacity)

    def pause(self) -> Callable[[], None]:
        return self._turns.pause

    def lock(self, *, elsewhere: bool = False) -> LocalLock:  # noqa: ARG002
        return LocalLock(self._turns)

    def group(
        self, n: int, numbers: int = 65_536, *, rows: Tensor | None = None,  # noqa: ARG002
        stamps: Array | None = None,  # noqa: ARG002
    ) -> LocalGroup:  # fmt: skip
        return LocalGroup(self._turns, n, numbers)

    def run(self, jobs: Sequence[Job]) -> Generator[Fault | None]:
        yield from self._turns.play(jobs)

    def park(self, timeout_s: float) -> frozenset[int]:  # noqa: ARG002  (there is no limit here)
        return self._turns.park()

    def collect(self, timeout_s: float) -> dict[int, State]:  # noqa: ARG002
        return self._turns.collect()

    def unpark(self) -> None:
        self._turns.unpark()

    def stop(self) -> None:
        self._turns.stop()

    def attend(self) -> list[Fault]:
        """No worker runs while main does."""
        return []

    def process_table(self) -> list[ProcessInfo]:
        hosted = [
            ProcessInfo(name, index, 0, os.getpid()) for index, name in enumerate(self._hosted)
        ]
        return [ProcessInfo(r.role, r.index, 0, os.getpid()) for r in self._turns.ranks] + hosted

    def has_other_nodes(self) -> bool:
        return False

    def nodes_used(self) -> list[str]:
        return []

    def close(self) -> None:
        self._hosted.clear()


make = InProcess
