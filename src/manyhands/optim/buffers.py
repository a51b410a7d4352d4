"""A network's buffers (`register_buffer`): state beside its parameters, such as a running mean.

They are part of the model: checkpoints hold them by name beside the weights, and learners share
them (docs/concepts/strategies.md). Buffers with ``persistent=False`` are neither saved nor shared:
a network must create the same ones every time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.types import Array, BadRequest, Failure

DTYPES = {torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
DTYPES |= {torch.float16, torch.float32, torch.float64}


class Buffer:
    """One buffer. A forward pass may replace its tensor by another of the same shape."""

    def __init__(self, name: str, owner: nn.Module, attribute: str) -> None:
        self._name, self._owner, self._attribute = name, owner, attribute
        first: Tensor = owner.get_buffer(attribute)
        self._shape, self._dtype = first.shape, first.dtype
        if first.dtype not in DTYPES:
            raise BadRequest(
                f"the buffer {name} is of {first.dtype}, which checkpoints cannot hold",
                "register it as float32, or with persistent=False",
            )

    def array(self) -> Array:
        now = self._owner._buffers[self._attribute]
        fits = now is not None and now.shape == self._shape
        if now is None or not fits or not torch.can_cast(now.dtype, self._dtype):
            form = "None" if now is None else f"{tuple(now.shape)} of {now.dtype}"
            raise Failure(
                f"the buffer {self._name} was {tuple(self._shape)} of {self._dtype} and is {form}",
                "register it with the shape and type it will have, or with persistent=False",
            )
        return np.array(now.detach().to(self._dtype).cpu().numpy(), order="C")

    def load(self, array: Array) -> None:
        if tuple(array.shape) != tuple(self._shape):
            raise ValueError(f"{self._name} is {array.shape}, not {tuple(self._shape)}")
        now = self._owner.get_buffer(self._attribute)
        now.detach().copy_(torch.from_numpy(np.array(array)))


class Buffers:
    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._buffers = {
            f"{part}.{name}": Buffer(f"{part}.{name}", *_owner(module, name))
            for part, module in modules.items()
            for name in _persistent(module)
        }

    def arrays(self) -> dict[str, Array]:
        """A copy of every buffer by its name. Most networks have none."""
        return {name: buffer.array() for name, buffer in self._buffers.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `arrays`; KeyError or ValueError if they do not fit."""
        for name, buffer in self._buffers.items():
            buffer.load(np.asarray(arrays[name]))

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Restores all buffers at the end of the block."""
        before = self.arrays()
        try:
            yield
        finally:
            self.load(before)


def _persistent(module: nn.Module) -> list[str]:
    saved = module.state_dict()
    named = module.named_buffers()
    return [name for name, buffer in named if name in saved and buffer.numel()]


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, attribute = name.rpartition(".")
    return module.get_submodule(path), attribute
