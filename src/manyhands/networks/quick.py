"""Dense networks by NumPy, for who acts: a few observations at a time, no gradient.

There torch takes longer to find its way to the arithmetic than the arithmetic takes
(``benchmarks/acting.py``), all the more where many processes take turns on a core.

A network says what it does by a method `quick`, made of the functions below. One that has none, or
one of whose layers is not dense, or more observations than a `FEW`, go through torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from manyhands.networks.dense import Dense
from manyhands.types import Array

ZERO = np.zeros((), np.float32)
FEW = 32  # observations; benchmarks/results/acting.json
Pass = Callable[[Array], Array]  # what it is given stays as it is
Passes = Callable[[Array], tuple[Array, ...]]


class NotDense(Exception):
    """There is a layer that only torch knows."""


class Forward:
    """A network's results as arrays, one for each tensor that it returns."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._network: nn.Module | None = None
        self._first: nn.Parameter | None = None
        self._known: dict[int, Passes | None] = {}  # by where the parameters are

    def __call__(self, network: nn.Module, observation: Array) -> tuple[Array, ...]:
        if network is not self._network:
            self._network, self._known = network, {}
            self._first = next(network.parameters(), None)
        # A strategy puts parameters elsewhere, but never some of them (`FlatModel.live_in`).
        place = 0 if self._first is None else self._first.data_ptr()
        if place not in self._known:
            self._known[place] = self._found(network)
        passes = self._known[place]
        if passes is None or len(observation) > FEW:
            return self._by_torch(network, observation)
        return passes(observation)

    def _found(self, network: nn.Module) -> Passes | None:
        if self._device.type != "cpu":
            return None
        try:
            return passes_of(network)
        except NotDense:
            return None

    def _by_torch(self, network: nn.Module, observation: Array) -> tuple[Array, ...]:
        with torch.inference_mode():
            found = network(torch.from_numpy(observation).to(self._device))
        tensors = found if isinstance(found, tuple) else (found,)
        return tuple(tensor.cpu().numpy() for tensor in tensors)


def passes_of(network: nn.Module) -> Passes:
    """Not of a class that inherits `quick`: it may do something else."""
    if "quick" not in vars(type(network)) or _hooked(network):
        raise NotDense
    passes: Passes = network.quick()  # type: ignore[operator]
    return passes


def pass_of(module: nn.Module) -> Pass:
    """Of a torso or of layers: one result."""
    if _hooked(module):
        raise NotDense
    if type(module) is nn.Sequential:
        return chain(*module)
    if type(module) in (Dense, nn.Linear) and module.bias is not None:
        return _dense(module)  # type: ignore[arg-type]
    if type(module) is nn.ReLU:
        return lambda x: np.maximum(x, ZERO)
    forward = passes_of(module)
    return lambda x: forward(x)[0]


def _hooked(module: nn.Module) -> bool:
    """Whether more happens in its forward pass than its class says: weight norm does it so."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def chain(*modules: nn.Module) -> Pass:
    steps = [pass_of(module) for module in modules]

    def forward(x: Array) -> Array:
        for step in steps:
            x = step(x)
        return x

    return forward


def _dense(layer: nn.Linear) -> Pass:
    weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()

    def forward(x: Array) -> Array:
        y: Array = x @ weight
        y += bias
        return y

    return forward
