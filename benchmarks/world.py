"""How fast does Dyna-Q's model imagine, and what does fitting it cost, on LunarLander?

    .venv/bin/python benchmarks/world.py

One thread. `imagined_steps_per_s`: at a batch of 256. `fit_share`: the time of the model's updates
(losses, gradient, optimizer) over that of Q's, without drawing and goals. The model is fitted more
often at first, so it falls from round to round: see `all`. Medians of rounds that take turns.
Writes benchmarks/results/world.json.
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
WARM_STEPS = 1_200


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


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(
            "lunarlander", recipe="dyna-q", seed=1, threads=1, quiet=True,
            evaluation={"period_steps": 0}, out=Path(folder) / "run",
        )  # fmt: skip
        worker = run.worker
        assert isinstance(worker.algorithm, DynaQ)
        while worker.actor.agent_steps < WARM_STEPS:
            worker.turn()
        speeds, shares = list[float](), list[float]()
        for _ in range(ROUNDS):
            speeds.append(imagined_steps_per_s(worker.algorithm))
            parts = seconds_by_part(worker)
            shares.append(parts["world"] / parts["q"])
    found = {
        "command": "python benchmarks/world.py", "machine": machine(),
        "commit": provenance.commit(), "date": time.strftime("%Y-%m-%d"),
        "imagined_steps_per_s": round(median(speeds)), "fit_share": round(median(shares), 3),
        "all": {"imagined_steps_per_s": list(map(round, speeds)), "fit_share": shares},
    }  # fmt: skip
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
