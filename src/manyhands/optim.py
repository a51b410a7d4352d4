"""The flat vector: all parameters in one, all gradients in another, and optimizers on its parts.

So a pull is one copy, a push one vector, a parameter-server shard a slice, an average one add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.types import Array, State, knob


@dataclass(frozen=True)
class Config:
    name: str = knob("adam", "which optimizer", choices=("adam", "rmsprop", "adagrad", "sgd"))
    eps: float = knob(1e-8, "added to the root (adam, adagrad) or inside it (rmsprop)", above=0)
    beta1: float = knob(0.9, "adam: decay of the mean gradient", low=0, high=0.9999)
    beta2: float = knob(0.999, "adam: decay of the mean square", low=0, high=0.999999)
    decay: float = knob(0.95, "rmsprop: decay of the mean square", low=0, high=0.999999)
    centered: bool = knob(False, "rmsprop: subtract the squared mean (Nature DQN does)")
    momentum: float = knob(0.0, "sgd: momentum", low=0, high=0.9999)
    clip_norm: float = knob(10.0, "largest norm of a gradient; 0: not clipped", low=0)


class FlatModel:
    """Makes every parameter of the modules a view of `vector`, every gradient one of `gradient`.

    Convolution weights keep channels-last strides inside their slice. ``gradient.zero_()`` before
    ``backward()``, never ``zero_grad()``: that would cut the views off.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        sizes = {part: _size(module) for part, module in modules.items()}
        device = next(p.device for module in modules.values() for p in module.parameters())
        self.modules = modules
        self.vector = torch.zeros(sum(sizes.values()), device=device)
        self.gradient = torch.zeros_like(self.vector)
        parts: dict[str, slice] = {}
        start = 0
        for part, module in modules.items():
            parts[part] = slice(start, start + sizes[part])
            self._adopt(module, start)
            start += sizes[part]
        self.parts: Mapping[str, slice] = parts

    def _adopt(self, module: nn.Module, start: int) -> None:
        for parameter in module.parameters():
            stop = start + parameter.numel()
            view = _view(self.vector[start:stop], parameter.shape)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = _view(self.gradient[start:stop], parameter.shape)
            start = stop

    def named(self) -> dict[str, Array]:
        """Every parameter by its name, copied, in torch's own layout."""
        return {
            f"{part}.{name}": np.array(parameter.detach().cpu().numpy(), order="C")
            for part, module in self.modules.items()
            for name, parameter in module.named_parameters()
        }

    def load(self, arrays: Mapping[str, Array]) -> None:
        """The inverse of `named`; KeyError or ValueError where they do not fit."""
        with torch.no_grad():
            for part, module in self.modules.items():
                for name, parameter in module.named_parameters():
                    array = arrays[f"{part}.{name}"]
                    if tuple(array.shape) != tuple(parameter.shape):
                        raise ValueError(f"{part}.{name} is {array.shape}, not {parameter.shape}")
                    parameter.copy_(torch.from_numpy(np.array(array)))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _view(flat: Tensor, shape: torch.Size) -> Tensor:
    if len(shape) == 4:
        outputs, inputs, height, width = shape
        return flat.view(outputs, height, width, inputs).permute(0, 3, 1, 2)
    return flat.view(shape)


class RMSprop(torch.optim.Optimizer):
    """RMSprop with epsilon inside the root, as in Nature DQN, A3C and IMPALA; torch's is outside.

    With ``centered`` it is Nature DQN's: g / sqrt(E[g^2] - E[g]^2 + eps).
    """

    def __init__(self, params: list[nn.Parameter], *, lr: float, **options: Any) -> None:
        super().__init__(params, {"lr": lr, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                self._step(parameter, group)

    def _step(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        gradient, state, decay = parameter.grad, self.state[parameter], group["decay"]
        assert gradient is not None
        if not state:
            state["square"] = torch.zeros_like(parameter)
            if group["centered"]:
                state["mean"] = torch.zeros_like(parameter)
        square = state["square"].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
        variance = square
        if group["centered"]:
            mean = state["mean"].mul_(decay).add_(gradient, alpha=1 - decay)
            variance = square.addcmul(mean, mean, value=-1).clamp_(min=0)
        parameter.addcdiv_(gradient, (variance + group["eps"]).sqrt_(), value=-group["lr"])


class PartOptimizer:
    """One torch optimizer whose only parameter is one slice of the flat vector."""

    def __init__(self, config: Config, vector: Tensor) -> None:
        self._parameter = nn.Parameter(vector)  # shares the storage
        self._inner = _torch_optimizer(config, self._parameter)

    def step(self, gradient: Tensor, lr: float) -> None:
        self._parameter.grad = gradient
        self._inner.param_groups[0]["lr"] = lr
        self._inner.step()

    def state(self) -> State:
        inner = self._inner.state.get(self._parameter, {})
        return {name: value.detach().cpu().numpy().copy() for name, value in inner.items()}

    def restore(self, state: State) -> None:
        device = self._parameter.device
        tensors = {name: torch.from_numpy(np.array(a)).to(device) for name, a in state.items()}
        if tensors:
            self._inner.state[self._parameter] = tensors


def _torch_optimizer(config: Config, parameter: nn.Parameter) -> torch.optim.Optimizer:
    if config.name == "adam":
        betas = (config.beta1, config.beta2)
        fused = parameter.device.type in ("cpu", "cuda")
        return torch.optim.Adam([parameter], betas=betas, eps=config.eps, fused=fused)
    if config.name == "rmsprop":
        options = {"decay": config.decay, "eps": config.eps, "centered": config.centered}
        return RMSprop([parameter], lr=0.0, **options)
    if config.name == "adagrad":
        return torch.optim.Adagrad([parameter], eps=config.eps)
    return torch.optim.SGD([parameter], lr=0.0, momentum=config.momentum)


def clip(gradient: Tensor, largest_norm: float) -> float:
    """Scales the gradient down to that norm, in place; returns the norm it had.

    A non-finite norm is returned untouched: one look at it checks every gradient.
    """
    norm = math.sqrt(float(gradient.dot(gradient)))
    if largest_norm and largest_norm < norm < float("inf"):
        gradient.mul_(largest_norm / norm)
    return norm
