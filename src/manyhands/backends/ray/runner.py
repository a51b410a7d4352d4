"""Main's view of the node runners: its calls to them, their news, and which of them are silent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from manyhands.backends.processes.supervisor import Patience
from manyhands.backends.ray import node_runner
from manyhands.backends.ray.keeper import News
from manyhands.backends.ray.node_runner import Answer
from manyhands.backends.ray.nodes import Node
from manyhands.types import Failure, Fault, ProcessInfo

CALL_S = 60.0  # for an order that takes no time itself
AGAIN_S = 0.05  # before a call is repeated that did not get through
SILENT_S = 3.0  # without news: nothing is expected of the node for now
LOST_S = 9.0  # without news: its processes are placed elsewhere
CLOSING_S = 10.0
LONGEST_LOOK_S = 0.2  # that counts as silence between two looks


class Lost(Failure):
    """A node runner that died, or has not answered for too long."""


class Runner:
    def __init__(
        self, node: Node, number: int, *, patience: Patience, imports: Sequence[str]
    ) -> None:
        """`number`: no two node runners of a run have the same."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.node, self.number = node, number
        strategy = NodeAffinitySchedulingStrategy(node.id, soft=False)
        made = node_runner.actor_class().options(scheduling_strategy=strategy)
        self.handle = made.remote(node.name, patience=patience, imports=tuple(imports))
        self.ranks: dict[int, int] = {}  # of the workers placed here: rank -> client number
        self.hosts: dict[int, int] = {}  # of hosted objects: index -> client number
        self.is_silent = False
        self.news = News([], 0, [], frozenset(), None)
        self.faults: list[Fault] = []  # that main has not taken yet
        self._version = 0
        self._tick: Any = None
        self.silent_s = 0.0  # time that main waited for news
        self._looked_s, self._has_answered = time.monotonic(), False

    def count_silence(self) -> None:
        """After each look at the ticks. While main was busy elsewhere, no runner is to blame."""
        now_s = time.monotonic()
        if self._has_answered:  # it may take long to start
            self.silent_s += min(now_s - self._looked_s, LONGEST_LOOK_S)
        self._looked_s = now_s

    def listen(self, most_s: float) -> None:
        """While main waits for an answer: a node runner that is silent does not answer."""
        import ray

        if ray.wait([self.tick()], timeout=0)[0]:
            self.hear_tick()
        self.count_silence()
        if self.silent_s > most_s:
            raise Lost(f"the node runner of {self.node.name} was silent for {most_s:g} s")

    def incarnation_of(self, role: str, index: int) -> int:
        """As it is known; 0 if it is not."""
        found = [p.incarnation for p in self.processes if (p.role, p.index) == (role, index)]
        return max(found, default=0)

    def is_running(self, rank: int, incarnation: int) -> bool:
        """As far as it is known. A process that was never seen has not begun yet."""
        return all(p.pid for p in self.processes if (p.index, p.incarnation) == (rank, incarnation))

    @property
    def clients(self) -> set[int]:
        return {*self.ranks.values(), *self.hosts.values()}

    def counted(self, hosted: int | None) -> int:
        """Processes that need a CPU. `hosted`: how many objects do, of those that are hosted."""
        objects = len(self.hosts)
        return len(self.ranks) + (objects if hosted is None else min(objects, hosted))

    @property
    def processes(self) -> list[ProcessInfo]:
        return self.news.processes

    # --- Calls ------------------------------------------------------------------------------------

    def begin(self, method: str, *given: Any) -> Call:
        return Call(self, method, given)

    def call(self, method: str, *given: Any, timeout_s: float = CALL_S) -> Any:
        return self.begin(method, *given).result(timeout_s)

    def order(self, method: str, *given: Any, timeout_s: float = CALL_S) -> Any:
        """A call that is answered with news as well."""
        return self.take(self.call(method, *given, self.news.faults_so_far, timeout_s=timeout_s))

    def take(self, answer: Answer) -> Any:
        self._hear(answer.news)
        if answer.refusal is not None:
            raise answer.refusal
        return answer.value

    # --- News -------------------------------------------------------------------------------------

    def tick(self) -> Any:
        """The call that returns when there is news."""
        if self._tick is None:
            self._tick = self.handle.tick.remote(self.news.faults_so_far, self._version)
        return self._tick

    def hear_tick(self) -> None:
        """Call it when the tick is ready."""
        import ray

        tick, self._tick = self._tick, None
        try:
            news, self._version = ray.get(tick)
        except ray.exceptions.ActorUnavailableError:
            time.sleep(AGAIN_S)  # it may be back soon; silence tells
            return
        except ray.exceptions.RayActorError as error:
            raise Lost(f"the node runner of {self.node.name} died") from error
        self._hear(news)

    def _hear(self, news: News) -> None:
        """News may overtake each other: faults are taken once."""
        self.silent_s, self._has_answered = 0.0, True
        fresh = news.faults_so_far - self.news.faults_so_far
        if fresh < 0:
            return
        self.faults += news.faults[len(news.faults) - fresh :] if fresh else []
        self.news = news

    def kill(self) -> None:
        import ray

        ray.kill(self.handle)


class Call:
    def __init__(self, runner: Runner, method: str, given: tuple[Any, ...]) -> None:
        self._runner, self._method, self._given = runner, method, given
        self._answer = self._send()

    def _send(self) -> Any:
        return getattr(self._runner.handle, self._method).remote(*self._given)

    def result(self, timeout_s: float, *, silent_s: float = LOST_S) -> Any:
        """An order that did not get through is repeated: the second time it does nothing.

        `silent_s`: how long to wait for a node runner that is silent.
        """
        import ray

        deadline, name = time.monotonic() + timeout_s, self._runner.node.name
        while True:
            left_s = deadline - time.monotonic()
            try:
                return ray.get(self._answer, timeout=min(max(0.0, left_s), LONGEST_LOOK_S))
            except ray.exceptions.ActorUnavailableError:
                time.sleep(AGAIN_S)
                self._answer = self._send()
            except ray.exceptions.RayActorError as error:
                raise Lost(f"the node runner of {name} died") from error
            except ray.exceptions.GetTimeoutError as error:
                if left_s <= 0:
                    raise Lost(f"the node runner of {name} does not answer") from error
                self._runner.listen(silent_s)
            except ray.exceptions.RayTaskError as error:
                raise Failure(f"the node runner of {name} failed: {error}") from error


def wait(runners: list[Runner], timeout_s: float) -> list[Runner]:
    """Waits for news; returns the node runners that have some."""
    import ray

    ticks = {runner.tick(): runner for runner in runners}
    if not ticks:
        time.sleep(timeout_s)
        return []
    ready, _ = ray.wait(list(ticks), num_returns=1, timeout=timeout_s)
    if ready and len(ticks) > 1:
        ready, _ = ray.wait(list(ticks), num_returns=len(ticks), timeout=0)
    return [ticks[tick] for tick in ready]
