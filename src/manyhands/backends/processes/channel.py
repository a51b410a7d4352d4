"""A bounded, lossy channel: one ring of small records for each writer, one reader for all."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import numpy as np

from manyhands.backends.processes import segment
from manyhands.backends.processes.control import MAIN, MOST_CLIENTS, WORDS
from manyhands.backends.processes.packing import Endpoint
from manyhands.types import State

ITEM_BYTES = 4096
HEAD = struct.Struct("<II")  # length and checksum of what follows
WRITTEN, READ = range(2)  # counters of a ring: the writer's and the reader's
LINES_BYTES = segment.pages(MOST_CLIENTS * WORDS * 8)


class Channel(Endpoint):
    """A record exists once its writer's counter has passed it, so a kill leaves no half record."""

    def __init__(self, memory: segment.Segment, capacity: int, client: int) -> None:
        self._memory, self._capacity, self._client = memory, capacity, client
        self._lines = memory.array(0, (MOST_CLIENTS, WORDS), np.int64)
        self._own = self._lines[client].data
        self._bytes = memoryview(memory)

    def put(self, item: State) -> bool:
        own = self._own
        if own[WRITTEN] - own[READ] >= self._capacity:
            return False
        content = json.dumps(item, ensure_ascii=False, default=_plain).encode()
        if len(content) > ITEM_BYTES - HEAD.size:
            raise ValueError(f"an item of {len(content)} bytes: a channel takes {ITEM_BYTES}")
        at = self._place(self._client, own[WRITTEN])
        HEAD.pack_into(self._bytes, at, len(content), zlib.crc32(content))
        self._bytes[at + HEAD.size : at + HEAD.size + len(content)] = content
        own[WRITTEN] += 1
        return True

    def drain(self) -> list[State]:
        """All records, each writer's in order. Drops damaged ones."""
        found: list[State] = []
        for client in np.flatnonzero(self._lines[:, WRITTEN] != self._lines[:, READ]).tolist():
            line = self._lines[client].data
            for number in range(line[READ], line[WRITTEN]):
                found += self._read(client, number)
                line[READ] = number + 1
        return found

    def _read(self, client: int, number: int) -> list[State]:
        at = self._place(client, number)
        length, checksum = HEAD.unpack_from(self._bytes, at)
        content = bytes(self._bytes[at + HEAD.size : at + HEAD.size + min(length, ITEM_BYTES)])
        return [json.loads(content)] if zlib.crc32(content) == checksum else []

    def _place(self, client: int, number: int) -> int:
        ring = LINES_BYTES + client * ring_bytes(self._capacity)
        return int(ring + number % self._capacity * ITEM_BYTES)

    def reduce_for(self, client: int) -> tuple[Any, ...]:
        reserve(self._memory, self._capacity, client)
        return Channel, (self._memory, self._capacity, client)


def _plain(number: Any) -> Any:
    return number.item()


def ring_bytes(capacity: int) -> int:
    return segment.pages(capacity * ITEM_BYTES)


def reserve(memory: segment.Segment, capacity: int, client: int) -> None:
    memory.reserve(LINES_BYTES + client * ring_bytes(capacity), ring_bytes(capacity))


def make(capacity: int) -> Channel:
    memory = segment.sparse(LINES_BYTES + MOST_CLIENTS * ring_bytes(capacity))
    memory.reserve(0, LINES_BYTES)
    reserve(memory, capacity, MAIN)
    return Channel(memory, capacity, MAIN)
