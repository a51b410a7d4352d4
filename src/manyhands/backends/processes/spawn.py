"""Main's side of starting a process: asks the zygote to fork it, and hands over its descriptors.

The zygote (`zygote.py`) is a process that imports large libraries once and runs nothing. A process
that is forked from it begins in milliseconds and shares their memory. It is a child of main, not
of the zygote, so it survives the zygote, and main learns how it ended.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from manyhands.backends.processes.packing import Parcel
from manyhands.types import Failure

HOME = Path(__file__).parents[3]  # where `manyhands` is imported from
MODULE = "manyhands.backends.processes.zygote"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip
DESCRIPTORS = 8192  # a process takes two, a lock three, and there may be hundreds
HEADER = struct.Struct("<II")
SENT_AT_ONCE = 200  # descriptors in one message; the kernel allows 253
FIRST_FORK_S, FORK_S = 120.0, 10.0  # the first waits for the imports
ATTEMPTS = 3
NUMBER_BYTES = 8  # of what a forked process answers: its pid, or an error below 0
PR_SET_CHILD_SUBREAPER, PR_GET_CHILD_SUBREAPER = 36, 37


def prepare() -> None:
    """Before the first start: raises the limit of open files, and enables SIGCHLD."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited from the parent
        if threading.current_thread() is not threading.main_thread():
            raise Failure(
                "SIGCHLD is ignored, so it is unknown how a process ends",
                "start the run in the main thread, or do not ignore SIGCHLD",
            )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class Zygote:
    """Starts the zygote, asks it to fork, and replaces it if it died or does not answer."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        self._imports = tuple(imports)
        self._popen: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._forked = False  # it has answered before: its imports are done

    @property
    def pid(self) -> int:
        """0: it does not run."""
        return self._popen.pid if self._popen else 0

    def begin(self) -> socket.socket:
        """Starts it if it does not run. It imports while main does other things."""
        if self._socket is not None:
            return self._socket
        self._socket, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with closing(its_end):
            try:
                self._popen = _started(its_end.fileno(), self._imports)
            except BaseException:
                self.close()
                raise
        self._forked = False
        return self._socket

    def fork(
        self, parcel: Parcel, report: int, *, incarnation: int, threads: int
    ) -> tuple[int, int]:
        """A new process: its pid and its pidfd. Raises OSError if there can be none."""
        order = (os.getpid(), incarnation, threads, _environment(threads))
        content = pickle.dumps((*order, parcel.descriptors, parcel.content))
        for _ in range(ATTEMPTS):
            try:
                return self._fork(content, (report, *parcel.descriptors))
            except (ConnectionError, TimeoutError):  # it was killed, or stopped
                self.close()
        raise OSError(errno.ECHILD, "the process that forks it does not answer")

    def _fork(self, content: bytes, files: tuple[int, ...]) -> tuple[int, int]:
        control, (ours, theirs) = self.begin(), socket.socketpair()
        ours.settimeout(FORK_S if self._forked else FIRST_FORK_S)
        with closing(ours), adopting():
            with closing(theirs), _memory_file(content) as order, _standard_streams() as streams:
                _send(control, [theirs.fileno(), order, *streams, *files])
            answer = ours.recv(NUMBER_BYTES)
            if not answer:
                raise ConnectionResetError
            self._forked = True
            pid = int.from_bytes(answer, "little", signed=True)
            if pid < 0:
                raise OSError(-pid, os.strerror(-pid))
            try:
                sentinel = os.pidfd_open(pid)
            except OSError:  # too many open files: the process could not be watched
                ours.close()  # then it ends at once
                os.waitpid(pid, 0)
                raise
            ours.send(b"go")
        return pid, sentinel

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait()
        self._socket = self._popen = None


# --- What a process begins with -------------------------------------------------------------------


def _started(control: int, imports: Sequence[str]) -> subprocess.Popen[bytes]:
    # Blocked until it has its own handlers.
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(os.getpid()), str(control), *imports],
            stdin=subprocess.DEVNULL,
            env=_environment(1),
            pass_fds=(control,),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _environment(threads: int) -> dict[str, str]:
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{HOME}{os.pathsep}{path}" if path else str(HOME)
    return environment


def _send(control: socket.socket, files: list[int]) -> None:
    """Sends descriptors. Each message says how many were sent, and how many there are."""
    for start in range(0, len(files), SENT_AT_ONCE):
        some = files[start : start + SENT_AT_ONCE]
        socket.send_fds(control, [HEADER.pack(start + len(some), len(files))], some)


@contextmanager
def _memory_file(content: bytes) -> Iterator[int]:
    descriptor = os.memfd_create("manyhands-parcel", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _standard_streams() -> Iterator[list[int]]:
    """Copies of standard output and error; the null device for one that is closed."""
    copies: list[int] = []
    try:
        for number in (1, 2):
            try:
                copies.append(os.dup(number))
            except OSError:
                copies.append(os.open(os.devnull, os.O_WRONLY))
        yield copies
    finally:
        for copy in copies:
            os.close(copy)


_adopting = threading.Lock()  # the setting is that of the whole process


@contextmanager
def adopting() -> Iterator[None]:
    """Inside this block an orphan among main's descendants becomes a child of main.

    The zygote's child forks the new process and ends, so that the new process is such an orphan.
    """
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    with _adopting:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
