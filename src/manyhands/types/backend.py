"""The protocol of backends: jobs and ranks, faults, and how processes talk."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from manyhands.types.data import Array, State
from manyhands.types.sharing import Budget, Live, Notice, Stream, Table

if TYPE_CHECKING:
    from torch import Tensor

    from manyhands.types.needs import Needs


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a process among those of its role. A restarted process keeps it."""

    index: int  # 0 to n - 1; a restart does not change it
    incarnation: int  # how often it was restarted
    role: str = "worker"


Keep = Callable[[], State]
Work = Callable[[Rank], Iterator[Keep | None]]
"""What a worker does. A yield reports progress. There the worker parks or stops when told to.

It may yield a function that returns its state. `Backend.collect` calls the last one yielded.
"""


@dataclass(frozen=True, slots=True)
class Job:
    """A worker that a backend runs."""

    work: Work
    role: str = "worker"
    threads: int = 1  # that compute, for torch, OpenMP and OpenCV
    nice: int = 0  # the process' niceness: a higher one gets less of a busy core
    anywhere: bool = False  # on any node: of memory, locks and groups only what may be elsewhere


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A running process: a worker or a hosted object."""

    role: str  # for a hosted object: its name
    index: int
    incarnation: int
    pid: int  # 0: not running
    node: str = ""  # where it runs, if there are several nodes
    is_near: bool = True  # on main's machine


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that the run survived, and what was done about it."""

    time_s: float  # since the epoch
    process: ProcessInfo
    cause: str  # "killed by SIGKILL", "raised ValueError: ...", "no progress for 60 s"
    action: str  # "restarted as incarnation 2"
    detail: str = ""  # the last lines of its traceback or stack, if there are any
    loses_node: bool = False  # all processes of a node are gone


class Future(Protocol):
    def result(self, timeout_s: float) -> Any:
        """A tensor (valid until the handle's next `ask`), plain data, or a tuple of both.

        Raises TimeoutError if there is no answer in time, and Failure if the method raised.
        """

    def ready(self) -> bool:
        """Whether `result` returns at once."""


class Handle(Protocol):
    """A client's access to a hosted object. The object must copy a vector that it keeps.

    An `ask` is answered after all tells that returned True before it, those of any client. When
    the host dies, its current tell is lost, its current ask is repeated, and waiting messages stay.
    """

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        """Sends without an answer; False if the buffer is full. The float32 vector is copied."""

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Future: ...


class Channel(Protocol):
    """Small records, from all processes to one reader. A writer never waits."""

    def put(self, item: State) -> bool:
        """Sends a small dict of plain data. False: its writer's ring was full."""

    def drain(self) -> list[State]: ...


class Lock(Protocol):
    """Mutual exclusion. A killed holder frees it. Do not hold it across a yield."""

    def __enter__(self) -> bool:
        """True if the previous holder released it; False if that one died inside."""

    def __exit__(self, *error: object) -> None: ...


class Average(NamedTuple):
    """The result of one round of a group: the same bits for every member."""

    vector: Tensor | None  # valid until the caller's next round; None: no member had one
    numbers: dict[int, tuple[float, ...]]  # by member: what it sent with its vector


class Group(Protocol):
    """Up to n members that average in rounds. A process that dies or ends leaves the group.

    The first round waits until all n have joined. If a member is killed before its vector is
    complete, the round leaves it out. If it is killed later, its vector counts.
    """

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:
        """Joins as this member, in its own process. True: it replaces an earlier member.

        A replacement enters at its first `reduce`. Its vector is ignored there, and `catch_up` is
        called while all other members wait.
        """

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        """Waits for all members; parks or stops there when told to. Numbers are not averaged."""

    def members(self) -> frozenset[int]: ...


