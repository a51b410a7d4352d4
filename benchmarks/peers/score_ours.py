"""manyhands with its default recipe for the task."""

from __future__ import annotations

import tempfile

import manyhands as mh
from scoring import EPISODES, goal

if __name__ == "__main__":
    own = goal()
    with tempfile.TemporaryDirectory() as folder:
        run = mh.Run(own.task, out=f"{folder}/run", steps=10**9, seed=own.seed)
        for _ in run:
            score, full = run.workers.scores.return_mean_100, run.workers.scores.full
            episodes = EPISODES if full else 0
            own.report(-1e9 if score is None else score, episodes, run.workers.agent_steps)
