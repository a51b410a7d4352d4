"""Starts a process and finds out how it ended."""

from __future__ import annotations

import errno
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

from manyhands.backends.processes.packing import Parcel
from manyhands.types import Failure

HOME = Path(__file__).parents[3]  # where `manyhands` is imported from
MODULE = "manyhands.backends.processes.child"
THREAD_VARIABLES = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)  # fmt: skip
REFUSED = 3  # exit code of a child whose report is a refusal
DETAIL_LINES = 20
DESCRIPTORS = 8192  # a process takes two, a lock three, and there may be hundreds


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


@dataclass
class End:
    """How a process ended."""

    pid: int
    code: int  # as Popen's: a negative one is a signal
    report: str  # what it wrote before it ended

    @property
    def refusal(self) -> tuple[str, str] | None:
        """What it refused, and a remedy. Other code may exit with the same code and no report."""
        if self.code != REFUSED:
            return None
        try:
            what, remedy = json.loads(self.report)
        except (ValueError, TypeError):
            return None
        return str(what), str(remedy)

    @property
    def cause(self) -> str:
        if self.refusal is not None:
            return self.refusal[0]
        if self.code < 0:
            return f"killed by {_name(-self.code)}"
        if self.code == 1 and self.report:
            return self.report.partition("\n")[0]
        early = "" if self.code else " before its work was done"
        return f"ended with exit code {self.code}{early}"

    @property
    def detail(self) -> str:
        if self.refusal is not None:
            return self.refusal[1]
        return "\n".join(self.report.splitlines()[-DETAIL_LINES:])


def _name(number: int) -> str:
    """Real-time signals have no name."""
    known = {each.value for each in signal.Signals}
    return signal.Signals(number).name if number in known else f"signal {number}"


class Running:
    """One incarnation of one process."""

    def __init__(self, parcel: Parcel, *, incarnation: int, threads: int) -> None:
        self._report = os.memfd_create("manyhands-words", os.MFD_CLOEXEC)
        try:
            self._popen = _started(parcel, self._report, incarnation, threads)
        except BaseException:
            os.close(self._report)
            raise
        self.pid = self._popen.pid
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except OSError:  # too many open files: the process could not be watched
            self._popen.kill()
            self._popen.wait()
            os.close(self._report)
            raise

    def wait(self, timeout_s: float) -> End | None:
        """How it ended, or None. Do not use this object after it ended."""
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        return self.end() if poller.poll(timeout_s * 1000) else None

    def end(self) -> End | None:
        code = self._popen.poll()
        if code is None:
            return None
        size = os.fstat(self._report).st_size
        report = os.pread(self._report, size, 0).decode(errors="replace")
        os.close(self._report)
        os.close(self.sentinel)
        return End(self.pid, code, report)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)


def _started(
    parcel: Parcel, report: int, incarnation: int, threads: int
) -> subprocess.Popen[bytes]:
    content = _memory_file(parcel.content)
    try:
        return _start(parcel, (content, report), incarnation, threads)
    finally:
        os.close(content)


def _start(
    parcel: Parcel, files: tuple[int, int], incarnation: int, threads: int
) -> subprocess.Popen[bytes]:
    arguments = [str(number) for number in (os.getpid(), *files, incarnation, threads)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{HOME}{os.pathsep}{path}" if path else str(HOME)
    # Blocked until the child has its own handlers.
    stops = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, *arguments],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(*parcel.descriptors, *files),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("manyhands-parcel", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return descriptor


def cannot_start(name: str, error: OSError) -> Failure:
    """The machine, or a limit, does not allow another process."""
    remedies = {
        errno.EMFILE: "raise the limit of open files (ulimit -n)",
        errno.ENFILE: "close other programs: the machine has too many open files",
        errno.EAGAIN: "raise the limit of processes (ulimit -u)",
        errno.ENOMEM: "free some memory",
    }
    remedy = remedies.get(error.errno or 0, "find out why processes cannot be started here")
    return Failure(
        f"{name} could not be started: {error.strerror or error}", f"{remedy}, or use fewer workers"
    )
