"""Options of the commands that load a trained agent."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from manyhands.types import option


@dataclass(frozen=True)
class OwnFlags:
    """Options of every command that loads the agent of a run."""

    network: str = option("", "a network instead of the run's: a name, or my.py:Net")
    algorithm: str = option("", "an algorithm instead of the run's: a name, or my.py")
    allow_code: bool = option(False, "run the Python files that the run's config names")


@dataclass(frozen=True)
class PlayFlags(OwnFlags):
    """Options of commands that show how an agent plays."""

    best: bool = option(False, "the best checkpoint instead of the newest")
    episodes: int = option(1, "episodes to play", low=1)
    epsilon: float | None = option(
        None, "share of random actions; default: the task's", low=0, high=1
    )
    seed: int = option(1, "seed of the environment", low=0)
    seconds: float = option(60.0, "the longest time to show an episode, in seconds", above=0)


@dataclass(frozen=True)
class RecordFlags(PlayFlags):
    through_time: bool = option(
        False, "show the agent untrained, at a quarter, at half and at its best"
    )
    out: str = option("", "FILE.mp4, FILE.gif, or FILE for both; default: in RUN/videos/")


def own_code(flags: OwnFlags) -> dict[str, Any]:
    """Arguments of `policies.load`."""
    given = {field.name: getattr(flags, field.name) for field in fields(OwnFlags)}
    return {**given, "network": flags.network or None}
