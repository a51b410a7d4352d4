"""Kills a process at every line it executes while it saves a checkpoint, and looks what is left.

For k = 1, 2, 3, … a forked child saves and kills itself before the k-th line of one of
the `TRACED` files, until one finishes. Run as a process of its own, without
torch, so that a fork is cheap.
Prints, by scenario, how many kills left the old checkpoint and how many the new one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from manyhands.config import runfiles
from manyhands.runs import checkpoint, checkpoint_files, checkpoint_reading, checkpoint_writing

SAVING = (checkpoint, checkpoint_files, checkpoint_reading, checkpoint_writing, runfiles, shutil)
TRACED = {module.__file__ for module in SAVING}


def content(tag: int) -> dict[str, Any]:
    return {
        "weights": {"q": np.full((3, 2), tag, np.float32)},
        "state": {"n": 2**100 + tag, "m": np.full(4, tag / 7)},
        "replay": {"frames": np.full((5, 4), tag, np.uint8)},
    }


def best_content(tag: int) -> dict[str, Any]:
    return {key: value for key, value in content(tag).items() if key != "replay"}


def is_exactly(loaded: checkpoint.Loaded, step: int, tag: int, *, replay: bool = True) -> bool:
    wanted = content(tag)
    right = loaded.step == step and loaded.state["n"] == wanted["state"]["n"]
    pairs = [
        (loaded.weights["q"], wanted["weights"]["q"]),
        (loaded.state["m"], wanted["state"]["m"]),
    ]
    if replay:
        assert loaded.replay is not None
        pairs.append((loaded.replay["frames"], wanted["replay"]["frames"]))
    return right and all(a.dtype == b.dtype and a.tolist() == b.tolist() for a, b in pairs)


def killed_at(line: int, act: Callable[[], object]) -> bool:
    """Whether the child was killed, not done, when it was to die before its ``line``-th line."""
    child = os.fork()
    if child == 0:
        left = line

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal left
            if frame.f_code.co_filename not in TRACED:
                return None
            left -= event == "line"
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        act()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the child failed with status {status}"
    return status != 0


def sweep(
    place: Path,
    prepare: Callable[[Path], object],
    act: Callable[[Path], object],
    outcome: Callable[[Path], str],
) -> dict[str, int]:
    template, work = place / "template", place / "work"
    template.mkdir(parents=True)
    prepare(template)
    outcomes: list[str] = []
    killed = True
    while killed:
        shutil.copytree(template, work, symlinks=True)
        killed = killed_at(len(outcomes) + 1, lambda: act(work))
        outcomes.append(outcome(work))
        shutil.rmtree(work)
    # Once the new one is in place it stays.
    assert outcomes == sorted(outcomes, key=["old", "new"].index), outcomes
    assert outcomes[-1] == "new"
    return {name: outcomes.count(name) for name in ("old", "new")}


def which(folder: Path, old: tuple[int, int], new: tuple[int, int]) -> str:
    """Which is found, if it is exactly right; then saves another and sees the rest removed."""
    loaded = checkpoint.newest(folder)
    assert not loaded.problems, loaded.problems
    assert is_exactly(loaded, *old) or is_exactly(loaded, *new), loaded
    checkpoint.save(folder, 9, **content(99))
    after = checkpoint.newest(folder)
    assert is_exactly(after, 9, 99)
    assert not after.problems
    assert set(os.listdir(folder)) == {str(loaded.step), "9"}, os.listdir(folder)
    assert checkpoint.load(folder / str(loaded.step)).replay is None
    return "new" if is_exactly(loaded, *new) else "old"


def which_best(run: Path) -> str:
    loaded = checkpoint.load_best(run)
    old, new = (is_exactly(loaded, step, step, replay=False) for step in (1, 2))
    assert old != new
    checkpoint.save_best(run, 9, **best_content(99))
    assert is_exactly(checkpoint.load_best(run), 9, 99, replay=False)
    assert os.listdir(run) == ["best"], os.listdir(run)
    return "new" if new else "old"


def saving(*steps_and_tags: tuple[int, int]) -> Callable[[Path], object]:
    return lambda folder: [checkpoint.save(folder, s, **content(tag)) for s, tag in steps_and_tags]


def killed_between_the_renames(folder: Path) -> None:
    checkpoint.save(folder, 2, **content(2))
    os.rename(folder / "2", folder / ".2-old")
    (folder / ".tmp-2-1").mkdir()


def main(place: Path) -> None:
    def step(old: tuple[int, int], new: tuple[int, int]) -> Callable[[Path], str]:
        return lambda folder: which(folder, old, new)

    best = (
        (lambda run: checkpoint.save_best(run, 1, **best_content(1))),
        (lambda run: checkpoint.save_best(run, 2, **best_content(2))),
    )
    scenarios: dict[str, tuple[Any, Any, Any]] = {
        "next": (saving((1, 1)), saving((2, 2)), step((1, 1), (2, 2))),
        "again": (saving((2, 2)), saving((2, 3)), step((2, 2), (2, 3))),
        "third": (saving((1, 1), (2, 2)), saving((3, 3)), step((2, 2), (3, 3))),
        "recovering": (killed_between_the_renames, saving((3, 3)), step((2, 2), (3, 3))),
        "best": (*best, which_best),
    }
    counts = {name: sweep(place / name, *parts) for name, parts in scenarios.items()}
    assert "torch" not in sys.modules
    print(json.dumps(counts))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
