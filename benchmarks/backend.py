"""The cost of messages to a hosted object in another process, against a plain copy of the vector.

    python benchmarks/backend.py

Interleaved, medians. The plain copy cycles through three buffers, as messages do. Writes
benchmarks/results/backend.json.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from manyhands.backends.processes import Processes

HERE = Path(__file__).parent
NATURE_NUMBERS = 1_700_000  # parameters of the Nature network, about
ROUNDS, LONG_S = 60, 60.0
NAP_S = 0.005  # the time of a gradient: both sides sleep when the next message comes


class Server:
    def __init__(self, vector: Tensor) -> None:
        torch.set_num_threads(1)
        self.vector = vector

    def drop(self, gradient: Tensor) -> None: ...

    def step(self, gradient: Tensor, lr: float) -> None:
        self.vector.add_(gradient, alpha=-lr)

    def fetch(self) -> tuple[Tensor, int]:
        return self.vector, 1

    def ping(self) -> int:
        return 1


def timed(action: Callable[[], Any]) -> float:
    begun_s = time.perf_counter()
    action()
    return time.perf_counter() - begun_s


def actions(backend: Processes) -> dict[str, Callable[[], Any]]:
    shared, here = backend.share(torch.zeros(NATURE_NUMBERS)), torch.zeros(NATURE_NUMBERS)
    host = backend.host(lambda: Server(shared), name="server", numbers=NATURE_NUMBERS)
    host.ask("ping").result(LONG_S)
    gradient, lock = torch.randn(NATURE_NUMBERS), backend.lock()
    buffers = cycle([torch.zeros(NATURE_NUMBERS) for _ in range(3)])

    def take_lock() -> None:
        with lock:
            pass

    def tell(method: str, *numbers: float) -> None:
        while not host.tell(method, gradient, *numbers):
            time.sleep(0.0001)

    def tell_and_wait() -> None:
        tell("step", 0.1)
        host.ask("ping").result(LONG_S)

    return {
        "plain copy": lambda: next(buffers).copy_(gradient),
        "tell a vector": lambda: tell("drop"),
        "tell a vector, and wait until it is applied": tell_and_wait,
        "ask for a vector, and copy it": lambda: here.copy_(host.ask("fetch").result(LONG_S)[0]),
        "ask for a number": lambda: host.ask("ping").result(LONG_S),
        "lock and unlock": take_lock,
    }  # fmt: skip


def measure(nap_s: float) -> dict[str, float]:
    """Microseconds, each."""
    torch.set_num_threads(1)
    with closing(Processes()) as backend:
        made = actions(backend)
        times: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(ROUNDS):
            for name, action in made.items():
                time.sleep(nap_s)
                times[name].append(timed(action))
    return {name: round(1e6 * statistics.median(found), 1) for name, found in times.items()}


def main() -> None:
    result = {
        "numbers": NATURE_NUMBERS,
        "cores": os.cpu_count(),
        "load_before": os.getloadavg()[0],
        "one after the other, us": measure(0.0),
        f"after {NAP_S * 1000:g} ms of sleep, us": measure(NAP_S),
    }
    text = json.dumps(result, indent=1)
    (HERE / "results" / "backend.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
