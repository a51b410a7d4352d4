"""The flat vector: all parameters in one vector, all gradients in another.

A pull is then one copy, a push one vector, a shard a slice, and an average one addition.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.optim.buffers import Buffers
from manyhands.types import Array, ReplacingLayer, restored


class FlatModel:
    """Makes every parameter a view of `vector`, and every gradient a view of `gradient`.

    Convolution weights keep channels-last strides inside their slice. Call `clear` before
    ``backward()`` and `settle` after it, never ``zero_grad()``, which would detach the views.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        sizes = {part: _size(module) for part, module in modules.items()}
        device = next(p.device for module in modules.values() for p in module.parameters())
        self.modules = modules
        for module in modules.values():
            module.eval()  # only the learner uses training mode, for a gradient
        self.buffers = Buffers(modules)
        self._parameters = [p for module in modules.values() for p in module.parameters()]
        self.vector = torch.zeros(sum(sizes.values()), device=device)
        self.gradient = torch.zeros_like(self.vector)
        self._views_of: dict[int, list[Tensor]] = {}  # views of each vector used, by its address
        parts: dict[str, slice] = {}
        start = 0
        for part in modules:
            parts[part] = slice(start, start + sizes[part])
            start += sizes[part]
        self.parts: Mapping[str, slice] = parts
        # Layers that overwrite their large gradient need no zeros there (`networks.dense`).
        layers = [layer for module in modules.values() for layer in module.modules()]
        self._replacing = [x for x in layers if isinstance(x, ReplacingLayer) and x.large]
        replaced = {id(layer.weight) for layer in self._replacing}
        self._to_clear: list[Tensor] = []
        start = cleared = 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            _view(self.vector[start:stop], parameter.shape).copy_(parameter.data)
            parameter.grad = _view(self.gradient[start:stop], parameter.shape)
            if id(parameter) in replaced:
                self._to_clear.append(self.gradient[cleared:start])
                cleared = stop
            start = stop
        self._to_clear.append(self.gradient[cleared:])
        for parameter, view in zip(self._parameters, self._views(self.vector), strict=True):
            parameter.data = view

    def clear(self) -> None:
        """Sets all gradients to zero, or lets layers overwrite them."""
        for gradients in self._to_clear:
            gradients.zero_()
        for layer in self._replacing:
            layer.blank = True

    def settle(self) -> None:
        """Zeroes the gradients that the backward pass did not reach."""
        for layer in self._replacing:
            if layer.blank:
                if layer.weight.grad is not None:
                    layer.weight.grad.zero_()
                layer.blank = False

    def changed(self) -> None:
        """Call after every pull, since the parameters may have changed."""
        for layer in self._replacing:
            layer.changed()

    def live_in(self, vector: Tensor) -> None:
        """Makes the parameters views of this vector, which other processes may share."""
        self.vector, address = vector, vector.data_ptr()
        if address not in self._views_of:
            self._views_of[address] = self._views(vector)
        for parameter, view in zip(self._parameters, self._views_of[address], strict=True):
            parameter.data = view

    def _views(self, vector: Tensor) -> list[Tensor]:
        """A view of this vector for every parameter."""
        views, start = list[Tensor](), 0
        for parameter in self._parameters:
            stop = start + parameter.numel()
            views.append(_view(vector[start:stop], parameter.shape))
            start = stop
        return views

    def overwrite(self, vector: Tensor) -> None:
        self.vector.copy_(vector)
        self.changed()

    def named(self) -> dict[str, Array]:
        """A copy of every parameter and buffer by its name, in torch's layout."""
        parameters = {
            f"{part}.{name}": np.array(parameter.detach().cpu().numpy(), order="C")
            for part, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }
        return {**parameters, **self.buffers.arrays()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `named`; KeyError or ValueError if they do not fit."""
        with torch.no_grad():
            for part, module in self.modules.items():
                for name, parameter in module.named_parameters():
                    array = arrays[f"{part}.{name}"]
                    if tuple(array.shape) != tuple(parameter.shape):
                        raise ValueError(f"{part}.{name} is {array.shape}, not {parameter.shape}")
                    restored.finite(array, f"{part}.{name}")
                    parameter.copy_(torch.from_numpy(np.array(array)))
        self.buffers.load(arrays)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _view(flat: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 4:
        outputs, inputs, height, width = shape
        return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    return flat.view(shape)
