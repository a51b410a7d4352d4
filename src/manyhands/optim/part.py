"""One optimizer for each part of the flat vector, and gradient clipping.

Threads share a long vector. Rules work on each number alone, so a shared step gives the same bits.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from manyhands.maths import compiled, threads
from manyhands.optim import rules
from manyhands.optim.config import Config
from manyhands.optim.rules import Slots
from manyhands.types import State, restored

LONG = 1 << 19  # numbers in a share; for fewer, waking a thread takes longer than it saves
ALIGNED = 64  # numbers; cuts elsewhere would change which numbers torch computes one by one


class PartOptimizer:
    """One optimizer on one slice of the flat vector: a rule, and its state in `slots`."""

    def __init__(self, config: Config, vector: Tensor, slots: Slots | None = None) -> None:
        self._config, self._vector = config, vector
        self._rule = rules.of(config).step
        self._slots = new_slots(config, vector) if slots is None else slots

    def step(self, gradient: Tensor, lr: float) -> None:
        shares = _shares(self._vector)
        if len(shares) == 1:
            self._rule(self._vector, gradient, self._slots, lr, self._config)
            return
        # All but one step on copies of the slots that are one number, such as a count.
        slots = [self._slots_of(some, copied=index > 0) for index, some in enumerate(shares)]
        calls = [
            partial(self._step, self._vector[some], gradient[some], mine, lr)
            for some, mine in zip(shares, slots, strict=True)
        ]
        threads.each(calls)

    @torch.no_grad()  # each thread has its own mode
    def _step(self, vector: Tensor, gradient: Tensor, slots: Slots, lr: float) -> None:
        self._rule(vector, gradient, slots, lr, self._config)

    def _slots_of(self, some: slice, *, copied: bool) -> Slots:
        def part(slot: Tensor) -> Tensor:
            if slot.dim():
                return slot[some]
            return slot.clone() if copied else slot

        return {name: part(slot) for name, slot in self._slots.items()}

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
    return rules.of(config).new_slots(config, vector)


def vectors(config: Config) -> int:
    """How many vectors as long as the parameters the rule keeps."""
    empty = torch.zeros(0)
    return sum(slot.shape == empty.shape for slot in new_slots(config, empty).values())


def clip(gradient: Tensor, largest_norm: float) -> float:
    """Scales the gradient down to this norm, in place; returns the norm before.

    A gradient with a non-finite norm stays as it is; the caller checks the norm.
    """
    shares = _shares(gradient)
    if len(shares) == 1:
        norm = math.sqrt(_square(gradient))
    else:
        norm = math.sqrt(sum(threads.each([partial(_square, gradient[some]) for some in shares])))
    if largest_norm and largest_norm < norm < float("inf"):
        gradient.mul_(largest_norm / norm)
    return norm


def _square(share: Tensor) -> float:
    if compiled.takes(share):
        return float(compiled.function("sum_of_squares")(share.data_ptr(), share.numel()))
    return float(share.dot(share))


def _shares(vector: Tensor) -> list[slice]:
    """One for each thread that is worth waking; their ends are aligned."""
    pieces = min(threads.count(), len(vector) // LONG) if vector.is_cpu else 1
    if pieces < 2:
        return [slice(None)]
    cuts = [len(vector) * piece // pieces // ALIGNED * ALIGNED for piece in range(pieces)]
    return [slice(*ends) for ends in pairwise([*cuts, len(vector)])]
