"""What a child process runs once it is forked: its job, and a report of how that ended.

It does not use multiprocessing and does not run the user's script again, so the script needs no
``__main__`` guard. It dies with its parent, and leaves Ctrl-C to it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

from manyhands.backends.processes import control, segment
from manyhands.backends.processes.running import REFUSED
from manyhands.types import Failure, Refusal, delivered, output
from manyhands.types.errors import text_of, trace_of

PR_SET_PDEATHSIG = 1
NO_MODULE = "there is no module"


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call
        os._exit(1)


def leave_stopping_to_the_parent() -> None:
    def nothing(number: int, frame: FrameType | None) -> None: ...

    stops = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in stops:
        signal.signal(number, nothing)  # not SIG_IGN, which child processes would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)


def set_threads(threads: int) -> None:
    """For libraries that do not read the environment variables. Denormals are slow: flush them."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
    if cv2 := sys.modules.get("cv2"):
        cv2.setNumThreads(0)


def live(content: bytes, incarnation: int, threads: int) -> None:
    here, path, numbers, files, body = pickle.loads(content)
    segment.renumber(numbers)
    with suppress(OSError):  # it may be gone
        os.chdir(here)  # where the first incarnation started; main may be elsewhere by now
    sys.path[:] = path
    delivered.put(delivered.Files(*files))
    table, client, target, given = unpacked(body)
    row = control.ControlRow(table, client)
    row.incarnation = incarnation
    control.set_own_row(row)
    set_threads(threads)
    target(row, incarnation, *given)
    row.done()


def unpacked(body: bytes) -> Any:
    """A job names modules that main has imported. A process of another node may lack one."""
    try:
        return pickle.loads(body)
    except ModuleNotFoundError as error:
        raise Failure(
            f"{NO_MODULE} {error.name!r}, which main has imported",
            "install it there, or import it inside the function that uses it",
        ) from error


def write_report(report: int, text: str) -> None:
    os.ftruncate(report, 0)
    os.pwrite(report, text.encode(errors="replace"), 0)


def ended_with(content: bytes, report: int, *, incarnation: int, threads: int) -> int:
    """Does the work; returns the exit code."""
    faulthandler.enable(report)
    faulthandler.register(signal.SIGUSR1, report)
    try:
        live(content, incarnation, threads)
    except Refusal as refusal:
        write_report(report, json.dumps([refusal.what, refusal.remedy]))
        return REFUSED
    except BaseException as error:  # sys.exit too: the work is not finished
        write_report(report, f"raised {type(error).__name__}: {text_of(error)}\n{trace_of(error)}")
        return 1
    return 0


def run(content: bytes, report: int, *, incarnation: int, threads: int) -> NoReturn:
    outlets = output.install()  # an environment may print into a closed pipe
    code = ended_with(content, report, incarnation=incarnation, threads=threads)
    for one in outlets:
        one.flush()
    os._exit(code)  # skips the slow shutdown of torch and of running threads
