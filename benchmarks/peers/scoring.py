"""How a side reports the time until a score: ``FILE TASK BAR SEED SECONDS RECIPE``."""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

from jobs import age_s

EPISODES = 100


class Goal(NamedTuple):
    task: str
    bar: float
    seed: int
    seconds: float
    recipe: str

    def report(self, score: float, episodes: int, steps: int) -> bool:
        """To be called often. Ends the process once the bar is reached, or the time is over."""
        reached = episodes >= EPISODES and score >= self.bar
        if reached or age_s() > self.seconds:
            solved_s = age_s() if reached else None
            result = {"score": score, "solved_s": solved_s, "steps": steps, "episodes": episodes}
            print(json.dumps(result), flush=True)
            os._exit(0)
        return False


def goal() -> Goal:
    task, bar, seed, seconds, recipe = sys.argv[1:]
    return Goal(task, float(bar), int(seed), float(seconds), recipe)
