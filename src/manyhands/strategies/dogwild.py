"""Dogwild!: Hogwild inside islands, which exchange parameters over a lossy channel (Noel 2014).

The vector is cut into chunks, and each island is the master of a share of them. A master sends the
values of its chunks to the other islands, in turn and for ever. An island that receives a chunk
answers with what it has learned there since the last time, and continues from the received values
plus that difference. The master adds it. So this is a parameter server without a server: every
island is one for some chunks, and a pull is answered by a push.

Nothing is acknowledged, and nothing waits. A lost chunk is sent again in the next cycle. A lost
difference is lost. `packet_loss` loses a share of both, drawn from a seed.

It differs from the authors' code (Noel and Osindero, "Dogwild! - Distributed Hogwild for CPU &
GPU", 2014; the branch parallel2 of cypof/caffe) as follows. The channel is shared memory, with one
slot for each chunk and direction. That needs no socket, works in one process too, where a run
repeats from its seed, and loses as a network does: a slot that was not read in time is overwritten
by newer values. And there is no thread that sends: one learner of each island does it after its
updates, at a steady pace. If that learner makes no update while another of its island makes 64,
that one does it. While no learner of an island runs, its chunks are not exchanged. For an island of
another node main's node sends and receives, whenever its mirror comes (`mirrors.py`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands.strategies import total
from manyhands.strategies.islands import (
    INT,
    IslandOptions,
    Islands,
    Member,
    Watch,
    fill,
    stacked,
)
from manyhands.strategies.mirrors import AwayMember
from manyhands.types import Array, Backend, Model, State, option

MOST_TURNS = 1000  # of an island elsewhere at once


@dataclass(frozen=True)
class Config(IslandOptions):
    chunks: int = option(64, "pieces that the vector is cut into", low=1, high=65_536)
    sends_per_update: int = option(
        1, "chunks that an island sends after each update of its learner that sends", low=1
    )
    packet_loss: float = option(0.0, "share of chunks and differences to lose", low=0, high=1)


class Slots:
    """One direction of the channel: a slot per chunk for each island, and counts."""

    def __init__(self, backend: Backend, vector: Tensor, islands: int, chunks: int) -> None:
        self.vectors = [backend.share(vector, elsewhere=0) for _ in range(islands)]
        self.written = backend.allocate((islands, chunks), INT, elsewhere=0)
        self.read = backend.allocate((islands, chunks), INT, elsewhere=0)

    def is_free(self, island: int, chunk: int) -> bool:
        return bool(self.written[island, chunk] == self.read[island, chunk])

    def put(self, island: int, chunk: int, where: slice, values: Tensor) -> None:
        self.vectors[island][where] = values
        self.written[island, chunk] += 1

    def take(self, island: int, chunk: int, where: slice) -> Tensor:
        """A reader killed after this has lost the packet."""
        values = self.vectors[island][where].clone()
        self.read[island, chunk] = self.written[island, chunk]
        return values

    def full(self, islands: Array, chunks: Array) -> Iterator[tuple[int, int]]:
        """(island, chunk) of these that were written and not read."""
        where = np.ix_(islands, chunks)
        waiting = np.argwhere(self.written[where] != self.read[where])
        return ((int(islands[i]), int(chunks[c])) for i, c in waiting)


class Dogwild(Islands):
    name = "dogwild"

    def __init__(
        self,
        config: Config,
        *,
        backend: Backend,
        vector: Tensor,
        learners: int = 1,
        island_size: int = 1,
        **given: Any,
    ) -> None:
        super().__init__(
            config, backend=backend, vector=vector, learners=learners, island_size=island_size,
            **given,
        )  # fmt: skip
        self.config, islands = config, self.islands
        chunks = max(islands, min(config.chunks, vector.numel()))
        edges = np.linspace(0, vector.numel(), chunks + 1).astype(int).tolist()
        self.chunks = [slice(*ends) for ends in pairwise(edges)]
        self.mastered = np.array_split(np.arange(chunks), islands)  # by island
        # By island: its vector at the last exchange.
        self.last = [backend.share(vector, elsewhere=0) for _ in self.members]
        self.values = Slots(backend, vector, islands, chunks)  # to this island
        self.differences = Slots(backend, vector, islands, chunks)  # from this island
        self.sends = backend.allocate((islands,), INT, elsewhere=0)  # by island: also those lost
        self.sender = backend.allocate((islands,), INT, elsewhere=0)  # its learner that sends
        self.sender[:] = [members.start for members in self.members]
        self._seed = zlib.crc32(vector.detach().cpu().numpy().tobytes())  # differs between runs
        self._channels: dict[int, tuple[Channel, int]] = {}  # of islands elsewhere; their updates
        self.share_with_other_nodes(backend, vector)

    def join(self, model: Model, index: int) -> AwayMember | ChannelMember:
        return self.away_member(model, index) or ChannelMember(self, model, index)

    def exchange_for(self, island: int) -> None:
        """As often as one of its learners would have, after each of its updates."""
        if self.mirrors is None or self.islands == 1:
            return
        members = self.members[island]
        updates = total(self.mirrors.counts.rows()[members.start : members.stop]) // len(members)
        if island not in self._channels:
            self._channels[island] = Channel(self, island, self.chance(members.start)), updates
        channel, before = self._channels[island]
        self._channels[island] = channel, updates
        turns = min(max(1, updates - before), MOST_TURNS)
        channel.exchange(turns * self.config.sends_per_update)

    def chance(self, index: int) -> random.Random:
        """Decides what is lost. Differs between runs, learners and restarts."""
        return random.Random(f"{self._seed} {index} {self.updates[index]}")

    def own_state(self) -> State:
        """What is in the channel is lost."""
        return {"last": stacked(self.last)}

    def restore_own(self, own: State) -> None:
        fill(self.last, own, "last" if "last" in own else "vectors")

    def diagnostics(self) -> Mapping[str, float]:
        return {**super().diagnostics(), "charts/chunks_sent": float(self.sends.sum())}


class Channel:
    """What an island sends and receives, by one learner after its updates."""

    def __init__(self, shared: Dogwild, island: int, chance: random.Random) -> None:
        self._shared, self._island, self._chance = shared, island, chance
        self._loss, self._mastered = shared.config.packet_loss, shared.mastered[island]
        self._vector, self._last = shared.vectors[island], shared.last[island]
        self._others = np.array([i for i in range(shared.islands) if i != island])
        self._elsewhere = np.setdiff1d(np.arange(len(shared.chunks)), self._mastered)

    @torch.no_grad()
    def exchange(self, sends: int) -> None:
        self._add_differences()
        for _ in range(sends):
            self._send()
        self._receive()

    def _add_differences(self) -> None:
        """As the master of a chunk: what other islands learned there."""
        differences = self._shared.differences
        for island, chunk in differences.full(self._others, self._mastered):
            where = self._shared.chunks[chunk]
            self._vector[where] += differences.take(island, chunk, where)

    def _send(self) -> None:
        """The next chunk to the next island: each chunk to all, one after the other."""
        shared = self._shared
        turn, receiver = divmod(int(shared.sends[self._island]), len(self._others))
        chunk = int(self._mastered[turn % len(self._mastered)])
        shared.sends[self._island] += 1
        if not self._is_lost():
            where = shared.chunks[chunk]
            shared.values.put(int(self._others[receiver]), chunk, where, self._vector[where])

    def _receive(self) -> None:
        """Values of other masters: answers with what was learned here, and continues from both.

        If the master has not read the last answer, the difference is kept for the next time.
        """
        shared, me = self._shared, self._island
        for _, chunk in shared.values.full(np.array([me]), self._elsewhere):
            where = shared.chunks[chunk]
            values = shared.values.take(me, chunk, where)
            learned = self._vector[where] - self._last[where]
            answers = shared.differences.is_free(me, chunk)
            self._last[where] = values + learned if answers else values
            self._vector[where] = values + learned
            if answers and not self._is_lost():
                shared.differences.put(me, chunk, where, learned)

    def _is_lost(self) -> bool:
        return self._loss > 0 and self._chance.random() < self._loss


class ChannelMember(Member):
    def __init__(self, shared: Dogwild, model: Model, index: int) -> None:
        super().__init__(shared, model, index)
        self._shared, self._watch = shared, Watch(shared.updates, index)
        self._channel = Channel(shared, self.island, shared.chance(index))

    def exchange(self) -> None:
        shared = self._shared
        sender = int(shared.sender[self.island])
        if sender != self.index:
            if not self._watch.has_stopped(sender):
                return
            shared.sender[self.island] = self.index
        self._channel.exchange(shared.config.sends_per_update)


make = Dogwild
