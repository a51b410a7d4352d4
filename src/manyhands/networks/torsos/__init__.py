"""Torsos, one file each: observations in, features out.

A torso takes observations as `envs` gives them (C x H x W, one-hot or vectors) and returns
``[b, features]``. It scales bytes to [0, 1]. A user's own torso (``--network my.py:Net``) is any
nn.Module class whose constructor takes the observation's shape.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Protocol

import torch
from torch import nn

from manyhands.networks.config import TORSOS, Config
from manyhands.types import BadRequest, folders

DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}
MOST_LAYERS = 100  # dense ones
Shape = tuple[int, ...]


class Torso(Protocol):
    """What the file of a torso has."""

    def fits(self, shape: Shape) -> bool:
        """Whether it can be made for observations of that shape."""

    def is_first_choice(self, shape: Shape) -> bool:
        """Whether `auto` takes it for them. Of all files one says so."""

    def make(self, config: Config, shape: Shape, *, scale: float) -> nn.Module: ...

    def size(self, config: Config, shape: Shape) -> tuple[int, int]:
        """How many weights it has and how many features it returns, before it is made.

        Biases and norms are not counted.
        """


def make(config: Config, shape: Shape, *, scale: float) -> nn.Module:
    """The built-in torso of the configuration for observations of that shape."""
    torso = _load(name := _name(config, shape))
    if not torso.fits(shape):
        raise BadRequest(
            f"--network.torso {name} does not fit observations of shape {shape}",
            f"use --network.torso {_first_choice(shape)}, or auto",
        )
    return torso.make(config, shape, scale=scale)


def size(config: Config, shape: Shape) -> tuple[int, int]:
    """How many weights the torso has and how many features it returns, before it is made."""
    if len(config.hidden) > MOST_LAYERS:
        raise BadRequest(
            f"--network.hidden has {len(config.hidden):,} layers", f"give at most {MOST_LAYERS}"
        )
    return _load(_name(config, shape)).size(config, shape)


def only_float32(config: Config, what: str) -> None:
    if DTYPES[config.precision] != torch.float32:
        raise BadRequest(
            f"--network.precision {config.precision} is for nature and small, not for {what}",
            "use --network.precision auto",
        )


def channels_of(config: Config, own: Shape) -> Shape:
    """The channels of the configuration, or the torso's own."""
    given = len(config.channels)
    if given not in (0, len(own)):
        raise BadRequest(
            f"--network.channels has {given} values, the torso {len(own)} convolutions",
            f"give {len(own)} values, e.g. {','.join(map(str, own))}",
        )
    return config.channels or own


def _name(config: Config, shape: Shape) -> str:
    if config.torso == "auto":
        return _first_choice(shape)
    if config.torso not in TORSOS:
        raise folders.unknown("--network.torso", config.torso, [*TORSOS, "auto"])
    return config.torso


def _first_choice(shape: Shape) -> str:
    return next(name for name in TORSOS if _load(name).is_first_choice(shape))


def _load(name: str) -> Torso:
    file: Any = import_module(f"manyhands.networks.torsos.{name}")
    torso: Torso = file
    return torso
