"""What a backend deals in: jobs and the seats they are given, faults, and ways to talk.

Part of the Backend seam in `types`, which knows these names too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a worker sits. One that died is followed by another on the same seat."""

    index: int  # 0 to n - 1, the same for all who follow
    incarnation: int  # 0, and one more for each that followed
    role: str = "worker"


Work = Callable[[Seat], Iterator[None]]
"""What a worker does. Each yield is progress, and where it waits or stops when asked."""


@dataclass(frozen=True, slots=True)
class Job:
    """A worker to be run."""

    work: Work
    role: str = "worker"
    threads: int = 1  # of computation; what torch, OpenMP and OpenCV are told
    nice: int = 0  # how far it steps back where there are fewer cores than processes


@dataclass(frozen=True, slots=True)
class Post:
    """Who sits where now: a worker or a hosted object."""

    role: str  # of a hosted object its name
    index: int
    incarnation: int
    pid: int  # 0: nobody sits there now


@dataclass(frozen=True, slots=True)
class Fault:
    """Something broke and something was done about it."""

    time_s: float  # since the epoch
    who: Post
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
    """What one round of a group came to: the same bits for all who were in it."""

    vector: Tensor | None  # the caller's until its next; None: nobody in this round had one
    numbers: dict[int, tuple[float, ...]]  # by member: what went along with each vector averaged


class Group(Protocol):
    """Up to n members that average in rounds. Who dies or ends is no member any more.

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
