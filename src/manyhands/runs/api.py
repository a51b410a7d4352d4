"""`manyhands.train` and `manyhands.resume`: train to the end, or continue a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyhands.roles.making import MakeEnv
from manyhands.runs import provenance
from manyhands.runs.run import Run


def train(task: str | MakeEnv, *, quiet: bool = False, **options: Any) -> Run:
    """Trains to the end: ``mh.train("lunarlander", steps=100_000, dqn={"lr": 1e-3})``.

    Options are those of the command: ``recipe``, ``seed``, ``steps``, ``out``, … and a dict for
    each section. ``task`` may be a function that makes a Gymnasium environment, and ``network``
    one that makes a torso.
    """
    called = provenance.call_text("mh.train", task, options)
    run = Run(task, quiet=quiet, **{"command": called, **options})
    run.finish()
    return run


def resume(path: str | Path, *, quiet: bool = False, **options: Any) -> Run:
    """Continues a run from its newest checkpoint: ``mh.resume(run.path, steps=200_000)``."""
    called = provenance.call_text("mh.resume", str(path), options)
    run = Run.resumed(Path(path), quiet=quiet, **{"command": called, **options})
    run.finish()
    return run
