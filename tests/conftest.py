from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture(scope="session")
def bfloat16() -> None:
    """For tests that compute in it: some virtual machines end whoever does."""
    trial = [sys.executable, "-m", "manyhands.precision"]
    if subprocess.run(trial, capture_output=True, check=False).returncode < 0:  # by a signal
        pytest.skip("bfloat16 cannot be computed in on this machine")


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that kill while a run goes on: between two looks it must not end."""
    monkeypatch.setattr("manyhands.progress.REPORT_PERIOD_S", 0.05)
