"""The flat vector: all parameters in one, all gradients in another, and optimizers on its parts.

So a pull is one copy, a push one vector, a parameter-server shard a slice, an average one add.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from manyhands.types import Array, State, knob


@dataclass(frozen=True)
class Config:
    name: str = knob(
        "adam", "which optimizer", choices=("adam", "radam", "rmsprop", "adagrad", "sgd")
    )
    eps: float = knob(
        1e-8, "added to the root (adam, radam, adagrad) or inside it (rmsprop)", above=0
    )
    beta1: float = knob(0.9, "adam, radam: decay of the mean gradient", low=0, high=0.9999)
    beta2: float = knob(0.999, "adam, radam: decay of the mean square", low=0, high=0.999999)
    decay: float = knob(0.95, "rmsprop: decay of the mean square", low=0, high=0.999999)
    centered: bool = knob(False, "rmsprop: subtract the squared mean (Nature DQN does)")
    momentum: float = knob(0.0, "sgd: momentum", low=0, high=0.9999)
    clip_norm: float = knob(10.0, "largest norm of a gradient; 0: not clipped", low=0)


class FlatModel:
    """Makes every parameter of the modules a view of `vector`, every gradient one of `gradient`.

    Convolution weights keep channels-last strides inside their slice. `clear` before
    ``backward()`` and `settle` after it, never ``zero_grad()``: that would cut the views off.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        sizes = {part: _size(module) for part, module in modules.items()}
        device = next(p.device for module in modules.values() for p in module.parameters())
        self.modules = modules
        self._parameters = [p for module in modules.values() for p in module.parameters()]
        self.vector = torch.zeros(sum(sizes.values()), device=device)
        self.gradient = torch.zeros_like(self.vector)
        self._homes: dict[int, list[Tensor]] = {}  # moved to since; by place, which stays taken
        parts: dict[str, slice] = {}
        start = 0
        for part in modules:
            parts[part] = slice(start, start + sizes[part])
            start += sizes[part]
        self.parts: Mapping[str, slice] = parts
        # Layers that can replace their large gradient need no zeros there (`networks.dense`).
        layers = [layer for module in modules.values() for layer in module.modules()]
        self._replacing = [layer for layer in layers if getattr(layer, "large", False)]
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
        """As if all gradients were zero."""
        for some in self._to_clear:
            some.zero_()
        for layer in self._replacing:
            layer.blank = True  # type: ignore[assignment]

    def settle(self) -> None:
        """What the backward pass did not reach is zero."""
        for layer in self._replacing:
            if layer.blank:
                layer.weight.grad.zero_()  # type: ignore[operator, union-attr]
                layer.blank = False  # type: ignore[assignment]

    def changed(self) -> None:
        """Said by whoever pulls, whenever the parameters may have changed; by nobody else."""
        for layer in self._replacing:
            layer.changed()  # type: ignore[operator]

    def live_in(self, vector: Tensor) -> None:
        """From now on the parameters are that vector's numbers, be they others' as well."""
        self.vector, place = vector, vector.data_ptr()
        if place not in self._homes:
            self._homes[place] = self._views(vector)
        for parameter, view in zip(self._parameters, self._homes[place], strict=True):
            parameter.data = view

    def _views(self, vector: Tensor) -> list[Tensor]:
        """Of every parameter's numbers in it."""
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


Slots = dict[str, Tensor]


class PartOptimizer:
    """One optimizer on one slice of the flat vector: a rule, and what it remembers in `slots`."""

    def __init__(self, config: Config, vector: Tensor, slots: Slots | None = None) -> None:
        self._config, self._vector = config, vector
        self._rule = RULES[config.name]
        self._slots = new_slots(config, vector) if slots is None else slots

    def step(self, gradient: Tensor, lr: float) -> None:
        with torch.no_grad():
            self._rule(self._vector, gradient, self._slots, lr, self._config)

    def state(self) -> State:
        return {name: slot.cpu().numpy().copy() for name, slot in self._slots.items()}

    def restore(self, state: State) -> None:
        first = new_slots(self._config, self._vector)
        for name, slot in self._slots.items():
            slot.copy_(torch.from_numpy(np.array(state[name])) if name in state else first[name])


