"""How a network is run: with NumPy or with torch, in training mode or in evaluation mode.

Acting on a few observations needs no gradient, and torch's calls then take longer than the
arithmetic (``benchmarks/acting.py``). `Forward` uses NumPy there. A network describes its forward
pass by a method `quick`, built from the functions below. Torch runs a network without that method,
one with a layer that is not dense, and batches of more than `FEW` observations.

Dropout and batch norm depend on the mode. A network is in training mode only while the learner
asks an algorithm for its losses. Acting, targets, first priorities, evaluations and films use
evaluation mode, so they do not change the statistics of a batch norm. `Mode` switches only modules
that may depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from manyhands.networks.dense import Dense
from manyhands.types import Array

ZERO = np.zeros((), np.float32)
FEW = 32  # observations; benchmarks/results/acting.json
Pass = Callable[[Array], Array]  # does not change its argument
Passes = Callable[[Array], tuple[Array, ...]]

MODELESS = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.LayerNorm, nn.GroupNorm,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softmax,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
}  # fmt: skip
OUR_CLASSES = "manyhands.networks."


class NotDense(Exception):
    """Only torch can run one of the layers."""


class Forward:
    """Runs a network on arrays: one array for each tensor that the network returns."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._network: nn.Module | None = None
        self._first: nn.Parameter | None = None
        self._known: dict[int, Passes | None] = {}  # by the address of the parameters
        self._without_gradient: Callable[[], Any] = torch.inference_mode

    def __call__(self, network: nn.Module, observation: Array) -> tuple[Array, ...]:
        if network is not self._network:
            self._network, self._known = network, {}
            self._first = next(network.parameters(), None)
            # A buffer written in inference mode can take no part in a gradient later.
            has_buffers = next(network.buffers(), None) is not None
            self._without_gradient = torch.no_grad if has_buffers else torch.inference_mode
        # A strategy may move the parameters, but always all of them (`FlatModel.live_in`).
        address = 0 if self._first is None else self._first.data_ptr()
        if address not in self._known:
            self._known[address] = self._numpy_passes(network)
        passes = self._known[address]
        if passes is None or len(observation) > FEW:
            return self._by_torch(network, observation)
        return passes(observation)

    def _numpy_passes(self, network: nn.Module) -> Passes | None:
        if self._device.type != "cpu":
            return None
        try:
            return passes_of(network)
        except NotDense:
            return None

    def _by_torch(self, network: nn.Module, observation: Array) -> tuple[Array, ...]:
        with self._without_gradient():
            output = network(torch.from_numpy(observation).to(self._device))
        tensors = output if isinstance(output, tuple) else (output,)
        return tuple(tensor.cpu().numpy() for tensor in tensors)


def passes_of(network: nn.Module) -> Passes:
    """An inherited `quick` does not count: the subclass may compute something else."""
    if "quick" not in vars(type(network)) or _hooked(network):
        raise NotDense
    passes: Passes = network.quick()  # type: ignore[operator]
    return passes


def pass_of(module: nn.Module) -> Pass:
    """For a torso or layers, which return one tensor."""
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
    """A hook adds to what the class computes; weight norm and spectral norm are hooks."""
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


# --- Training mode and evaluation mode --------------------------------------------------------


class Mode:
    """``with`` it these networks are in that mode; afterwards each is in its old mode again."""

    def __init__(self, *networks: nn.Module, training: bool) -> None:
        self._training = training
        self._modules = [module for network in networks for module in mode_dependent(network)]
        self._before: list[bool] = []

    @property
    def matters(self) -> bool:
        return bool(self._modules)

    def __enter__(self) -> None:
        if self._modules:
            self._before = [module.training for module in self._modules]
            for module in self._modules:
                module.train(self._training)

    def __exit__(self, *_: object) -> None:
        if self._modules:
            for module, before in zip(self._modules, self._before, strict=True):
                module.train(before)


def mode_dependent(module: nn.Module) -> list[nn.Module]:
    """The outermost modules in it that may compute something else in training mode."""
    if _is_modeless(module):
        return [found for child in module.children() for found in mode_dependent(child)]
    return [module]


def _is_modeless(module: nn.Module) -> bool:
    """An unknown class may look at the mode; so may a hook."""
    kind = type(module)
    known = kind in MODELESS or kind.__module__.startswith(OUR_CLASSES)
    return known and not _hooked(module)
