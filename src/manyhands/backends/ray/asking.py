"""The threads of a node that send what its processes tell and ask, one for each mailbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from manyhands.backends.ray.boxes import Box, Rounds
from manyhands.backends.ray.places import Place
from manyhands.backends.ray.relaying import AGAIN_S, Relay
from manyhands.backends.ray.rounds import Messenger


class Askers:
    def __init__(self, places: Mapping[int, Place], ending: Callable[[], Any]) -> None:
        """`ending`: a context that ends the process with the thread in it."""
        self._places, self._ending = places, ending
        self._all: dict[int, Relay | Messenger] = {}  # by place

    def follow(self, node: int, hub: Any) -> None:
        """Sends to this node runner from now on."""
        for each in self._all.values():
            each.hub = hub
        for number, place in self._places.items():
            if number not in self._all and isinstance(place, Box | Rounds):
                self._all[number] = self._start(node, hub, place)

    def _start(self, node: int, hub: Any, place: Box | Rounds) -> Relay | Messenger:
        kind: Any = Relay if isinstance(place, Box) else Messenger
        made: Relay | Messenger = kind(node, hub, place, self._ending)
        made.start()
        return made

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was told here before is in the mailboxes on main's node."""
        deadline = time.monotonic() + timeout_s
        told = {each: each.told() for each in self._all.values() if isinstance(each, Relay)}
        while not all(relay.has_relayed(before) for relay, before in told.items()):
            if time.monotonic() > deadline:
                return False
            time.sleep(AGAIN_S)
        return True

    def end(self) -> None:
        for each in self._all.values():
            each.over = True
