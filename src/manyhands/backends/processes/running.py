"""A running process as main sees it, and how it ended."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
from contextlib import suppress
from dataclasses import dataclass

from manyhands.backends.processes.packing import Parcel
from manyhands.backends.processes.spawn import Zygote
from manyhands.types import Failure

REFUSED = 3  # exit code of a child whose report is a refusal
DETAIL_LINES = 20


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

    def __init__(self, zygote: Zygote, parcel: Parcel, *, incarnation: int, threads: int) -> None:
        self._report = os.memfd_create("manyhands-words", os.MFD_CLOEXEC)
        try:
            self.pid, self.sentinel = zygote.fork(
                parcel, self._report, incarnation=incarnation, threads=threads
            )
        except BaseException:
            os.close(self._report)
            raise

    def wait(self, timeout_s: float) -> End | None:
        """How it ended, or None. Do not use this object after it ended."""
        poller = select.poll()
        poller.register(self.sentinel, select.POLLIN)
        return self.end() if poller.poll(timeout_s * 1000) else None

    def end(self) -> End | None:
        code = self._code()
        if code is None:
            return None
        size = os.fstat(self._report).st_size
        report = os.pread(self._report, size, 0).decode(errors="replace")
        os.close(self._report)
        os.close(self.sentinel)
        return End(self.pid, code, report)

    def _code(self) -> int | None:
        """Its exit code, or None while it runs."""
        try:
            found = os.waitid(os.P_PIDFD, self.sentinel, os.WEXITED | os.WNOHANG)
        except ChildProcessError:  # other code of this process has waited for it
            return 0
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.sentinel, number)


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
