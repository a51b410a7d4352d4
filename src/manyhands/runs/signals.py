"""The first Ctrl-C or SIGTERM asks for a clean stop. The second one stops at once.

SIGHUP, from a closed terminal, only asks: the shell and the kernel may both send it.

Python handles signals between two instructions of the main thread, so not while that thread hangs
in an environment. So a second thread reads signals from a pipe. It shows what the run waits for,
and ends the process at the second signal.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

INTERRUPTED = 130
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 3.0  # then it shows what the run waits for
NO_FD = -1
OVER = b"\0"  # ends the thread: no signal has this number


class StopRequests:
    """While it is entered, a signal sets `asked`."""

    def __init__(self, *, says: bool = False) -> None:
        """`says`: whether to show what the run waits for if stopping takes long."""
        self.asked, self._says = False, says
        self._before: dict[int, Any] = {}
        self._answered = threading.Event()  # the run has seen the request
        self._pipe = (NO_FD, NO_FD)
        self._listener: threading.Thread | None = None

    def heard(self) -> None:
        """The run has seen the request, and shows from now on what it does."""
        self._answered.set()

    def __enter__(self) -> StopRequests:
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup
                self._before[number] = signal.signal(number, self._handle)
            self._listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.heard()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._listener is not None:
            now = signal.set_wakeup_fd(NO_FD)
            if now != self._pipe[1]:  # it belongs to a run that began later
                signal.set_wakeup_fd(now, warn_on_full_buffer=False)
            _ours.discard(self._pipe[1])
            os.write(self._pipe[1], OVER)  # closing may not end the read: a fork has a copy
            self._listener.join()
            for end in self._pipe:
                os.close(end)
            self._listener = None

    def _handle(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.asked and number != signal.SIGHUP:
            os._exit(INTERRUPTED)
        self.asked = True

    # --- While the main thread hangs --------------------------------------------------------------

    def _listen(self) -> None:
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)  # set_wakeup_fd requires it
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        _ours.add(self._pipe[1])
        self._listener = threading.Thread(target=self._hear, daemon=True)
        self._listener.start()

    def _hear(self) -> None:
        """Every signal arrives as one byte, its number."""
        times = 0
        while (byte := os.read(self._pipe[0], 1)) != OVER:
            if byte[0] not in self._before or (times and byte[0] == signal.SIGHUP):
                continue
            times += 1
            if times > 1:
                os._exit(INTERRUPTED)
            if self._says:
                threading.Thread(target=self._say_if_it_takes_long, daemon=True).start()

    def _say_if_it_takes_long(self) -> None:
        if not self._answered.wait(PATIENCE_S):
            waited_for = where(threading.main_thread())
            print(f"stopping: waiting for {waited_for}; again: stop at once", file=sys.stderr)


_ours: set[int] = set()  # write ends of our pipes


def _forked() -> None:
    """A process that an environment forked also gets Ctrl-C, which must not count twice."""
    with suppress(ValueError):  # not the main thread
        now = signal.set_wakeup_fd(NO_FD)
        if now not in {NO_FD, *_ours}:
            signal.set_wakeup_fd(now)


os.register_at_fork(after_in_child=_forked)


def where(thread: threading.Thread) -> str:
    """The line that a thread executes, outside libraries if possible."""
    frames = sys._current_frames()
    lines = list(traceback.walk_stack(frames.get(thread.ident or 0)))
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib"))
    own = [line for line in lines if not line[0].f_code.co_filename.startswith((*libraries, "<"))]
    for frame, number in own or lines:
        code = frame.f_code
        return f"{code.co_name} ({Path(code.co_filename).name}, line {number})"
    return "a thread that has ended"
