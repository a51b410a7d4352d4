"""How a network is run without a gradient, and in training mode or in evaluation mode.

Acting and targets need no gradient. `Forward` runs a dense network in closed form (`closed`), any
other network by torch.

Dropout and batch norm depend on the mode. A network is in training mode only while the learner
asks an algorithm for its losses. Acting, targets, first priorities, evaluations and films use
evaluation mode, so they do not change the statistics of a batch norm. `Mode` switches only modules
that may depend on it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from manyhands.networks.closed import ClosedForm, Passes, hooked
from manyhands.types import Array

MODELESS = {
    nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten,
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding, nn.LayerNorm, nn.GroupNorm,
    nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softmax,
    nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
}  # fmt: skip
OUR_CLASSES = "manyhands.networks."


class Forward:
    """Runs a network on arrays or tensors: one array or tensor for each output of the network."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._closed = ClosedForm()

    def __call__(self, network: nn.Module, observation: Array) -> tuple[Array, ...]:
        passes = self._closed.passes(network, observation)
        if passes is not None:
            return tuple(output.copy() for output in passes.forward(observation))
        # A buffer written in inference mode can take no part in a gradient later.
        has_buffers = next(network.buffers(), None) is not None
        with torch.no_grad() if has_buffers else torch.inference_mode():
            output = network(torch.from_numpy(observation).to(self._device))
        return tuple(tensor.cpu().numpy() for tensor in _as_tuple(output))

    def tensors(self, network: nn.Module, observation: Tensor) -> tuple[Tensor, ...]:
        """For the targets of a loss."""
        if observation.is_cpu:
            given = observation.numpy()
            passes = self._closed.passes(network, given)
            if passes is not None:
                return tuple(torch.from_numpy(output.copy()) for output in passes.forward(given))
        with torch.no_grad():
            return _as_tuple(network(observation))


def _as_tuple(output: Any) -> tuple[Any, ...]:
    return output if isinstance(output, tuple) else (output,)


class Gradients:
    """A network as an algorithm's losses use it: the outputs, then a backward pass from them.

    Dense networks in main memory compute in closed form, others by autograd.
    """

    def __init__(self) -> None:
        self._closed = ClosedForm(learns=True)
        self._used: Passes | None = None
        self._outputs: tuple[Tensor, ...] = ()

    def __call__(self, network: nn.Module, observation: Tensor) -> tuple[Tensor, ...]:
        """The outputs, without a graph. They are valid until the next call."""
        self._used = None
        if observation.is_cpu:
            given = observation.numpy()
            self._used = self._closed.passes(network, given)
        if self._used is not None:
            return tuple(map(torch.from_numpy, self._used.forward(given)))
        with torch.enable_grad():
            output = network(observation)
        self._outputs = output if isinstance(output, tuple) else (output,)
        return tuple(tensor.detach() for tensor in self._outputs)

    @property
    def replaces(self) -> bool:
        """Whether `backward` replaces all gradients of the parameters; else it adds to them."""
        return self._used is not None

    def backward(self, *gradients: Tensor) -> None:
        """`gradients`: of the loss, by each output of the last call. May overwrite them."""
        if self._used is not None:
            self._used.backward(*(gradient.numpy() for gradient in gradients))
        else:
            torch.autograd.backward(self._outputs, gradients)
            self._outputs = ()


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
    return known and not hooked(module)