def new_slots(config: Config, vector: Tensor) -> Slots:
    """What a rule remembers of a vector, at first."""
    names = {
        "adam": ("mean", "square"),
        "radam": ("mean", "square"),
        "rmsprop": ("square", "mean") if config.centered else ("raised",),
        "adagrad": ("total",),
        "sgd": ("velocity",) if config.momentum else (),
    }[config.name]
    slots = {name: torch.zeros_like(vector) for name in names}
    if config.name in ("adam", "radam"):
        slots["count"] = torch.zeros((), device=vector.device)
    if "raised" in slots:
        slots["raised"] += config.eps / (1 - config.decay)
    return slots


def _adam(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Kingma & Ba 2015. torch's kernel without torch.optim's wrapping, which costs a small network
    as much as the step."""
    slots["count"] += 1
    torch._fused_adam_(
        [vector],
        [gradient],
        [slots["mean"]],
        [slots["square"]],
        [],
        [slots["count"]],
        lr=lr,
        beta1=config.beta1,
        beta2=config.beta2,
        weight_decay=0.0,
        eps=config.eps,
        amsgrad=False,
        maximize=False,
    )


def _radam(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Liu et al. 2020: Adam whose second moment counts once there is enough of it to trust."""
    slots["count"] += 1
    t, beta1, beta2 = float(slots["count"]), config.beta1, config.beta2
    mean = slots["mean"].lerp_(gradient, 1 - beta1)
    square = slots["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    rate = lr / (1 - beta1**t)
    if length <= 5:  # torch's threshold; the paper's is 4
        vector.add_(mean, alpha=-rate)
        return
    trust = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    scale = rate * math.sqrt(trust * (1 - beta2**t))
    vector.addcdiv_(mean, square.sqrt().add_(config.eps), value=-scale)


def _rmsprop(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Epsilon inside the root, as in Nature DQN, A3C and IMPALA; torch's is outside.

    What is remembered is ``raised = (E[g^2] + eps) / (1 - decay)``: with it a step is AdaGrad's
    after a decay, two passes through memory instead of five.
    """
    if config.centered:
        _centered_rmsprop(vector, gradient, slots, lr, config)
        return
    raised = slots["raised"]
    torch.add(raised.new_tensor(config.eps), raised, alpha=config.decay, out=raised)
    _add_square_and_step(vector, gradient, raised, lr / math.sqrt(1 - config.decay), 0.0)


def _centered_rmsprop(
    vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config
) -> None:
    """Nature DQN's: g / sqrt(E[g^2] - E[g]^2 + eps)."""
    decay = config.decay
    square = slots["square"].mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    mean = slots["mean"].mul_(decay).add_(gradient, alpha=1 - decay)
    variance = square.addcmul(mean, mean, value=-1).clamp_(min=0)
    vector.addcdiv_(gradient, variance.add_(config.eps).sqrt_(), value=-lr)


def _adagrad(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    """Duchi et al. 2011."""
    _add_square_and_step(vector, gradient, slots["total"], lr, config.eps)


ONE = torch.ones(())


def _add_square_and_step(
    vector: Tensor, gradient: Tensor, total: Tensor, lr: float, eps: float
) -> None:
    """Adds the squared gradient to the total and steps by the gradient over the total's root."""
    if not vector.is_cpu:
        total.addcmul_(gradient, gradient)
        vector.addcdiv_(gradient, total.sqrt().add_(eps), value=-lr)
        return
    torch._fused_adagrad_(  # torch's kernel does it in one pass
        [vector],
        [gradient],
        [total],
        [ONE],
        lr=lr,
        lr_decay=0.0,
        weight_decay=0.0,
        eps=eps,
        maximize=False,
    )


def _sgd(vector: Tensor, gradient: Tensor, slots: Slots, lr: float, config: Config) -> None:
    if config.momentum:
        gradient = slots["velocity"].mul_(config.momentum).add_(gradient)
    vector.add_(gradient, alpha=-lr)


RULES = {"adam": _adam, "radam": _radam, "rmsprop": _rmsprop, "adagrad": _adagrad, "sgd": _sgd}


def clip(gradient: Tensor, largest_norm: float) -> float:
    """Scales the gradient down to that norm, in place; returns the norm it had.

    A non-finite norm is returned untouched: one look at it checks every gradient.
    """
    norm = math.sqrt(float(gradient.dot(gradient)))
    if largest_norm and largest_norm < norm < float("inf"):
        gradient.mul_(largest_norm / norm)
    return norm
