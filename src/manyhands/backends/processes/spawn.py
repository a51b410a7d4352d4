"""Starting a process and learning how it ended."""

from __future__ import annotations

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
REFUSED = 3  # exit code of a child whose last words are a refusal
DETAIL_LINES = 20
DESCRIPTORS = 8192  # a process takes two, one of gossip's locks three, and there may be hundreds


def prepare() -> None:
    """Before the first is started: that ends are told, and that there may be many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # inherited from who started us
        if threading.current_thread() is not threading.main_thread():
            raise Failure(
                "SIGCHLD is ignored: nobody would know how a process ended",
                "make the run in the main thread, which then hears it, or do not ignore it",
            )
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


@dataclass
class End:
    """How a process ended."""

    pid: int
    code: int  # as of Popen: a negative one is a signal
    words: str  # its last

    @property
    def orderly(self) -> bool:
        return self.code == 0

    @property
    def refusal(self) -> tuple[str, str] | None:
        """What it refused and a remedy; others may leave with the same code, and say nothing."""
        if self.code != REFUSED:
            return None
        try:
            what, remedy = json.loads(self.words)
        except (ValueError, TypeError):
            return None
        return str(what), str(remedy)

    @property
    def cause(self) -> str:
        if self.refusal is not None:
            return self.refusal[0]
        if self.code < 0:
            return f"killed by {_name(-self.code)}"
        if self.code == 1 and self.words:
            return self.words.partition("\n")[0]
        return f"ended with exit code {self.code}"

    @property
    def detail(self) -> str:
        if self.refusal is not None:
            return self.refusal[1]
        return "\n".join(self.words.splitlines()[-DETAIL_LINES:])


def _name(number: int) -> str:
    """Real-time signals have none."""
    known = {each.value for each in signal.Signals}
    return signal.Signals(number).name if number in known else f"signal {number}"


class Running:
    """One incarnation of one process."""

    def __init__(self, parcel: Parcel, *, incarnation: int, threads: int) -> None:
        self._words = os.memfd_create("manyhands-words", os.MFD_CLOEXEC)
        content = _memory_file(parcel.content)
        try:
            self._popen = _start(parcel, (content, self._words), incarnation, threads)
        except BaseException:
            os.close(self._words)
            raise
        finally:
            os.close(content)
        self.pid = self._popen.pid
        try:
            self.sentinel = os.pidfd_open(self.pid)
        except OSError:  # too many are open: nobody would look after it
            self._popen.kill()
            self._popen.wait()
            os.close(self._words)
            raise

    def wait(self, timeout_s: float) -> End | None:
        """How it ended, if it did; after that this object is done with."""
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        return self.end() if poller.poll(timeout_s * 1000) else None

    def end(self) -> End | None:
        code = self._popen.poll()
        if code is None:
            return None
        size = os.fstat(self._words).st_size
        words = os.pread(self._words, size, 0).decode(errors="replace")
        os.close(self._words)
        os.close(self.sentinel)
        return End(self.pid, code, words)

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)


def _start(
    parcel: Parcel, files: tuple[int, int], incarnation: int, threads: int
) -> subprocess.Popen[bytes]:
    words = [str(number) for number in (os.getpid(), *files, incarnation, threads)]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
    path = environment.get("PYTHONPATH", "")
    environment["PYTHONPATH"] = f"{HOME}{os.pathsep}{path}" if path else str(HOME)
    stops = {signal.SIGINT, signal.SIGTERM}  # blocked until the child has its own answer to them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, *words],
            stdin=subprocess.DEVNULL,
            env=environment,
            pass_fds=(*parcel.descriptors, *files),
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("manyhands-parcel", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(content)
    return descriptor
