"""How fast does Dyna-Q's model imagine, and what does fitting it cost, on LunarLander?

    .venv/bin/python benchmarks/world.py

One thread. `imagined_steps_per_s`: at a batch of 256. `fit_share`: the time of the model's updates
(losses, gradient, optimizer) over that of Q's, without drawing and goals, both of the same steps.
The model is fitted more often at first, so it is measured `at_first` and at the last cadence.
Medians of rounds. Writes benchmarks/results/world.json.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

import manyhands as mh
from manyhands.algorithms.dyna_q import DynaQ
from manyhands.roles.worker import Worker
from manyhands.runs import provenance
from manyhands.types import Batch, Losses
from speed import machine

RESULT = Path(__file__).parent / "results" / "world.json"
BATCH, ROUNDS, CALLS, STEPS = 256, 9, 50, 100
AT_FIRST_STEPS, LAST_CADENCE_STEPS = 1_100, 6_000


def imagined_steps_per_s(algorithm: DynaQ) -> float:
    observation, action = torch.randn(BATCH, 8), torch.arange(BATCH) % 4
    began_s = time.perf_counter()
    for _ in range(CALLS):
        algorithm.world.imagine(observation, action)
    return CALLS * BATCH / (time.perf_counter() - began_s)


def seconds_by_part(worker: Worker) -> dict[str, float]:
    """Of some real steps: from the request for each part's losses until it is learned."""
    found, own = defaultdict[str, float](float), worker.algorithm.losses

    def timed(batch: Batch) -> Iterator[Losses]:
        began_s = time.perf_counter()
        for losses in own(batch):
            yield losses
            found[losses.part] += time.perf_counter() - began_s
            began_s = time.perf_counter()

    worker.algorithm.losses = timed  # type: ignore[method-assign]
    for _ in range(STEPS):
        worker.turn()
    worker.algorithm.losses = own  # type: ignore[method-assign]
    return found


def play_until(worker: Worker, steps: int) -> None:
    while worker.actor.agent_steps < steps:
        worker.turn()


def fit_shares(worker: Worker) -> list[float]:
    found = [seconds_by_part(worker) for _ in range(ROUNDS)]
    return [round(parts["world"] / parts["q"], 3) for parts in found]


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(
            "lunarlander", recipe="dyna-q", seed=1, threads=1, quiet=True,
            evaluation={"period_steps": 0}, out=Path(folder) / "run",
        )  # fmt: skip
        worker = run.worker
        assert isinstance(worker.algorithm, DynaQ)
        play_until(worker, AT_FIRST_STEPS)
        speeds, at_first = list[float](), fit_shares(worker)
        play_until(worker, LAST_CADENCE_STEPS)
        for _ in range(ROUNDS):
            speeds.append(imagined_steps_per_s(worker.algorithm))
        shares = fit_shares(worker)
    found = {
        "command": "python benchmarks/world.py", "machine": machine(),
        "commit": provenance.commit(), "date": time.strftime("%Y-%m-%d"),
        "imagined_steps_per_s": round(median(speeds)), "fit_share": round(median(shares), 3),
        "at_first": round(median(at_first), 3),
        "all": {
            "imagined_steps_per_s": list(map(round, speeds)),
            "fit_share": shares, "at_first": at_first,
        },
    }  # fmt: skip
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
