"""Dense networks in closed form: forward and backward passes without autograd.

For a small network, autograd's calls take longer than the arithmetic. Here a layer is a few calls
of NumPy and torch, which write into memory that is kept from pass to pass; or, compiled, all dense
layers are one call (`compiled.py`). A backward pass replaces the gradients of the parameters.

A head describes its passes by a method `closed`, a torso its layers by a method `closed_layers`
(heads.py, torsos/mlp.py). Torch runs a network without them, with a layer that is not known here,
or on observations that are not rows of float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, from_numpy, nn

from manyhands.types import Array

FLOAT32 = np.dtype(np.float32)
MANY = 2e6  # multiply-adds of a product; oneDNN's calls take longer than NumPy's


class NotDense(Exception):
    """Only torch can run one of the layers."""


class Layer(Protocol):
    """One array in, one array out. Both are valid until the next forward pass."""

    def forward(self, x: Array) -> Array: ...

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        """Writes the gradients of the parameters; returns the input's, if it is asked for.

        It may overwrite its argument.
        """


class Passes(Protocol):
    """A whole network: one output or several."""

    def takes(self, x: Array) -> bool:
        """Whether these observations have a shape and a type that the first layer takes."""

    def forward(self, x: Array) -> tuple[Array, ...]: ...

    def backward(self, *gradients: Array) -> None:
        """From the gradients of the loss by the outputs of the last forward pass."""


class Scratch:
    """Memory for some rows, which grows to the most rows asked for."""

    def __init__(self, width: int, value: float = 0.0) -> None:
        self._rows, self._value = np.full((0, width), value, np.float32), value

    def rows(self, count: int) -> Array:
        if count > len(self._rows):
            self._rows = np.full((count, self._rows.shape[1]), self._value, np.float32)
        return self._rows[:count]


class DenseLayer:
    """NumPy's products, into memory that is kept; of many rows by oneDNN where that is faster."""

    def __init__(self, layer: nn.Linear) -> None:
        from manyhands.maths import products  # one more file, not needed to follow the data

        self._times_transposed = products.times_transposed
        self._tensors = layer.weight.detach(), layer.bias.detach()
        self._most = MANY / layer.weight.numel() if products.numpy_is_slower() else math.inf  # rows
        self.weight, self.bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
        self.gradients = gradient_of(layer.weight), gradient_of(layer.bias)
        outputs, inputs = self.weight.shape
        self._output, self._to_input = Scratch(outputs), Scratch(inputs)
        self._ones = Scratch(1, 1.0)
        self._x = np.zeros((0, inputs), np.float32)

    def forward(self, x: Array) -> Array:
        self._x, output = x, self._output.rows(len(x))
        if len(x) > self._most:
            product: Array = self._times_transposed(from_numpy(x), *self._tensors).numpy()
            return product
        np.matmul(x, self.weight.T, out=output)
        output += self.bias
        return output

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        if len(gradient) > self._most:
            return self._backward_of_many(from_numpy(gradient), to_input=to_input)
        by_weight, by_bias = self.gradients
        np.matmul(gradient.T, self._x, out=by_weight)
        np.matmul(self._ones.rows(len(gradient))[:, 0], gradient, out=by_bias)
        if not to_input:
            return gradient
        return np.matmul(gradient, self.weight, out=self._to_input.rows(len(gradient)))

    def _backward_of_many(self, gradient: Tensor, *, to_input: bool) -> Array:
        by_weight, by_bias = map(from_numpy, self.gradients)
        by_weight.copy_(self._times_transposed(gradient.t(), from_numpy(self._x).t()))
        torch.sum(gradient, 0, out=by_bias)
        found = self._times_transposed(gradient, self._tensors[0].t()) if to_input else gradient
        array: Array = found.numpy()
        return array


class ReluLayer:
    """It works in place. torch's kernels take a fifth of the time of NumPy's here."""

    def forward(self, x: Array) -> Array:
        self._output = from_numpy(x).relu_()
        return x

    def backward(self, gradient: Array, *, to_input: bool) -> Array:  # noqa: ARG002
        given = from_numpy(gradient)
        torch.ops.aten.threshold_backward.grad_input(given, self._output, 0, grad_input=given)
        return gradient


