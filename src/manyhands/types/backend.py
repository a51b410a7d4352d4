"""The seam of processes: what a backend offers, its jobs and ranks, faults, and ways to talk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from manyhands.types.data import Array, State

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rank:
    """The number of a process among those of its role. A restarted process keeps it."""

    index: int  # 0 to n - 1; a restart does not change it
    incarnation: int  # how often it was restarted
    role: str = "worker"


Work = Callable[[Rank], Iterator[None]]
"""What a worker does. Each yield is progress, and where it waits or stops when asked."""


@dataclass(frozen=True, slots=True)
class Job:
    """A worker that a backend runs."""

    work: Work
    role: str = "worker"
    threads: int = 1  # of computation; what torch, OpenMP and OpenCV are told
    nice: int = 0  # how far it steps back where there are fewer cores than processes


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A running process: a worker or a hosted object."""

    role: str  # of a hosted object its name
    index: int
    incarnation: int
    pid: int  # 0: it does not run now


@dataclass(frozen=True, slots=True)
class Fault:
    """Something broke and something was done about it."""

    time_s: float  # since the epoch
    who: ProcessInfo
    cause: str  # "killed by SIGKILL", "raised ValueError: ...", "no progress for 60 s"
    action: str  # "restarted as incarnation 2"
    detail: str = ""  # the last lines of its traceback or stack, if there are any


class Future(Protocol):
    def result(self, timeout_s: float) -> Any:
        """A tensor (lent until the handle's next `ask`), plain data, or a tuple of both.

        Raises TimeoutError when it is not there in time, Failure when the method raised.
        """

    def ready(self) -> bool:
        """Whether `result` would not wait."""


class Handle(Protocol):
    """A hosted object, wherever it lives. To it vectors are lent: it copies what it keeps.

    An `ask` is answered after every `tell` that was granted before it, to anybody. When the host
    dies, the tell it was doing is lost, an ask is done again, what waited goes on waiting.
    """

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        """One way, bounded; False when full. The float32 vector is taken by value."""

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Future: ...


class Channel(Protocol):
    """Lossy and bounded: a writer never waits. One process reads, all may write."""

    def put(self, item: State) -> bool:
        """A small dict of plain data; False when it was lost because its writer's ring is full."""

    def drain(self) -> list[State]: ...


class Lock(Protocol):
    """Mutual exclusion. Freed when its holder is killed. Not to be held across a yield."""

    def __enter__(self) -> bool:
        """True when the holder before left in order; False when it died inside."""

    def __exit__(self, *error: object) -> None: ...


class Average(NamedTuple):
    """What one round of a group came to: the same bits for every member."""

    vector: Tensor | None  # the caller's until its next; None: nobody in this round had one
    numbers: dict[int, tuple[float, ...]]  # by member: what went along with each vector averaged


class Group(Protocol):
    """Up to n members that average in rounds. A process that dies or ends leaves the group.

    At first all n are waited for, whether they have come or not. A member killed before its vector
    was there whole is left out of the round; killed later, its vector counts all the same.
    """

    def join(self, index: int, catch_up: Callable[[], None]) -> bool:
        """As that member, where it runs. True: it follows one that was a member already.

        Such a one comes in with its first `reduce`: nothing is taken from it then, and
        `catch_up` is called while all others stand still.
        """

    def reduce(self, vector: Tensor, *numbers: float) -> Average:
        """Waits for all members; parks and stops there when told to. Numbers travel as they are."""

    def members(self) -> frozenset[int]: ...


class Backend(Protocol):
    """Where workers run and how they talk. Knows nothing of reinforcement learning.

    What it makes (shared tensors and arrays and views of them, handles, channels, locks) may be
    captured by jobs and factories and is then the same thing there. Make them before `run`.
    """

    def share(self, tensor: Tensor) -> Tensor:
        """The tensor in memory every worker sees; refused where there is none."""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Zeros in memory every worker sees."""

    def host(
        self, factory: Callable[[], object], *, name: str = "host", numbers: int = 65_536,
        depth: int = 2, threads: int = 1, transport: str = "slots",
    ) -> Handle:  # fmt: skip
        """An object in a process of its own. If that dies, the factory makes the object again.

        What must survive lives in shared tensors the factory captures. `numbers`: of the longest
        vector told, asked or answered. `depth`: how many tells of a client may wait.
        `transport`: "slots" in shared memory, or a "queue" of pickled messages, where both exist.
        """

    def channel(self, capacity: int) -> Channel: ...

    def pause(self) -> Callable[[], None]:
        """To be called where others may come in between; nothing where they do so anyway."""

    def lock(self) -> Lock: ...

    def group(self, n: int, numbers: int = 65_536) -> Group:
        """`numbers`: of the longest vector averaged."""

    def run(self, jobs: Sequence[Job]) -> Iterator[Fault | None]:
        """Until all have ended or it is closed. Yields whenever main may look on."""

    def park(self, timeout_s: float) -> frozenset[int]:
        """Every worker waits at its next yield. Returns the ranks that were too late."""

    def go_on(self) -> None: ...

    def stop(self) -> None: ...  # every worker, at its next yield

    def attend(self) -> list[Fault]:
        """To be called often by a main that does something else meanwhile; `run` does it itself.

        And once after it, for what became of those who were told to leave.
        """

    def process_table(self) -> list[ProcessInfo]: ...

    def close(self) -> None: ...  # ends hosted objects as well
