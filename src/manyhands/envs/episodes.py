"""The seeds and actions of the running episodes: enough to replay each of them."""

from __future__ import annotations

import math
import warnings
import zlib
from array import array

import numpy as np

from manyhands.types import Array, BadRequest, Failure, State, restored

BREAKS_IN_A_ROW = 10  # breaks of a lane without a finished episode; then the run fails
UINT8 = np.dtype(np.uint8)


class Episodes:
    """The seed generator, and for every lane its last seed and its actions since.

    A lane gets a new seed with every episode. If seeding is slow, it gets one with the first
    episode that begins ``seed_after`` steps after its last seed. A replay begins at that seed.
    """

    def __init__(self, lanes: int, seed: np.random.SeedSequence, *, seed_after: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._seed_after = seed_after
        self.seeds = np.zeros(lanes, np.int64)
        self.actions = [array("i") for _ in range(lanes)]

    def begin(self, lanes: Array, *, reseed: bool = False) -> Array:
        """The seeds with which these lanes (indices) begin an episode; -1: no new seed."""
        played = np.array([len(self.actions[lane]) for lane in lanes])
        due = np.full(len(lanes), True) if reseed else played >= self._seed_after
        self.seeds[lanes[due]] = self._rng.integers(2**31, size=due.sum())
        for lane in lanes[due]:
            del self.actions[lane][:]
        return np.where(due, self.seeds[lanes], -1)

    def record(self, actions: Array) -> None:
        for taken, action in zip(self.actions, actions.tolist(), strict=True):
            taken.append(action)

    def state(self, observation: Array) -> State:
        """``observation``: the present one, with which a replay must end."""
        return {
            "rng": self._rng.bit_generator.state,
            "seeds": self.seeds.copy(),
            "lengths": np.array([len(taken) for taken in self.actions], np.int64),
            "actions": np.concatenate([np.array(taken, np.int32) for taken in self.actions]),
            "seen": fingerprints(observation),
        }

    def restore(self, state: State, actions_known: int) -> None:
        """`actions_known`: the number of actions. The emulator hangs on an invalid one."""
        lengths = np.asarray(state["lengths"], np.int64)
        require_lanes(len(lengths), len(self.seeds))
        restored.between(state, "lengths", self.seeds, 0, restored.MOST)
        restored.array(state, "seen", self.seeds)
        self._rng.bit_generator.state = state["rng"]
        self.seeds[:] = restored.between(state, "seeds", self.seeds, 0, 2**31)
        actions = np.asarray(state["actions"], np.int32)
        if len(actions) != int(lengths.sum()):
            raise ValueError(f"{len(actions)} actions for episodes of {lengths.sum()} steps")
        restored.between(state, "actions", actions, 0, actions_known - 1)
        parts = np.split(actions, np.cumsum(lengths)[:-1])
        self.actions = [array("i", part.tolist()) for part in parts]


def require_lanes(kept: int, lanes: int) -> None:
    if kept != lanes:
        raise BadRequest(
            f"The checkpoint holds {kept} running episodes, but this run plays {lanes}.",
            "Resume with as many workers and environments as before.",
        )


def fingerprints(observation: Array) -> Array:
    """[n] a checksum of each lane's observation."""
    return np.array([zlib.crc32(row.tobytes()) for row in observation], np.int64)


def warn_unless_replayed(id: str, state: State, observation: Array) -> None:
    """Warns if a replay differs: the environment depends on more than seed and actions."""
    strayed = np.flatnonzero(fingerprints(observation) != np.asarray(state["seen"]))
    if len(strayed):
        warnings.warn(
            f"{id}: lane {strayed[0]} differs after replay; the resume is not exact",
            RuntimeWarning,
            stacklevel=3,
        )


def failure(id: str, trouble: str, *, lane: int, seed: int, step: int) -> Failure:
    """A failure inside an environment, with what is needed to reproduce it."""
    return Failure(
        f"{id}: {trouble} in lane {lane}, at step {step} of the episode with seed {seed}.",
        f"To reproduce it, call reset(seed={seed}) on such an environment and continue.",
    )


def given_up(found: Failure) -> Failure:
    """The failure after too many breaks of one lane in a row."""
    what = found.what.removesuffix(".")
    return Failure(f"{what}; that was the {BREAKS_IN_A_ROW}th break in a row.", found.remedy)


def nonfinite_lane(reward: Array, observation: Array) -> tuple[int, str] | None:
    """The first lane whose reward or observation is NaN or infinite, and which of the two."""
    for what, values in (("the reward", reward), ("the observation", observation)):
        # A NaN or infinity makes the sum of squares non-finite, which is the fastest check.
        # Large numbers can do so too, so we then check each number.
        if values.dtype == UINT8 or math.isfinite(np.vdot(values, values)):
            continue
        spoilt = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
        if spoilt.any():
            return int(np.flatnonzero(spoilt)[0]), what
    return None
