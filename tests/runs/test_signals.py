"""Signals that ask a run to stop."""

from __future__ import annotations

import os
import signal

from manyhands.runs.signals import StopRequests


def test_a_closed_terminal_asks_and_never_forces() -> None:
    """Both shell and kernel send it."""
    with StopRequests() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.asked


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.asked
    finally:
        signal.signal(signal.SIGHUP, before)