class NormLayer:
    """Layer norm over all features of a row."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        self._shape, self.eps = list(layer.normalized_shape), layer.eps
        self.weight, self.bias = layer.weight.detach(), layer.bias.detach()
        self.gradients = gradient_of(layer.weight), gradient_of(layer.bias)

    def forward(self, x: Array) -> Array:
        self._x = from_numpy(x)
        output, *self._moments = torch.native_layer_norm(
            self._x, self._shape, self.weight, self.bias, self.eps
        )
        normed: Array = output.numpy()
        return normed

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        found = torch.ops.aten.native_layer_norm_backward(
            from_numpy(gradient), self._x, self._shape, *self._moments,
            self.weight, self.bias, [to_input, True, True],
        )  # fmt: skip
        for into, value in zip(self.gradients, found[1:], strict=True):
            np.copyto(into, value.numpy())
        return found[0].numpy() if to_input else gradient


class InputLayer:
    """Makes rows of float32 of observations. It has nothing to learn."""

    def forward(self, x: Array) -> Array:
        raise NotImplementedError

    def backward(self, gradient: Array, *, to_input: bool) -> Array:  # noqa: ARG002
        return gradient


class Numbers(InputLayer):
    """Flattens observations; bytes are scaled to [0, 1]."""

    def __init__(self, scale: float) -> None:
        self._scale = scale

    def forward(self, x: Array) -> Array:
        factor = self._scale / 255 if x.dtype == np.uint8 else self._scale
        if x.ndim != 2 or x.dtype != FLOAT32:
            x = x.reshape(len(x), -1).astype(FLOAT32, copy=False)
        return x if factor == 1 else x * np.float32(factor)


class Chain:
    def __init__(self, layers: Sequence[Layer]) -> None:
        learns = [not isinstance(layer, ReluLayer | InputLayer) for layer in layers]
        if True not in learns or isinstance(layers[0], ReluLayer):  # it would change its input
            raise NotDense
        self._layers = layers
        self._first = learns.index(True)  # below it there is nothing to learn

    def takes(self, x: Array) -> bool:
        """Whether these observations have a shape and a type that the first layer takes."""
        return isinstance(self._layers[0], InputLayer) or (x.ndim == 2 and x.dtype == FLOAT32)

    def forward(self, x: Array) -> Array:
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        stop = -1 if to_input else self._first - 1
        for at in range(len(self._layers) - 1, stop, -1):
            gradient = self._layers[at].backward(gradient, to_input=to_input or at > self._first)
        return gradient


def chain(*modules: nn.Module) -> Chain:
    """The layers of these modules, one after the other; compiled where that is possible."""
    from manyhands.networks import compiled  # it imports this file

    layers = [layer for module in modules for layer in layers_of(module)]
    return Chain(list(compiled.fused(layers)))


def layers_of(module: nn.Module) -> list[Layer]:
    if hooked(module):
        raise NotDense
    if type(module) is nn.Sequential:
        return [layer for part in module for layer in layers_of(part)]
    if type(module) is nn.Linear and module.bias is not None:
        return [DenseLayer(module)]
    if type(module) is nn.ReLU:
        return [ReluLayer()]
    if type(module) is nn.LayerNorm and _is_plain(module):
        return [NormLayer(module)]
    if "closed_layers" in vars(type(module)):  # its own, not inherited
        layers: list[Layer] = module.closed_layers()  # type: ignore[operator]
        return layers
    raise NotDense


def _is_plain(norm: nn.LayerNorm) -> bool:
    return len(norm.normalized_shape) == 1 and norm.weight is not None and norm.bias is not None


def hooked(module: nn.Module) -> bool:
    """A hook adds to what the class computes; weight norm and spectral norm are hooks."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def gradient_of(parameter: Tensor) -> Array:
    """A view of its gradient; without one, memory that is dropped."""
    if parameter.grad is None:
        return np.zeros(parameter.shape, np.float32)
    gradient: Array = parameter.grad.numpy()
    return gradient


# --- A whole network --------------------------------------------------------------------------


class ClosedForm:
    """The passes of a network. A strategy may move the parameters, always all of them
    (`FlatModel.live_in`); then the passes are made again, once for each place.
    """

    def __init__(self, *, learns: bool = False) -> None:
        self._learns = learns
        self._network: nn.Module | None = None
        self._first: nn.Parameter | None = None
        self._known: dict[int, Passes | None] = {}  # by the address of the parameters

    def passes(self, network: nn.Module, observation: Array) -> Passes | None:
        """None if torch has to run this network on these observations."""
        if network is not self._network:
            self._network, self._known = network, {}
            self._first = next(network.parameters(), None)
        first = self._first
        if first is None or (self._learns and first.grad is None):
            return None
        address = first.data_ptr()
        if address not in self._known:
            frozen = self._learns and not all(p.requires_grad for p in network.parameters())
            self._known[address] = None if frozen else passes_of(network)
        passes = self._known[address]
        return passes if passes is not None and passes.takes(observation) else None


def passes_of(network: nn.Module) -> Passes | None:
    """None if only torch can run it: layers share a parameter, or the class inherits `closed` and
    may compute something else.
    """
    parameters = dict(network.named_parameters(remove_duplicate=False)).values()
    shared = len({id(parameter) for parameter in parameters}) < len(parameters)
    on_cpu = all(parameter.is_cpu for parameter in parameters)
    if shared or not on_cpu or "closed" not in vars(type(network)) or hooked(network):
        return None
    try:
        passes: Passes = network.closed()  # type: ignore[operator]
    except NotDense:
        return None
    return passes
