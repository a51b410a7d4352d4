"""The first thing a run does: it writes a new folder, or restores its newest checkpoint."""

from __future__ import annotations

from manyhands.config import precision
from manyhands.config.plans import Plan
from manyhands.roles.process_setup import choose_device
from manyhands.runs import checkpoint, metrics
from manyhands.runs.opening import Opening
from manyhands.runs.progress import Progress
from manyhands.runs.saving import Saving
from manyhands.types import BadRequest


class Finished(BadRequest):
    """There is nothing left to do in this run."""


def begin(opening: Opening, progress: Progress, command: str) -> Plan:
    """Writes the folder of a new run; returns the plan as the folder records it."""
    folder, plan, workers = opening.folder, opening.plan, progress.workers
    replay = workers.memory_bytes
    weights = 16 * workers.model.vector.numel()  # float32: parameters, two of Adam's, the target
    # While a checkpoint is written, the previous one still has its replay.
    checkpoint.check_disk(folder.path, 2 * (weights + replay * plan.checkpoint.replay))
    plan = folder.write_start(plan, command)
    progress.notes += filter(None, [precision.told(plan)])
    return plan


def resume(opening: Opening, progress: Progress, saving: Saving, command: str) -> Plan:
    """Restores the newest good checkpoint; returns the plan to train by from now on."""
    folder, plan = opening.folder, opening.plan
    folder.claim()
    if plan.sources.get("network.precision") == precision.FORBIDDEN:
        progress.notes.append(f"computed in {precision.FORBIDDEN}")
    step = saving.restore()
    if progress.over() or opening.finished:
        at, asked = progress.workers.agent_steps, 0 if plan.top.minutes else plan.top.steps
        past = opening.record is not None and at > asked > 0
        why = f"already past {asked:,}" if past else "it has finished"
        raise Finished(
            f"{folder.shown} is at {at:,} agent steps: {why}",
            "give a larger total with --steps, or --minutes",
        )
    progress.notes += filter(None, [f"resumed at step {step:,}", metrics.problem(folder.path)])
    folder.add_command(command)
    if opening.record is None:
        return plan
    recorded = folder.write_config(opening.record)
    return precision.bearable(recorded, choose_device(recorded.top.device))
