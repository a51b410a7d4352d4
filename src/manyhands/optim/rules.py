"""The update rules, each on one slice of the flat vector, and gradient clipping."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manyhands.types import State, option, restored


@dataclass(frozen=True)
class Config:
    name: str = option("adam", "optimizer", choices=("adam", "radam", "rmsprop", "adagrad", "sgd"))
    eps: float = option(
        1e-8, "added to the root (adam, radam, adagrad) or inside it (rmsprop)", above=0
    )
    beta1: float = option(0.9, "adam, radam: decay of the mean gradient", low=0, high=0.9999)
    beta2: float = option(0.999, "adam, radam: decay of the mean square", low=0, high=0.999999)
    decay: float = option(0.95, "rmsprop: decay of the mean square", low=0, high=0.999999)
    centered: bool = option(False, "rmsprop: subtract the squared mean (Nature DQN does)")
    momentum: float = option(0.0, "sgd: momentum", low=0, high=0.9999)
    clip_norm: float = option(10.0, "largest norm of a gradient; 0: no clipping", low=0)


Slots = dict[str, Tensor]


class PartOptimizer:
    """One optimizer on one slice of the flat vector: a rule, and its state in `slots`."""

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
            known = {name: first[name].numpy(force=True), **state}
            like = slot.numpy(force=True)
            slot.copy_(torch.from_numpy(restored.array(known, name, like).copy()))


def new_slots(config: Config, vector: Tensor) -> Slots:
    """The initial state of a rule for this vector."""
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
    """Kingma and Ba 2015. For a small network the overhead of torch.optim costs as much as a step,
    so this calls torch's kernel directly."""
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
    """Liu et al. 2020: Adam that ignores the second moment until its variance is small enough."""
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
    """Epsilon is inside the root, as in Nature DQN, A3C and IMPALA; in torch it is outside.

    E[g^2] starts at 0, as in Nature DQN's code and torch. In TensorFlow, which PAAC and IMPALA
    use, it starts at 1: the first steps are shorter by orders of magnitude.

    The state is ``raised = (E[g^2] + eps) / (1 - decay)``. A step is then AdaGrad's after a
    decay: two passes through memory instead of five.
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
    """Adds the squared gradient to the total; steps by the gradient over the total's root."""
    if not vector.is_cpu:
        total.addcmul_(gradient, gradient)
        vector.addcdiv_(gradient, total.sqrt().add_(eps), value=-lr)
        return
    torch._fused_adagrad_(  # in one pass
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
    """Scales the gradient down to this norm, in place; returns the norm before.

    A gradient with a non-finite norm stays as it is; the caller checks the norm.
    """
    norm = math.sqrt(float(gradient.dot(gradient)))
    if largest_norm and largest_norm < norm < float("inf"):
        gradient.mul_(largest_norm / norm)
    return norm
