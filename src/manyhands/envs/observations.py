"""Converts an environment's observations to frames, in training and in `Policy.act`.

Frames are float32 vectors, images C x H x W of bytes or float32, and int32 vectors of discrete
numbers. A `Reading` describes the conversion. It is plain data; a checkpoint holds it in
`EnvSpec.raw`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from gymnasium import spaces

from manyhands.envs.parts import parts_from
from manyhands.types import Array, BadRequest, EnvSpec, State

AS_IT_IS, PLANE, CHANNELS_LAST = "as it is", "plane", "channels last"
ONE_HOT = "one-hot"  # of Discrete numbers, in older runs
SCREEN = "screen"  # Atari: made grey and shrunk
SCREEN_WIDTH = 160
RED_GREEN_BLUE = np.array([0.2989, 0.587, 0.114])  # the emulator's weights


@dataclass(frozen=True, slots=True)
class Reading:
    """How an observation becomes a frame, and the observation's shape."""

    kind: str
    given: tuple[int, ...]
    start: int = 0  # one-hot: the number of the first place

    def frame_shape(self) -> tuple[int, ...]:
        if self.kind == PLANE:
            return (1, *self.given)
        if self.kind == CHANNELS_LAST:
            height, width, channels = self.given
            return channels, height, width
        return self.given

    def reader(self) -> Callable[[Any], Any]:
        """Converts an observation to the frame that a lane stores."""
        if self.kind == ONE_HOT:
            return self._one_hot
        if self.kind == CHANNELS_LAST:
            return lambda seen: seen.transpose(2, 0, 1)
        return lambda seen: seen

    def strict_reader(self, dtype: str) -> Callable[[Any], Any]:
        """The same, but refuses what NumPy would silently broadcast or wrap."""
        read, given, bytes_ = self.reader(), self.given, dtype == "uint8"
        if self.kind == ONE_HOT:
            return read

        def strict(seen: Any) -> Any:
            seen = np.asarray(seen)
            if seen.shape != given:
                raise ValueError(f"an observation has shape {seen.shape} instead of {given}")
            if seen.dtype.kind not in "fiub":
                raise ValueError(f"an observation has type {seen.dtype} instead of numbers")
            if bytes_ and seen.dtype != np.uint8 and not ((seen >= 0) & (seen <= 255)).all():
                raise ValueError("an observation has numbers outside 0 to 255")
            return read(seen)

        return strict

    def _one_hot(self, seen: Any) -> Array:
        (places,) = self.given
        place = int(seen) - self.start
        if not 0 <= place < places:
            raise ValueError(
                f"{seen} is none of the {places} observations from {self.start} to "
                f"{self.start + places - 1}"
            )
        row = np.zeros(places, np.float32)
        row[place] = 1.0
        return row

    def frames(self, seen: Array) -> tuple[Array, bool] | None:
        """[n, *frame] of one observation or of n, and whether it is one; None: neither."""
        shape = () if self.kind == ONE_HOT else self.given
        if self.kind == ONE_HOT and seen.dtype.kind not in "iu":
            return None
        if seen.shape not in (shape, (len(seen), *shape) if seen.ndim else None):
            return None
        one, read = seen.shape == shape, self.reader()
        some = seen[None] if one else seen
        frames = np.stack([read(row) for row in some]) if len(some) else some
        return frames.reshape(len(some), *self.frame_shape()), one

    def state(self) -> State:
        return {**asdict(self), "given": list(self.given)}


def reading_from(state: State) -> Reading:
    """The inverse of `Reading.state`."""
    kind, given, start = str(state["kind"]), state["given"], int(state["start"])
    if kind not in (AS_IT_IS, ONE_HOT, PLANE, CHANNELS_LAST, SCREEN):
        raise ValueError(f"unknown kind of observations: {kind!r}")
    return Reading(kind, tuple(int(length) for length in given), start)


