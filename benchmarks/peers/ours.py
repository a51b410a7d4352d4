"""manyhands, by its Python API: `mh.Run`, which yields about once a second."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import manyhands as mh
from jobs import LEARNING_STARTS, REPLAY_ROWS, Clock, Job, run

PRECISION = {"ours": "auto", "ours-float32": "float32"}
RECIPES = {"a2c": "paac"}  # other recipes have the name of their algorithm


def values(job: Job) -> dict[str, Any]:
    if not job.rollout:
        return {
            "batch_size": job.batch, "steps_per_update": job.steps_per_update, "n_step": 1,
            "double": False, "warmup_steps": LEARNING_STARTS, "epsilon_decay_steps": 0,
        }  # fmt: skip
    if job.algorithm == "a2c":
        return {"rollout_steps": job.rollout}
    return {
        "rollout_steps": job.rollout,
        "epochs": job.epochs,
        "minibatches": job.minibatches,
    }


def drive(job: Job, threads: int, clock: Clock) -> None:
    network: dict[str, Any] = {"precision": PRECISION[side]}
    wide = {"channels": (32, 64, 64), "hidden": (512,)}
    network |= {"hidden": job.hidden} if job.hidden else wide
    more: dict[str, Any] = {job.algorithm: values(job)}
    if not job.rollout:
        more["memory"] = {"capacity": REPLAY_ROWS}
    with tempfile.TemporaryDirectory() as folder:
        training = mh.Run(
            job.task, recipe=RECIPES.get(job.algorithm, job.algorithm), out=f"{folder}/run",
            steps=10**9, threads=threads, envs_per_worker=job.lanes, network=network,
            evaluation={"period_steps": 0}, checkpoint={"replay": False}, **more,
        )  # fmt: skip
        of_rollout = job.epochs * job.minibatches if job.rollout else 1
        for _ in training:
            workers = training.workers
            if clock.look(workers.agent_steps, workers.updates // of_rollout):
                break


if __name__ == "__main__":
    side = sys.argv.pop(4) if len(sys.argv) > 4 else "ours"
    run(drive)
