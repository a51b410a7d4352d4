"""A group on several nodes: members of other nodes have a proxy in the group of main's node.

On main's node a group is the one of `processes`: its rounds, their commit under a lock, and what
happens when a member is lost. A member of another node asks its node runner, which sends each
question to main's node. There a proxy takes part in the round for it, in a thread of that question.
So a round is decided by the live members alone: if a node is lost, its proxies leave the group, and
the others average the vectors that are there. A member that comes enters between two decisions.

The newest row may be on another node: if all learners of main's node are killed in the middle of a
step. So a member tells the stamp of its row, and gives the row if it is newer than those here.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from manyhands.backends.processes import control, hosted
from manyhands.backends.processes.control import LOOK_S, NAP_S
from manyhands.backends.processes.mailbox import BOTH, DONE, ERROR, NO_VECTOR, VALUE, Mailbox
from manyhands.backends.ray import pieces
from manyhands.backends.ray.boxes import Rounds
from manyhands.backends.ray.relaying import AGAIN_S, BUSY, BUSY_S, FENCED, Answer, Request
from manyhands.types import Array, Average, Failure

if TYPE_CHECKING:
    from torch import Tensor

MOST_AWAY = 60  # members on other nodes: each waits in a thread of main's node runner
ANSWER_S = 60.0  # a round may take long. Without an answer the question is sent again
NEWCOMER, GIVE = 1, "give"


# --- In the process of a member -------------------------------------------------------------------


class AwayGroup:
    """The end of a member on another node. `rows` and `stamps` are those of its node."""

    def __init__(self, mailbox: Mailbox, client: int, rows: Array, stamps: Array) -> None:
        self._handle, self._rows, self._stamps = (
            hosted.Handle("group", mailbox, client), rows, stamps,
        )  # fmt: skip
        self._me, self._newcomer = 0, False
        self._catch_up: Callable[[], None] = lambda: None

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:
        self._me, self._catch_up = index, catch_up
        row, (found, stamp) = self._ask("join", None, control.own_incarnation())
        self._take(row, stamp)
        self._newcomer = found == NEWCOMER
        return self._newcomer

    def members(self) -> frozenset[int]:
        return frozenset(map(int, self._ask("members", None)))

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        newcomer, self._newcomer = self._newcomer, False
        if newcomer:
            self._take(*self._ask("enter", None))
            self._catch_up()
            found = self._ask("complete", None)
        else:
            stamp = int(self._stamps[self._me])
            found = self._ask("reduce", vector, stamp, *numbers)
            if found == GIVE:
                import torch

                self._ask("take", torch.from_numpy(self._rows[self._me]), stamp)
                found = self._ask("reduce", vector, stamp, *numbers)
        mean, sent = found if isinstance(found, tuple) else (None, found)
        return Average(mean, {int(member): tuple(rest) for member, *rest in sent})

    def _take(self, row: Tensor, stamp: float) -> None:
        self._stamps[self._me] = -1  # it is being changed
        self._rows[self._me] = row.numpy()
        self._stamps[self._me] = int(stamp)

    def _ask(self, method: str, vector: Tensor | None, *numbers: float) -> Any:
        """Parks or stops here when told to, as members on main's node do."""
        answer = self._handle.ask(method, vector, self._me, *numbers)
        while True:
            control.obey_command()
            try:
                return answer.result(LOOK_S)
            except TimeoutError:
                continue
            except Failure as error:  # a failure would end the run, not only this process
                raise RuntimeError(str(error)) from error


# --- Away from main's node ------------------------------------------------------------------------


class Messenger(threading.Thread):
    """Sends the questions of each member on its own, since each waits for the others."""

    def __init__(self, node: int, hub: Any, rounds: Rounds, ending: Callable[[], Any]) -> None:
        super().__init__(name=f"messenger {rounds.place}", daemon=True)
        self._node, self.hub, self._place, self._mailbox = node, hub, rounds.place, rounds.mailbox
        self._ending, self.over = ending, False
        self._busy: set[int] = set()  # clients whose question is under way
        self._pool = ThreadPoolExecutor(MOST_AWAY, "question")

    def run(self) -> None:
        with self._ending():
            while not self.over:
                heard = self._mailbox.heard()
                for client, number in self._mailbox.waiting():
                    if client not in self._busy:
                        self._busy.add(client)
                        self._pool.submit(self._carry, client, number)
                self._mailbox.sleep(heard, NAP_S)

    def _carry(self, client: int, number: int) -> None:
        with self._ending():
            request = Request(*self._mailbox.read_request(client, number))
            arrays = self._mailbox.arrays(client)
            vector = arrays[number % self._mailbox.ring][: max(0, request.length)]
            answer = self._answered(client, number, request, pieces.cut([vector]))
            if answer is None:
                return
            if answer.vector is not None:
                arrays[-1][: answer.length] = answer.vector
            self._mailbox.lines[client, DONE] = number + 1
            self._busy.discard(client)  # first: its next question follows the answer
            self._mailbox.write_answer(client, number, answer.kind, answer.length, answer.data)

    def _answered(
        self, client: int, number: int, request: Request, content: list[bytes]
    ) -> Answer | None:
        """None: the run is over."""
        import ray

        given = (self._node, self._place, (client, number), tuple(request), *content)
        while not self.over:
            try:
                answer = ray.get(self.hub.meet.remote(*given), timeout=ANSWER_S)
            except ray.exceptions.GetTimeoutError:
                continue
            except ray.exceptions.RayError:
                answer = BUSY
            if answer == FENCED:
                os._exit(1)  # main has placed these processes elsewhere
            if answer != BUSY:
                return Answer(*answer)
            time.sleep(AGAIN_S)
        return None


