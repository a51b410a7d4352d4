"""Turns: workers are threads, and only one of them runs at a time.

A turn ends only inside the backend's primitives. A seeded generator draws the next worker. So the
same seed gives the same interleaving, and a race can be repeated. A single worker needs no thread:
it runs in main's, and hosted objects take turns with it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from manyhands.backends.inprocess.player import Condition, Player, always
from manyhands.types import Failure, Job, Rank, State

MAIN = -1  # main's index as a client; workers have their rank's


class Stopped(BaseException):
    """Ends a worker from inside a primitive. Not an Exception, so that no code catches it."""


class Mailbox(Protocol):
    """One client's messages to one hosted object."""

    client: int

    def waiting(self) -> bool: ...

    def deliver(self) -> None: ...


class Turns:
    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._main_rng = np.random.default_rng(seed)  # separate: main's calls depend on timing
        self._main_semaphore = threading.Semaphore(0)
        self._players: list[Player] = []
        self._now: Player | None = None  # the player whose turn it is; None: main
        self._parking = self._stopping = self._closing = False
        self.count = 0  # of turns after which main went on
        self.mailboxes: list[Mailbox] = []

    @property
    def current(self) -> int:
        """The client whose turn it is."""
        return MAIN if self._now is None else self._now.rank.index

    @property
    def crowded(self) -> bool:
        """Whether several workers run."""
        return len(self._players) > 1 and not self._closing

    @property
    def ranks(self) -> list[Rank]:
        return [player.rank for player in self._players if not player.done]

    # --- For the primitives ---------------------------------------------------------------------

    def pause(self, ready: Condition = always, *, rests: bool = False) -> None:
        """Ends the turn; returns in this worker's next one, when `ready`.

        A worker that `rests` counts as parked: the workers it waits for may be parked already.
        """
        if self._now is None:
            self._main_pause(ready)
        elif not self._closing:  # a worker that is being ended does not wait
            self._now.resting = rests
            self._player_pause(self._now, ready)

    def _player_pause(self, me: Player, ready: Condition) -> None:
        me.ready = ready
        chosen = self._draw_player()
        if chosen is None:
            self._main_semaphore.release()
            self._await_turn(me)
        elif chosen is not me:
            self._hand_to(chosen)
            self._await_turn(me)
        me.ready, me.resting = always, False

    def ended(self, index: int) -> bool:
        return any(player.done for player in self._players if player.rank.index == index)

    def _main_pause(self, ready: Condition) -> None:
        while box := self._draw_mailbox():
            box.deliver()
        while not ready():
            self.count += 1
            self._turn()

    def _await_turn(self, me: Player) -> None:
        me.semaphore.acquire()
        self._now = me
        if self._closing:
            raise Stopped

    def _hand_to(self, player: Player) -> None:
        self._now = player
        player.semaphore.release()

    # --- Drawing --------------------------------------------------------------------------------

    def _draw_player(self) -> Player | None:
        """Draws players and mailboxes, and delivers messages, until a player is drawn.

        None: it is main's turn, because all workers that could run are parked.
        """
        while True:
            choices = [*self._able(), *self._full_mailboxes()]
            if self._parking and not choices:
                return None
            chosen = self._draw(self._rng, choices)
            if isinstance(chosen, Player):
                return chosen
            chosen.deliver()

    def _draw_mailbox(self) -> Mailbox | None:
        """For main: one of its own mailboxes, or none. Other clients' are not drawn here."""
        own = [box for box in self._full_mailboxes() if box.client == MAIN]
        chosen: Mailbox | None = self._draw(self._main_rng, [None, *own])
        return chosen

    def _able(self) -> list[Player]:
        """Players that could run now. Main is not among them: every yield returns to it."""
        return [
            player
            for player in self._players
            if not player.done and player.ready() and not self._is_parked(player)
        ]

    def _is_parked(self, player: Player) -> bool:
        return self._parking and player.at_yield and not player.one_more

    def _full_mailboxes(self) -> list[Mailbox]:
        return [box for box in self.mailboxes if box.waiting()]

    @staticmethod
    def _draw(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
        if not choices:
            raise Failure(
                "deadlock: every worker waits for another",
                "check the order in which workers take locks",
            )
        return choices[int(rng.integers(len(choices)))] if len(choices) > 1 else choices[0]

    # --- For main -------------------------------------------------------------------------------

    def play(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Gives turns until all have ended; yields to main after each."""
        self._parking = self._stopping = self._closing = False
        self._players = [Player(Rank(i, 0, job.role), job) for i, job in enumerate(jobs)]
        self._start()
        try:
            if len(jobs) == 1:
                yield from self._play_alone(self._players[0])
            while any(not player.done for player in self._players):
                self.count += 1
                if self._able():
                    self._turn()
                yield
        finally:
            self._end()

    def _play_alone(self, player: Player) -> Iterator[None]:
        """With a single worker there is nothing to draw, so turns cost nothing."""
        while not (self._stopping or self.mailboxes):
            if not self._parking:
                self._now = player
                try:
                    player.keep = next(player.steps)
                except StopIteration:
                    player.done = True
                    return
                finally:
                    self._now = None
            yield

    def _start(self) -> None:
        for player in self._players:
            player.steps = player.job.work(player.rank)
            if len(self._players) > 1:
                name = f"{player.rank.role}-{player.rank.index}"
                player.thread = threading.Thread(target=self._live, args=(player,), name=name)
                player.thread.start()

    def _turn(self) -> None:
        """Draws a worker. It and those that follow run until one yields or ends."""
        player = self._draw_player()
        if player is None:
            raise Failure("main waits for a worker that is parked")
        if player.thread is None:
            self._now = player
            self._step(player)
        else:
            self._hand_to(player)
            self._main_semaphore.acquire()
        self._now = None
        for ended in self._players:
            if ended.error is not None:
                error, ended.error = ended.error, None
                raise error

    def _live(self, player: Player) -> None:
        """Runs in a worker's thread."""
        try:
            while not player.done:
                self._await_turn(player)
                self._step(player)
                self._main_semaphore.release()
        except Stopped:
            player.done = True
            self._main_semaphore.release()

    def _step(self, player: Player) -> None:
        """Runs the worker to its next yield or its end."""
        try:
            if self._stopping:
                self._dismiss(player)
            else:
                player.at_yield = player.one_more = False
                player.keep = next(player.steps)
                player.at_yield = True
        except StopIteration:
            player.done = True
        except Stopped:
            raise
        except BaseException as error:
            player.done, player.error = True, error

    @staticmethod
    def _dismiss(player: Player) -> None:
        player.done = True
        close: Callable[[], None] = getattr(player.steps, "close", lambda: None)
        close()

    def _end(self) -> None:
        """Ends every worker where it is; its `finally` blocks run."""
        self._closing = True
        for player in self._players:
            self._now = player
            if player.thread is not None:
                while not player.done:
                    player.semaphore.release()
                    self._main_semaphore.acquire()
                player.thread.join()
            self._dismiss(player)
        self._now = None

    # --- Parking --------------------------------------------------------------------------------

    def park(self) -> frozenset[int]:
        """Runs the workers that are between two yields until each is at one.

        If some rest, they wait for workers that are parked. These take one more turn each.
        """
        self._parking = True
        while True:
            while self._able():
                self._turn()
            parked = [player for player in self._players if player.at_yield and not player.done]
            if not parked or not any(p.resting for p in self._players if not p.done):
                break
            for player in parked:
                player.one_more = True
        return frozenset(
            p.rank.index for p in self._players if not (p.done or p.at_yield or p.resting)
        )

    def collect(self) -> dict[int, State]:
        players = [player for player in self._players if player.keep is not None]
        return {player.rank.index: player.keep() for player in players if player.keep}

    def unpark(self) -> None:
        self._parking = False

    def stop(self) -> None:
        self._stopping, self._parking = True, False
