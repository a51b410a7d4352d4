"""Sleeps between two checks of other processes, so that they can use the core."""

from __future__ import annotations

from time import sleep

from manyhands.types import Failure

SHORTEST_NAP_S, LONGEST_NAP_S = 0.0005, 0.002


class Backoff:
    """Sleeps longer each time, up to a limit, until `over`."""

    def __init__(self) -> None:
        self._next_s, self._napped_s = SHORTEST_NAP_S, 0.0

    def nap(self) -> None:
        sleep(self._next_s)
        self._napped_s += self._next_s  # not by the clock: a stopped process does not wait
        self._next_s = min(2 * self._next_s, LONGEST_NAP_S)

    def over(self) -> None:
        self._next_s, self._napped_s = SHORTEST_NAP_S, 0.0

    def give_up_after(self, longest_s: float) -> None:
        if self._napped_s > longest_s:
            raise Failure(
                f"an actor has waited {longest_s:.0f} s for learners that draw nothing",
                "resume the run; a larger --memory.ahead_steps lets actors run further ahead",
            )
