"""How a role's time divides into named parts that add up to all of it."""

from __future__ import annotations

from time import perf_counter

PARTS_OF_TIME = ("env", "act", "sample", "gradient", "pull", "push", "idle", "other")


class Stopwatch:
    """Each lap adds the time since the last one to a named part."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(PARTS_OF_TIME, 0.0)
        self.now_s = perf_counter()  # when the last lap ended

    def lap(self, part: str) -> None:
        now_s = perf_counter()
        self.seconds[part] += now_s - self.now_s
        self.now_s = now_s

    def begin(self) -> None:
        """Starts the clock. Time before this is not counted."""
        self.now_s = perf_counter()
