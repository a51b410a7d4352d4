from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("support")  # its assertions show their values too

# --- Heavy tests: `make quick` leaves them out --------------------------------------------------
# Their functions are listed in heavy.txt, by name alone, so that files may move. `make heavy` runs
# everything and writes the list again; a test that is not in it yet is run by `make quick`.

HEAVY = Path(__file__).parent / "heavy.txt"
HEAVY_CPU_S = 0.5
HEAVY_WEIGHT = 20  # times as long as another test
PROCESS_CPU_S = 0.2  # an interpreter takes more, git less
NOTED = pytest.StashKey[dict[str, float]]()  # CPU time over the limit of a light test


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--note-heavy", action="store_true", help="write heavy.txt from this run")
    parser.addoption("--half", type=int, choices=(1, 2), help="run the files of one half alone")


def pytest_configure() -> None:
    """Under nohup SIGHUP is ignored, also in child processes: tests that send it would fail."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    heavy = set(HEAVY.read_text(encoding="utf-8").split())
    for item in items:
        if function_of(item) in heavy:
            item.add_marker(pytest.mark.heavy)
    from support import on_ray

    left_out = [item for item in items if on_ray.is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    if half := config.getoption("--half"):
        mine = halves(items)[half - 1]
        config.hook.pytest_deselected(items=[item for item in items if item.path not in mine])
        items[:] = [item for item in items if item.path in mine]


def halves(items: list[pytest.Item]) -> tuple[set[Path], set[Path]]:
    """Two sets of files that take about as long: `make test` runs them side by side."""
    weights: dict[Path, int] = {}
    for item in items:
        weight = HEAVY_WEIGHT if item.get_closest_marker("heavy") else 1
        weights[item.path] = weights.get(item.path, 0) + weight
    split: tuple[set[Path], set[Path]] = set(), set()
    totals = [0, 0]
    for path in sorted(weights, key=lambda path: (-weights[path], str(path))):
        lighter = int(totals[1] < totals[0])
        split[lighter].add(path)
        totals[lighter] += weights[path]
    return split


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Heavy: it waited for a process of its own, or computed for long. Load does not count."""
    before = os.times()
    result = yield
    took = [after - start for after, start in zip(os.times(), before, strict=True)]
    own, of_children = took[0] + took[1], took[2] + took[3]
    weight = max(own / HEAVY_CPU_S, of_children / PROCESS_CPU_S)
    noted = item.config.stash.setdefault(NOTED, {})
    noted[function_of(item)] = max(noted.get(function_of(item), 0.0), weight)
    return result


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What was not run keeps its place in the list."""
    if session.config.getoption("--note-heavy"):
        noted = session.config.stash.get(NOTED, {})
        listed = set(HEAVY.read_text(encoding="utf-8").split())
        kept = {name for name in listed if noted.get(name, 2.0) > 1}
        heavy = kept | {name for name, weight in noted.items() if weight > 1}
        HEAVY.write_text("".join(f"{name}\n" for name in sorted(heavy)), encoding="utf-8")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Names heavy tests that the list lacks. The margin is for busy machines."""
    listed = set(HEAVY.read_text(encoding="utf-8").split())
    noted = config.stash.get(NOTED, {})
    if missing := sorted(
        name for name, weight in noted.items() if weight > 4 and name not in listed
    ):
        terminalreporter.write_line(
            f"heavy, but not in heavy.txt (make heavy): {' '.join(missing)}"
        )


def function_of(item: pytest.Item) -> str:
    return getattr(item, "originalname", None) or item.name


# --- Fixtures -----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _denormals() -> None:
    """A run sets its process to flush them, and hypothesis refuses to work in such a process."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_flush_denormal(False)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def local_ray() -> Iterator[Any]:
    """A Ray on loopback for the tests of a file. Other files may start another."""
    from manyhands.backends.ray import joining, options

    with joining.join(options.RayOptions()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def bfloat16() -> None:
    """For tests that compute in it: some virtual machines kill the process that does."""
    trial = [sys.executable, "-m", "manyhands.config.precision"]
    if subprocess.run(trial, capture_output=True, check=False).returncode < 0:  # by a signal
        pytest.skip("bfloat16 cannot be computed in on this machine")


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that kill during a run: it must not end between two looks."""
    monkeypatch.setattr("manyhands.runs.schedule.REPORT_PERIOD_S", 0.05)
