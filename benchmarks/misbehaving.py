"""Environments that misbehave in 81 ways: what they do, and when.

The harmless base has episodes of ten steps. It writes a byte for every step that it begins and for
every episode that ends, so that a run's counters can be checked. Each kind misbehaves once in a
run, in the first process that gets there. Kinds that misbehave in `close` do so in every process,
but in workers only if it would end the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

EPISODE_STEPS = 10
STEP, EPISODE = b"s", b"e"
LOUD = "\x1b[2J\x07" * 500_000  # three megabytes of terminal codes


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


class Panic(BaseException):
    """Like an exception from a library in another language: not an Exception."""


def _raise(error: BaseException) -> None:
    raise error


def _recurse() -> None:
    _recurse()


def _hang() -> None:
    time.sleep(10_000)


def _kill(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(10)  # until the signal arrives


LEAVING: dict[str, Callable[[], Any]] = {
    "exits with code 0": partial(os._exit, 0),
    "exits with code 3": partial(os._exit, 3),
    "kills itself": partial(_kill, signal.SIGKILL),
    "crashes": partial(_kill, signal.SIGSEGV),
    "hangs": _hang,
}
RAISING: dict[str, Callable[[], Any]] = {
    "raises": lambda: _raise(ValueError("gone")),
    "raises without a text": lambda: _raise(Unprintable()),
    "panics": lambda: _raise(Panic("at the disco")),
    "leaves the program": lambda: sys.exit(0),
    "shouts": lambda: _raise(ValueError(LOUD)),
    "stops an iteration": lambda: _raise(StopIteration()),
    "recurses for ever": _recurse,
}
MORE_RAISING: dict[str, Callable[[], Any]] = {
    "has no memory": lambda: _raise(MemoryError()),
    "leaves with words": lambda: sys.exit("that was it"),
}
OBSERVED: dict[str, Any] = {
    "sees NaN": np.full(4, np.nan, np.float32),
    "sees infinity": np.full(4, np.inf, np.float32),
    "sees too much": np.zeros(5, np.float32),
    "sees one number": np.float32(1.0),
    "sees words": np.array(["a", "b", "c", "d"]),
    "sees nothing": None,
    "sees what float32 has no room for": np.full(4, 1e39),
}
RETURNED: dict[str, Callable[[Any], Any]] = {
    "rewards NaN": lambda step: (step[0], np.nan, *step[2:]),
    "rewards infinity": lambda step: (step[0], np.inf, *step[2:]),
    "rewards nothing": lambda step: (step[0], None, *step[2:]),
    "rewards a word": lambda step: (step[0], "much", *step[2:]),
    "ends with an array": lambda step: (*step[:2], np.array([True, False]), *step[3:]),
    "is cut off by an array": lambda step: (*step[:3], np.array([True, False]), step[4]),
}
EFFECTS = ("goes elsewhere", "leaves a process behind", "prints megabytes", "changes its spaces")
HARMLESS = {*EFFECTS, "takes signals away"}


@dataclass(frozen=True)
class Kind:
    does: str
    when: str  # make, reset, step, close

    @property
    def name(self) -> str:
        return f"{self.does}, in {self.when}"

    @property
    def leaves(self) -> bool:
        """Its process dies, or must be killed."""
        return self.does in LEAVING


KINDS = [
    *(Kind(does, w) for does in (*LEAVING, *RAISING) for w in ("make", "reset", "step", "close")),
    *(Kind(does, w) for does in (*OBSERVED, "returns too little") for w in ("reset", "step")),
    *(Kind(does, "step") for does in (*RETURNED, *MORE_RAISING, "takes signals away")),
    *(Kind(does, w) for does in EFFECTS for w in ("reset", "step")),
]
assert len(set(KINDS)) == 81


@dataclass(frozen=True)
class Diary:
    """What the environments of a run record, from any process."""

    folder: Path

    def add(self, byte: bytes) -> None:
        number = os.open(self.folder / "diary", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            os.write(number, byte)
        finally:
            os.close(number)

    def count(self, byte: bytes) -> int:
        path = self.folder / "diary"
        return path.read_bytes().count(byte) if path.is_file() else 0

    def is_first(self, name: str) -> bool:
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def helpers(self) -> list[int]:
        return [int(path.name) for path in (self.folder / "helpers").glob("*")]


class Counting(gymnasium.Env[Any, Any]):
    """Harmless."""

    def __init__(self, diary: Diary) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.diary, self.steps = diary, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.diary.add(STEP)
        self.steps += 1
        over = self.steps == EPISODE_STEPS
        return self._seen(), float(action), over, False, {}

    def _seen(self) -> Any:
        return self.np_random.uniform(-1.0, 1.0, 4).astype(np.float32)


class Misbehaving(Counting):
    def __init__(self, diary: Diary, kind: Kind, main: int) -> None:
        super().__init__(diary)
        self.kind, self.main, self.resets = kind, main, 0
        if kind.when == "make" and (diary.folder / "broken").exists():
            self._once()  # it replaces one that broke

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.resets += 1
        first = super().reset(seed=seed, options=options)
        if self.kind.when != "reset" or self.resets < 3 or not self._once():
            return first
        return self._changed(first)

    def step(self, action: Any) -> Any:
        step = super().step(action)
        if self.kind.when == "make" and self.resets == 3 and self.diary.is_first("broken"):
            raise OSError("so that another is made")
        due = self.kind.when == "step" and self.resets == 3 and self.steps == 5
        if due and self._once():
            step = self._changed(step)
        if step[2] is True:
            self.diary.add(EPISODE)
        return step

    def close(self) -> None:
        if self.kind.when == "close" and not (self.kind.leaves and self._is_in_main()):
            self._do()

    def _is_in_main(self) -> bool:
        return os.getpid() == self.main and self.kind.does != "hangs"

    def _once(self) -> bool:
        if not self.diary.is_first("done"):
            return False
        self._do()
        return True

    def _do(self) -> None:
        deeds = {**LEAVING, **RAISING, **MORE_RAISING}
        deeds["goes elsewhere"] = lambda: os.chdir("/")
        deeds["leaves a process behind"] = self._fork
        deeds["prints megabytes"] = lambda: print(LOUD)
        deeds["takes signals away"] = _take_signals
        deeds["changes its spaces"] = self._change_spaces
        deeds.get(self.kind.does, lambda: None)()

    def _changed(self, given: Any) -> Any:
        does = self.kind.does
        if does in OBSERVED:
            return (OBSERVED[does], *given[1:])
        if does == "returns too little":
            return given[:-1]
        return RETURNED.get(does, lambda same: same)(given)

    def _fork(self) -> None:
        child = os.fork()
        if not child:
            time.sleep(10_000)
        (self.diary.folder / "helpers").mkdir(exist_ok=True)
        (self.diary.folder / "helpers" / str(child)).touch()

    def _change_spaces(self) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 1, (7, 7), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(99)


def _take_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def counting(folder: Path) -> Callable[[], Any]:
    return lambda: Quiet(Diary(folder))


class Quiet(Counting):
    def step(self, action: Any) -> Any:
        step = super().step(action)
        if step[2]:
            self.diary.add(EPISODE)
        return step


def misbehaving(folder: Path, kind: Kind, workers: int) -> Callable[[], Any]:
    main = os.getpid() if workers > 1 else 0
    return lambda: Misbehaving(Diary(folder), kind, main)
