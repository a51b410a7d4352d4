"""A user's own torso: made, and tried on one observation before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from manyhands.types import BadRequest
from manyhands.types.errors import place_of, text_of

MakeTorso = Callable[[tuple[int, ...]], nn.Module]


def make(torso: MakeTorso, shape: tuple[int, ...], dtype: torch.dtype) -> nn.Module:
    """The torso for observations of that shape and type."""
    name = getattr(torso, "__name__", type(torso).__name__)
    remedy = "Pass a class or function that takes the observation's shape and returns an nn.Module."
    try:
        module: Any = torso(shape)
    except Exception as error:
        raise BadRequest(f"{name}({shape}) cannot be made: {_told(error)}.", remedy) from error
    if not isinstance(module, nn.Module):
        raise BadRequest(f"{name}({shape}) is a {type(module).__name__}.", remedy)
    check(module, shape, dtype)
    return module


def check(torso: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuses a torso whose forward pass fails or does not return [batch, features].

    Leaves the torso in evaluation mode, and torch's random numbers as they were.
    """
    name, given = type(torso).__name__, f"a batch of shape {(1, *shape)}"
    torso.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            features: Any = torso(torch.zeros((1, *shape), dtype=dtype))
    except Exception as error:
        pixels = " Pixels are bytes: convert them to float and divide by 255."
        remedy = f"Fix its forward method.{pixels if dtype == torch.uint8 else ''}"
        raise BadRequest(f"{name} fails on {given}: {_told(error)}.", remedy) from error
    if not isinstance(features, Tensor) or features.dim() != 2:
        what = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise BadRequest(f"{name} returns {what} for {given}.", "Return [batch, features].")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {text_of(error)}{place_of(error)}"
