"""Closes users' environments within a time limit. Their close() may raise or hang."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from time import monotonic
from typing import Any

from manyhands.types.errors import text_of

CLOSE_S = 10.0  # for all environments of a worker
LEAST_S = 0.1  # for each, if others have used up that time


def close(envs: Iterable[Any], *, here: bool = False) -> list[str]:
    """Closes each in its own thread, which is abandoned if it hangs. Returns what went wrong.

    `here`: in this thread instead. A window must be closed by the thread that opened it.
    """
    until_s = monotonic() + CLOSE_S
    tried = [
        _tried(env) if here else _awaited(env, max(LEAST_S, until_s - monotonic())) for env in envs
    ]
    return [trouble for trouble in tried if trouble]


def close_and_report(id: str, envs: Iterable[Any], *, here: bool = False) -> None:
    """Prints a line for each environment that could not be closed."""
    for trouble in close(envs, here=here):
        print(f"manyhands: {id}: close() {trouble}", file=sys.stderr)


def _awaited(env: Any, longest_s: float) -> str:
    """What went wrong; empty if it closed."""
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(_tried(env)), daemon=True)
    thread.start()
    thread.join(longest_s)
    return found[0] if found else f"did not return within {longest_s:.0f} s and was abandoned"


def _tried(env: Any) -> str:
    try:
        env.close()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return f"raised {type(error).__name__} ({text_of(error)})"
    return ""