# --- On main's node -------------------------------------------------------------------------------


class Proxies:
    """Takes part in rounds for members of other nodes."""

    def __init__(self, places: Mapping[int, Any], standing: Callable[[int], str]) -> None:
        """`standing`: why nothing of a node is taken now; empty if it is."""
        self._places, self._standing = places, standing
        self._turns: defaultdict[Any, threading.Lock] = defaultdict(threading.Lock)
        self._last: dict[Any, tuple[int, Answer]] = {}  # by node, place and client there
        self._proxies: dict[tuple[int, int], Proxy] = {}  # by place and member

    def meet(self, node: int, place: int, sender: tuple[int, int], plain: Any, content: Any) -> Any:
        """Answers a question once. `sender`: its client number there, and its number."""
        if standing := self._standing(node):
            return standing
        (client, number), request = sender, Request(*plain)
        key = node, place, client
        if not self._turns[key].acquire(timeout=BUSY_S):
            return BUSY
        try:
            last = self._last.get(key)
            if last is None or last[0] != number:
                self._last[key] = number, self._answer(node, place, request, content)
            return self._last[key][1]
        finally:
            self._turns[key].release()

    def _answer(self, node: int, place: int, request: Request, content: Any) -> Answer:
        member, *numbers = request.numbers
        key = place, int(member)
        if request.method == "join":
            self._proxies[key] = Proxy(self._places[place], int(member), lambda: self._check(node))
        if key not in self._proxies:  # the node runner here is a new one
            return Answer(ERROR, 0, "the round was lost with the node runner of main", None)
        vector = None
        if request.length != NO_VECTOR:
            vector = pieces.Reader(content)
        proxy: Any = self._proxies[key]
        return Answer(*getattr(proxy, request.method)(vector, request.length, *numbers))

    def _check(self, node: int) -> None:
        if self._standing(node):
            raise Failure("this node was given up, or the run is over")


Found = tuple[int, int, Any, Array | None]  # an answer


class Proxy:
    """One member's."""

    def __init__(self, rounds: Rounds, member: int, check: Callable[[], None]) -> None:
        """`check` raises if the member's node may not take part any more."""
        assert rounds.group is not None
        assert rounds.proxies is not None
        assert rounds.rows is not None
        assert rounds.stamps is not None
        self._rounds, self._member, self._now = rounds, member, 0
        self._rows, self._stamps = rounds.rows, rounds.stamps
        self._group = rounds.group.end_of(int(rounds.proxies[member]))
        self._group.obey = self._check = check

    def join(self, _: Any, __: int, incarnation: float) -> Found:
        self._rounds.note_life(self._member, int(incarnation))
        newcomer = self._group.join(self._member, lambda: None)
        row, stamp = self._newest()
        return BOTH, len(row), [NEWCOMER if newcomer else 0, stamp], row

    def members(self, _: Any, __: int) -> Found:
        return VALUE, 0, sorted(self._group.members()), None

    def reduce(self, vector: pieces.Reader, length: int, stamp: float, *numbers: float) -> Found:
        if stamp > self._newest_stamp():
            return VALUE, 0, GIVE, None
        self._now, slot = self._group.slot()
        vector.read(slot[:length])
        self._group.arrive(self._now, length, numbers)
        self._group.wait_until_decided(self._now)
        return self.complete(None, 0)

    def take(self, vector: pieces.Reader, length: int, stamp: float) -> Found:
        """The member's row, which is newer than all here. No other process writes it here."""
        self._stamps[self._member] = -1
        vector.read(self._rows[self._member, :length])
        self._stamps[self._member] = int(stamp)
        return VALUE, 0, None, None

    def enter(self, _: Any, __: int) -> Found:
        """Until the round is decided: then all others wait, and no row changes."""
        self._now = self._group.enter()
        self._group.wait_until_decided(self._now)
        row, stamp = self._newest()
        return BOTH, len(row), stamp, row

    def complete(self, _: Any, __: int) -> Found:
        mean, sent = self._group.complete(self._now)
        listed = [[member, *numbers] for member, numbers in sent.items()]
        if mean is None:
            return VALUE, 0, listed, None
        return BOTH, len(mean), listed, mean.copy()

    def _newest_stamp(self) -> int:
        """Of rows that are complete, or will be soon."""
        return int(self._stamps.max())

    def _newest(self) -> tuple[Array, int]:
        while True:
            stamps = self._stamps.copy()
            index = int(np.where(stamps % 2 == 0, stamps, -1).argmax())
            row = self._rows[index].copy()
            if self._stamps[index] == stamps[index] and stamps[index] % 2 == 0:
                return row, int(stamps[index])
            self._check()
            time.sleep(AGAIN_S)