def reading_of(id: str, space: Any) -> tuple[Reading, str]:
    """How to convert the observations of a gymnasium space, and the type of the frames."""
    if isinstance(space, spaces.MultiDiscrete):  # of `parts`: numbers from 0 on
        return Reading(AS_IT_IS, tuple(space.shape)), "int32"
    if isinstance(space, spaces.Box):
        shape = tuple(int(length) for length in space.shape)
        dtype = "uint8" if space.dtype == np.uint8 else "float32"
        if 0 in shape:
            raise BadRequest(
                f"{id} has empty observations: {shape} holds no number.",
                "Give its observation_space at least one number; a constant will do.",
            )
        if len(shape) == 1:
            return Reading(AS_IT_IS, shape), "float32"
        if len(shape) == 2:
            return Reading(PLANE, shape), dtype
        if len(shape) == 3 and shape[2] > shape[0]:  # channels first already
            return Reading(AS_IT_IS, shape), dtype
        if len(shape) == 3:
            return Reading(CHANNELS_LAST, shape), dtype
    raise BadRequest(
        f"{id} has observations manyhands cannot read: {space}.",
        "Use a vector, an image or Discrete; wrap the environment, "
        "for example in gymnasium.wrappers.FlattenObservation.",
    )


# --- For users' programs ---------------------------------------------------------------------


