"""A hosted object in this process. Its messages wait in mailboxes and take turns."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from manyhands.backends.inprocess.turns import Turns
from manyhands.types import Failure

if TYPE_CHECKING:
    from torch import Tensor

Message = tuple[str, "Tensor | None", tuple[float, ...]]


def plain(data: Any) -> Any:
    """Plain data as it would arrive from another process: copied, tuples as lists."""
    return json.loads(json.dumps(data, default=lambda number: number.item()))


def flat(tensor: Tensor) -> Tensor:
    """A vector as it would arrive from another process."""
    return tensor.detach().float().reshape(-1).clone()


def spoil(message: Message) -> None:
    """Overwrites a lent vector after the call, so that code which keeps it fails."""
    if message[1] is not None:
        message[1].fill_(math.nan)


class Answer:
    """A future whose result is known."""

    def __init__(self, value: Any = None, error: str = "") -> None:
        self._value, self._error = value, error

    def result(self, timeout_s: float) -> Any:  # noqa: ARG002  (there is nothing to wait for)
        if self._error:
            raise Failure(self._error)
        return self._value

    def ready(self) -> bool:
        return True


class Box:
    """One client's tells, in order."""

    def __init__(self, host: LocalHandle, client: int) -> None:
        self._host, self.client = host, client
        self.messages: deque[Message] = deque()

    def waiting(self) -> bool:
        return bool(self.messages) and not self._host.busy

    def deliver(self) -> None:
        message = self.messages.popleft()
        self._host.call(message)
        spoil(message)


class LocalHandle:
    """The object, its mailboxes, and the rules of a host in another process."""

    def __init__(
        self, factory: Callable[[], object], turns: Turns, *, numbers: int, depth: int
    ) -> None:
        self._hosted, self._turns = factory(), turns
        self._numbers, self._depth = numbers, depth
        self._boxes: dict[int, Box] = {}
        self.busy = False  # in a call, which may end the turn

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        self._turns.pause()
        box = self._box()
        if len(box.messages) >= self._depth:
            return False
        box.messages.append(self._message(method, vector, numbers))
        self._turns.pause()
        return True

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Answer:
        message = self._message(method, vector, numbers)
        self._turns.pause(lambda: not self.busy)
        for box in self._boxes.values():
            while box.messages:
                box.deliver()
        try:
            return Answer(self._answer(message))
        except Exception as error:
            return Answer(error=f"{method} raised {type(error).__name__}: {error}")

    def call(self, message: Message) -> Any:
        method, vector, numbers = message
        self.busy = True
        try:
            given = numbers if vector is None else (vector, *numbers)
            return getattr(self._hosted, method)(*given)
        finally:
            self.busy = False

    def _answer(self, message: Message) -> Any:
        import torch

        def copied(value: Any) -> Any:
            return flat(value) if isinstance(value, torch.Tensor) else plain(value)

        value = self.call(message)
        value = tuple(map(copied, value)) if isinstance(value, tuple) else copied(value)
        spoil(message)
        return value

    def _box(self) -> Box:
        client = self._turns.current
        if client not in self._boxes:
            self._boxes[client] = Box(self, client)
            self._turns.mailboxes.append(self._boxes[client])
        return self._boxes[client]

    def _message(self, method: str, vector: Tensor | None, numbers: tuple[float, ...]) -> Message:
        if vector is not None and vector.numel() > self._numbers:
            raise ValueError(
                f"{vector.numel()} numbers do not fit messages of {self._numbers}: "
                "raise numbers= of host(...)"
            )
        return method, None if vector is None else flat(vector), tuple(map(float, numbers))
