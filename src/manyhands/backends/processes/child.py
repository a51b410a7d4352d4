"""What a process of ours runs: ``python -m manyhands.backends.processes.child``.

Started so and not by multiprocessing, a user's script needs no ``__main__`` guard: it is not run
again. The first acts are those that must not come late: to die with the parent, and to leave
Ctrl-C to it.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import pickle
import signal
import sys
import traceback
from types import FrameType

from manyhands.backends.processes import control
from manyhands.backends.processes.spawn import REFUSED
from manyhands.types import Refusal

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before we could say so
        os._exit(1)


def leave_stopping_to_the_parent() -> None:
    def nothing(number: int, frame: FrameType | None) -> None: ...

    stops = (signal.SIGINT, signal.SIGTERM)
    for number in stops:
        signal.signal(number, nothing)  # not SIG_IGN, which our own children would inherit
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)


def read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)
        return file.read()


def set_threads(threads: int) -> None:
    """For what has read the environment already, or does not; and denormals, which are slow."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
    if cv2 := sys.modules.get("cv2"):
        cv2.setNumThreads(0)


def live(content: bytes, incarnation: int, threads: int) -> None:
    path, body = pickle.loads(content)
    sys.path[:] = path
    table, client, target, given = pickle.loads(body)
    desk = control.Desk(table, client)
    control.sit_down(desk)
    set_threads(threads)
    target(desk, incarnation, *given)


def say(words: int, text: str) -> None:
    os.ftruncate(words, 0)
    os.pwrite(words, text.encode(errors="replace"), 0)


def main() -> int:
    parent, parcel, words, incarnation, threads = map(int, sys.argv[1:])
    die_with(parent)
    leave_stopping_to_the_parent()
    os.set_inheritable(words, False)
    faulthandler.enable(words)
    faulthandler.register(signal.SIGUSR1, words)
    try:
        live(read_all(parcel), incarnation, threads)
    except Refusal as refusal:
        say(words, json.dumps([refusal.what, refusal.remedy]))
        return REFUSED
    except (Exception, SystemExit) as error:  # to leave by sys.exit is not to have finished
        say(words, f"raised {type(error).__name__}: {error}\n{traceback.format_exc()}")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # without the long farewell of torch and of threads that still run
