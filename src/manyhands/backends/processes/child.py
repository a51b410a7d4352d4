"""What a child process runs: ``python -m manyhands.backends.processes.child``.

It does not use multiprocessing and does not run the user's script again, so the script needs no
``__main__`` guard. First it arranges to die with its parent and to leave Ctrl-C to it.
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

from manyhands.backends.processes import control
from manyhands.backends.processes.spawn import REFUSED
from manyhands.types import Refusal, output
from manyhands.types.errors import text_of, trace_of

PR_SET_PDEATHSIG = 1


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


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def set_threads(threads: int) -> None:
    """For libraries that do not read the environment variables. Denormals are slow: flush them."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
    if cv2 := sys.modules.get("cv2"):
        cv2.setNumThreads(0)


def live(content: bytes, incarnation: int, threads: int) -> None:
    here, path, body = pickle.loads(content)
    with suppress(OSError):  # it may be gone
        os.chdir(here)  # where the first incarnation started; main may be elsewhere by now
    sys.path[:] = path
    table, client, target, given = pickle.loads(body)
    row = control.ControlRow(table, client)
    control.set_own_row(row)
    set_threads(threads)
    target(row, incarnation, *given)
    row.done()


def write_report(report: int, text: str) -> None:
    os.ftruncate(report, 0)
    os.pwrite(report, text.encode(errors="replace"), 0)


def main() -> int:
    parent, parcel, report, incarnation, threads = map(int, sys.argv[1:])
    die_with(parent)
    leave_stopping_to_the_parent()
    os.set_inheritable(report, False)
    faulthandler.enable(report)
    faulthandler.register(signal.SIGUSR1, report)
    try:
        live(read_all(parcel), incarnation, threads)
    except Refusal as refusal:
        write_report(report, json.dumps([refusal.what, refusal.remedy]))
        return REFUSED
    except BaseException as error:  # sys.exit too: the work is not finished
        write_report(report, f"raised {type(error).__name__}: {text_of(error)}\n{trace_of(error)}")
        return 1
    return 0


if __name__ == "__main__":
    outlets = output.install()  # an environment may print into a closed pipe
    code = main()
    for one in outlets:
        one.flush()
    os._exit(code)  # skips the slow shutdown of torch and of running threads
