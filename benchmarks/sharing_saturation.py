"""How many gradients 1, 2 and 4 shards apply per second.

Pushers pull, sleep for the time of a gradient, and push random numbers. Sleeping simulates a core
for each pusher; their copies and the shards share the real cores.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from manyhands import optim
from manyhands.backends.processes import Processes
from manyhands.strategies.parameter_server import Config, ParameterServer
from manyhands.types import Array, Job, Rank
from sharing import Book, Cell, Row

NUMBERS = 1_686_180  # parameters of the Nature network with four actions
SHARDS = (1, 2, 4)
COUNTS = (1, 2, 4, 8, 16)  # of pushers
GRADIENT_MS = 20.0  # about, on one core; the measured time if the section cost has run
SETTLE_S, WINDOW_S = 0.3, 1.0
SATURATED = 0.9  # of n times the rate of one pusher
IDLE_S = 0.005
START_S = 300.0
WHICH, ACTIVE, PACE_US = range(3)  # the pushers' controls


class Pusher:
    """A job. Holds the servers as a worker holds its strategy."""

    def __init__(
        self, servers: list[ParameterServer], told: Array, pushed: Array, numbers: int
    ) -> None:
        self.servers, self.told, self.pushed, self.numbers = servers, told, pushed, numbers

    def __call__(self, rank: Rank) -> Iterator[None]:
        torch.set_num_threads(1)
        model: Any = SimpleNamespace(vector=torch.zeros(self.numbers))
        holds = [server.join(model, rank.index) for server in self.servers]
        gradient = 1e-3 * torch.randn(self.numbers)
        self.pushed[rank.index] = 1  # it has started
        while True:
            yield
            which, active, pace_us = self.told.tolist()
            if rank.index >= active:
                time.sleep(IDLE_S)
                continue
            version = holds[which].pull(model)
            time.sleep(pace_us / 1e6)
            holds[which].push(gradient, part="q", version=version, lr=1e-6)
            self.pushed[rank.index] += 1


class Floor:
    """All servers and pushers, started once; one server and some pushers at a time are active."""

    def __init__(self, backend: Processes, counts: tuple[int, ...], numbers: int) -> None:
        self._told = backend.allocate((3,), np.dtype(np.int64))
        self._pushed = backend.allocate((max(counts),), np.dtype(np.int64))
        servers = [
            ParameterServer(
                Config(shards=shards), backend=backend, vector=torch.zeros(numbers),
                parts={"q": slice(0, numbers)}, optimizer=optim.Config(), learners=max(counts),
            )
            for shards in SHARDS
        ]  # fmt: skip
        job = Job(Pusher(servers, self._told, self._pushed, numbers), threads=1)
        self._running = backend.run([job] * max(counts))
        deadline = time.monotonic() + START_S
        while not self._pushed.all():
            self._look()
            if time.monotonic() > deadline:
                raise RuntimeError("not all pushers have started")
        for server in servers:
            server.newest()

    def rate(self, shards: int, pushers: int, pace_ms: float, seconds: float) -> float:
        """Gradients per second."""
        self._told[:] = SHARDS.index(shards), pushers, 1e3 * pace_ms
        self._pass(SETTLE_S)
        before, begun_s = self._pushed.sum(), time.perf_counter()
        self._pass(seconds)
        rate = float((self._pushed.sum() - before) / (time.perf_counter() - begun_s))
        self._told[ACTIVE] = 0
        return rate

    def _pass(self, seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            self._look()

    def _look(self) -> None:
        fault = next(self._running)
        if fault is not None:
            raise RuntimeError(f"{fault.process.role}: {fault.cause}\n{fault.detail}")

    def close(self) -> None:
        self._running.close()


def saturation(book: Book) -> None:
    counts, numbers = ((1, 2), 10_000) if book.smoke else (COUNTS, NUMBERS)
    pace_ms, seconds = _gradient_ms(book), 0.2 if book.smoke else WINDOW_S
    settings = {"numbers": numbers, "gradient_ms": pace_ms, "optimizer": "adam"}
    cells = {
        shards: book.begin("saturation", f"{shards} shard(s)", **settings) for shards in SHARDS
    }
    if not all(cell.complete for cell in cells.values()):
        with closing(Processes()) as backend, closing(Floor(backend, counts, numbers)) as floor:
            for number in range(book.rounds):
                for shards in reversed(SHARDS) if number % 2 else SHARDS:
                    if number in cells[shards].to_do():
                        cells[shards].add(_round(floor, shards, counts, pace_ms, seconds))
    for cell in cells.values():
        _conclude(cell, counts)


def _gradient_ms(book: Book) -> float:
    try:
        ms: Row = book.results["cost"]["nature, batch 32"]["median"]["ms"]
        return float(ms["parameter_server"]["gradient"])
    except KeyError:
        return GRADIENT_MS


def _round(
    floor: Floor, shards: int, counts: tuple[int, ...], pace_ms: float, seconds: float
) -> Row:
    paced = {str(n): round(floor.rate(shards, n, pace_ms, seconds), 1) for n in counts}
    at_once = {str(n): round(floor.rate(shards, n, 0.0, seconds), 1) for n in counts[:3]}
    alone = paced[str(counts[0])]
    return {
        "updates_per_s": paced,
        "updates_per_s, without waiting": at_once,
        "of so many times one": {n: round(r / (int(n) * alone), 3) for n, r in paced.items()},
    }


def _conclude(cell: Cell, counts: tuple[int, ...]) -> None:
    found = cell.kept["median"]
    share = found["of so many times one"]
    beyond = [n for n in counts if share[str(n)] < SATURATED]
    both = (found["updates_per_s"], found["updates_per_s, without waiting"])
    cell.conclude(
        most_updates_per_s=max(max(rates.values()) for rates in both),
        saturated_with_pushers=min(beyond) if beyond else f"more than {max(counts)}",
    )
