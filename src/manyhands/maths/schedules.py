"""Schedules: values that depend on how many agent steps all workers have made."""

from __future__ import annotations

LR_END = 0.1  # of the first learning rate


def epsilon(agent_steps: int, *, warmup_steps: int, decay_steps: int, end: float) -> float:
    """1 during the warm-up, then linearly down to `end` over `decay_steps`."""
    since = max(0, agent_steps - warmup_steps)
    decayed = min(1.0, since / max(1, decay_steps))
    return 1.0 + decayed * (end - 1.0)


def learning_rate(agent_steps: int, start: float, decay_steps: int) -> float:
    """Linearly from `start` down to a tenth of it; constant where `decay_steps` is 0."""
    if not decay_steps:
        return start
    return start * (1.0 - (1.0 - LR_END) * min(1.0, agent_steps / decay_steps))