class Backend(Protocol):
    """Where workers run and how they talk. Knows nothing of reinforcement learning.

    Jobs and factories may capture what it makes: shared tensors and arrays, views of them, tables,
    handles, channels, locks. These are then shared with that process. Make them before `run`.
    `table`, `notice`, `live` and `stream` name one writer, so they also work between nodes. What
    `share`, `allocate` and `lock` make belongs to one node.
    """

    def reserve(self, needs: Needs, tell: Callable[[str], None]) -> None:
        """Before anything is shared: refuses what the machines do not have. `tell` prints a line.

        A run calls it. Without it the backend finds out itself what its jobs need.
        """

    def share(self, tensor: Tensor, *, elsewhere: int | None = None) -> Tensor:
        """A copy in memory that all workers of this node see. Refused if there is none.

        `elsewhere`: jobs of other nodes may capture it too. Each node then has its own memory,
        which is filled with this number at first.
        """

    def allocate(
        self, shape: tuple[int, ...], dtype: np.dtype, *, elsewhere: int | None = None
    ) -> Array:
        """Zeros in memory that all workers of this node see. `elsewhere`: as in `share`."""

    def table(self, rows: int, fields: int, dtype: np.dtype) -> Table: ...  # of zeros

    def budget(self, table: Table, field: int, most: float) -> Budget:
        """For a field of a table from this backend."""

    def notice(self, *arrays: Array) -> Notice:
        """With these as the first arrays. Later ones have their shapes and types."""

    def live(self, vector: Array, counts: Table | None = None, row: int = 0) -> Live:
        """With a copy of this vector. Processes of other nodes may read it only with `counts`.

        Its writer counts the changes in that row. A process that reads the row and then the vector
        finds no change that is counted and not there.
        """

    def stream(
        self, kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]], *, writers: int, fields: int,
        kept: bool = False,
    ) -> Stream:  # fmt: skip
        """`kinds`: shape and type of each array. `fields`: of a writer's row in heads and tails.

        `kept`: a writer is the job of that rank, and reads its own lanes as well.
        """

    def look(self) -> None:
        """Brings main's copies of tables, notices and streams up to date."""

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots", near: int | None = None,
    ) -> Handle:  # fmt: skip
        """Runs an object in its own process. If that dies, the factory makes a new object.

        `near`: the rank on whose node it is to run; None: main's node.

        State that must survive is in shared tensors that the factory captures. `numbers`: length
        of the longest vector told, asked or answered. `depth`: how many tells of a client may
        wait. `transport`: "slots" in shared memory or, if the backend has it, a "queue".
        """

    def channel(self, capacity: int) -> Channel: ...

    def pause(self) -> Callable[[], None]:
        """A function that ends the caller's turn. With real processes it does nothing."""

    def lock(self, *, elsewhere: bool = False) -> Lock:
        """`elsewhere`: jobs of other nodes may capture it. Each node then has its own lock."""

    def group(
        self, n: int, numbers: int = 65_536, *, rows: Tensor | None = None,
        stamps: Array | None = None,
    ) -> Group:  # fmt: skip
        """`numbers`: length of the longest vector averaged.

        Jobs of other nodes may capture it if it has `rows`, a float32 row for each member, and
        `stamps`. A row with a larger stamp is newer, one with an odd stamp is being changed. A
        member of another node finds the newest row in its own when it joins or catches up.
        """

    def run(self, jobs: Sequence[Job]) -> Generator[Fault | None]:
        """Runs until all have ended or it is closed. Yields to main in between."""

    def park(self, timeout_s: float) -> frozenset[int]:
        """Every worker waits at a yield, none inside a group. Returns the ranks that are late.

        A worker that others wait for in a group takes one more turn first.
        """

    def collect(self, timeout_s: float) -> dict[int, State]:
        """The state of each worker that is parked or has ended. Call it while all are parked.

        A worker that died, or yielded no function, is left out.
        """

    def unpark(self) -> None: ...

    def stop(self) -> None: ...  # every worker, at its next yield

    def attend(self) -> list[Fault]:
        """Restarts processes that died. Main calls it often while it is not in `run`.

        Call it once after `run` too: it returns the faults of processes told to stop.
        """

    def process_table(self) -> list[ProcessInfo]: ...

    def has_other_nodes(self) -> bool:
        """Whether jobs with `anywhere` may be on another node than main's. Ask after `reserve`."""

    def nodes_used(self) -> list[str]: ...  # ever, by name; empty: it has no nodes

    def close(self) -> None: ...  # hosted objects too


class BackendFile(Protocol):
    """What the file of a backend has."""

    MOST_PROCESSES: int | None  # that it runs; None, also where it is left out: any number
    CPU_ONLY: bool  # whether its workers compute on the CPU; where it is left out: not
    Config: type | None  # its section of options; `make` then takes them as `options`

    def make(self, seed: int, *, hang_s: float = 120.0, **options: Any) -> Backend: ...