class Sight:
    """Converts an environment's observations, or the network's input, for a policy.

    If the network takes a stack of frames, it keeps the last frames of each episode.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._spec = spec
        raw = spec.raw or Reading(AS_IT_IS, spec.frame_shape).state()  # an older run has none
        self._reading = reading_from(raw)
        if self._reading.kind != SCREEN and self._reading.frame_shape() != spec.frame_shape:
            raise ValueError(f"{self._reading} does not give frames of shape {spec.frame_shape}")
        self._parts = parts_from(raw["parts"]) if "parts" in raw else None
        if self._parts and not self._parts.key and (self._parts.size,) != spec.frame_shape:
            raise ValueError(f"parts of {self._parts.size} numbers do not make {spec.frame_shape}")
        self._stacks: Array | None = None  # [n, stack, *frame]; None: no episode has begun
        self._stacks_came = False  # complete ones, since the last reset

    def see(self, observation: Any) -> tuple[Array, bool]:
        """[n, *obs] for the network, from one observation or n; and whether it is one."""
        given = self._parts.arrays(observation) if self._parts else observation
        seen, spec = np.asarray(given), self._spec
        if spec.frame_dtype != "float32" and seen.dtype.kind not in "biu":
            kind = "whole numbers" if spec.counts else "pixels from 0 to 255"
            raise ValueError(f"{spec.id} has {kind}, not {seen.dtype}")
        whole = self._whole(seen)
        if whole is not None:
            self._stacks_came = True
            return whole
        found = self._frames(seen)
        if found is None:
            raise ValueError(
                f"an observation of shape {seen.shape} is not one of {spec.id}: "
                f"{self._expected()}, or several of them"
            )
        frames, one = found
        if spec.counts and not ((frames >= 0) & (frames < np.array(spec.counts))).all():
            raise ValueError(f"{frames.tolist()} are no observations of {spec.id}")
        frames = np.ascontiguousarray(frames, spec.frame_dtype)
        return (self._stacked(frames) if spec.stack > 1 else frames), one

    def reset(self, ended: Any = None) -> None:
        """Forgets the frames of all episodes, or of those in the mask."""
        if ended is None or self._stacks is None:
            self._stacks, self._stacks_came = None, False
            return
        mask = np.asarray(ended)
        if mask.dtype != bool or mask.shape != (len(self._stacks),):
            raise ValueError(f"reset takes a mask of {len(self._stacks)} episodes, or nothing")
        self._stacks[mask] = 0

    def _whole(self, seen: Array) -> tuple[Array, bool] | None:
        """The input itself, if it fits the network and not the environment."""
        shape, may_be_both = self._spec.observation_shape, self._spec.stack == 1
        if may_be_both and self._reading.kind != SCREEN and self._reading.frames(seen) is not None:
            return None
        if seen.shape != shape and seen.shape[1:] != shape:
            return None
        one = seen.shape == shape
        if one and self._spec.stack > 1 and self._are_frames(seen):
            return None
        batch = seen[None] if one else seen
        return np.ascontiguousarray(batch, self._spec.frame_dtype), one

    def _are_frames(self, seen: Array) -> bool:
        """Whether this is not one stack but a frame of each of as many episodes.

        Only what came since the last reset tells one from the other.
        """
        if self._frames(seen) is None:
            return False
        stack, stacks = self._spec.stack, self._stacks
        are_frames = stacks is not None and len(stacks) == stack
        nothing_came = stacks is None and not self._stacks_came
        if nothing_came or (are_frames and self._stacks_came):
            raise ValueError(
                f"an observation of shape {seen.shape} may be one stack or {stack} frames: pass "
                f"observation[None] for a stack, observation[:, None] for frames of {stack} "
                "episodes"
            )
        return are_frames

    def _frames(self, seen: Array) -> tuple[Array, bool] | None:
        if self._spec.stack > 1 and seen.shape[1:] == (1, *self._spec.frame_shape):
            seen = seen[:, 0]  # frames, said to be no stack
        if self._reading.kind == SCREEN:
            return screens(seen, self._spec.frame_shape)
        return self._reading.frames(seen)

    def _stacked(self, frames: Array) -> Array:
        """The stacks of these episodes, newest frames last; zeros before the first."""
        if self._stacks is None:
            shape = (len(frames), *self._spec.observation_shape)
            self._stacks = np.zeros(shape, self._spec.frame_dtype)
        if len(frames) != len(self._stacks):
            raise ValueError(
                f"{len(frames)} observations came after {len(self._stacks)}: "
                "call reset() when other episodes begin"
            )
        self._stacks[:, :-1] = self._stacks[:, 1:]
        self._stacks[:, -1] = frames
        return self._stacks.copy()

    def _expected(self) -> str:
        spec = self._spec
        if self._reading.kind == ONE_HOT or spec.counts:
            return f"it is a whole number, or {spec.observation_shape} numbers"
        if self._reading.kind == SCREEN:
            size = spec.frame_shape
            return (
                f"it is a screen (210, {SCREEN_WIDTH}, 3) or (210, {SCREEN_WIDTH}), "
                f"a frame {size} or a stack {spec.observation_shape}"
            )
        shapes = dict.fromkeys((self._reading.given, spec.observation_shape))
        return f"it has shape {' or '.join(map(str, shapes))}"


def screens(seen: Array, frame_shape: tuple[int, ...]) -> tuple[Array, bool] | None:
    """[n, *frame] of Atari's screens in colour or grey, or of frames already shrunk.

    Does what the emulator does in training, except for its maximum over the last two (grey)
    screens, which the caller can take. One pixel in many thousands differs by one, because the
    order of the arithmetic differs.
    """
    height, width = frame_shape[-2:]
    if seen.shape[-2:] == (height, width):
        rows = seen[None] if seen.ndim == 2 else seen
        return (rows.reshape(-1, *frame_shape), seen.ndim == 2) if rows.ndim == 3 else None
    if seen.ndim >= 3 and seen.shape[-2:] == (SCREEN_WIDTH, 3):
        seen = np.rint(seen @ RED_GREEN_BLUE)
    if seen.ndim not in (2, 3) or seen.shape[-1] != SCREEN_WIDTH:
        return None
    rows = seen[None] if seen.ndim == 2 else seen
    small = _areas(seen.shape[-2], height) @ rows.astype(np.float32) @ _areas(SCREEN_WIDTH, width).T
    return np.rint(small).astype(np.uint8).reshape(-1, *frame_shape), seen.ndim == 2


@cache
def _areas(given: int, wanted: int) -> Array:
    """[wanted, given] the weight of each pixel of a line in each pixel of a shorter line."""
    edges, pixels = np.linspace(0, given, wanted + 1), np.arange(given)
    common = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    shares = np.maximum(common, 0.0)
    areas: Array = (shares / shares.sum(1, keepdims=True)).astype(np.float32)
    return areas
