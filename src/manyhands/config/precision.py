"""In which precision a network computes: `network.precision auto`, decided before a run begins.

Some processors multiply bfloat16 twice as fast as float32, some no faster. Some virtual machines
announce bfloat16 and then kill the process that uses it. So a process of its own tries it:
`python -m manyhands.config.precision` prints how many times as fast bfloat16 is on one thread, for
a convolution and a dense layer of the Nature network, forward and backward.

The result of a calm trial is stored in the user's cache folder, by processor and torch version, so
that a seed repeats. `manyhands doctor` tries again. The decision is in the run's config, so a
resumed run computes as before, but in float32 on a machine that forbids bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from manyhands.config import runfiles
from manyhands.types import BadRequest

if TYPE_CHECKING:
    from manyhands.config.plans import Plan

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "avx10_2", "bf16"}  # x86's, and ARM's
PAYS = 1.4  # times as fast; less is lost again where numbers change their precision
ROWS, TURNS = 32, 7
ROUNDS = 8  # of so many turns each, at most: until the least times of both were seen twice
ALIKE = 1.05  # times, of which the larger is at most so many times the smaller
PATIENCE_S = 60
MOST_BYTES, MOST_MACHINES = 1 << 16, 32  # of the file that keeps what was found
FORBIDDEN = "float32, as this machine forbids bfloat16"


def settled(plan: Plan, device: str, *, own_network: bool = False) -> Plan:
    """The plan without `auto`: in what this machine computes its network soonest."""
    network = plan.network
    if network.precision == "bfloat16" and device == "cpu" and forbidden():
        raise BadRequest(
            "this machine announces instructions for bfloat16 and ends whoever uses them",
            "leave out --network.precision, or give float32",
        )
    if network.precision != "auto":
        return plan
    if own_network or network.torso != "nature" or device != "cpu":
        return _with(plan, "float32", "auto")
    found = verdict()
    precision = "bfloat16" if found.speed_up >= PAYS else "float32"
    return _with(plan, precision, f"auto: {found.why()}")


def as_before(plan: Plan, recorded: Path, device: str) -> Plan:
    """For who goes on with a run: `auto` is what its config.json says it was settled to."""
    if plan.network.precision != "auto":
        return bearable(plan, device)
    try:
        with runfiles.opened(recorded.parent) as folder:
            table = runfiles.read_json(folder, recorded.name)
        kept = table["config"]["network"]["precision"]
    except (OSError, ValueError, LookupError, TypeError):
        kept = "float32"  # what runs computed in before there was a choice
    precision = "bfloat16" if kept == "bfloat16" else "float32"
    return bearable(_with(plan, precision, "as the run began"), device)


def bearable(plan: Plan, device: str) -> Plan:
    """What was trained elsewhere, in a precision that does not end the process here."""
    if plan.network.precision == "bfloat16" and device == "cpu" and forbidden():
        return _with(plan, "float32", FORBIDDEN)
    return plan


def _with(plan: Plan, precision: str, source: str) -> Plan:
    return replace(
        plan,
        network=replace(plan.network, precision=precision),
        sources={**plan.sources, "network.precision": source},
    )


def told(plan: Plan) -> str:
    """A line for who starts a run: what was decided by a trial, and by which."""
    source = plan.sources.get("network.precision", "")
    return f"{plan.network.precision}, {source}" if source.startswith("auto: ") else ""


# --- What this machine is like --------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    speed_up: float = 0.0  # times as fast as float32; 0: no instructions, or they are forbidden
    forbidden: bool = False  # whoever computes in bfloat16 here is ended by a signal
    calm: bool = True  # nothing else disturbed the trial, so it would come out the same again
    origin: str = "this processor has no instructions for bfloat16"

    def why(self) -> str:
        if self.forbidden:
            return f"this machine forbids bfloat16 ({self.origin})"
        fast = f"bfloat16 is {self.speed_up:.1f} times as fast here ({self.origin})"
        return fast if self.speed_up else self.origin


def forbidden() -> bool:
    return verdict().forbidden


@cache
def verdict() -> Verdict:
    """As it was kept, or else tried now."""
    if not INSTRUCTIONS & set(instructions()):
        return Verdict()
    return _kept() or tried()


def tried() -> Verdict:
    """By a trial now; kept if it was a calm one."""
    if not INSTRUCTIONS & set(instructions()):
        return Verdict()
    found = _outcome(trial())
    if not found.calm:
        return replace(found, origin="tried now on a busy machine, so not kept")
    kept = _keep(found)
    return replace(found, origin=f"tried now, kept in {kept}" if kept else "tried now, not kept")


def trial() -> subprocess.CompletedProcess[str] | None:
    words = [sys.executable, "-P", "-m", "manyhands.config.precision"]
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _outcome(done: subprocess.CompletedProcess[str] | None) -> Verdict:
    if done is not None and done.returncode < 0:  # others than SIGILL may be somebody's kill
        return Verdict(forbidden=True, calm=done.returncode == -signal.SIGILL)
    try:
        found = json.loads(done.stdout if done is not None else "")
        return Verdict(_speed_up(found), calm=found["calm"] is True)
    except (ValueError, TypeError, LookupError):
        return Verdict(calm=False)


def _speed_up(entry: Any) -> float:
    number = float(entry["speed_up"])
    if not 0 <= number <= 1000:
        raise ValueError(number)
    return number


# --- Kept -----------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where verdicts are kept, one for every machine that shares the folder."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"
    return home / "manyhands" / "precision.json"


def _machine() -> str:
    """What a trial depends on: the processor, what it announces, the version of torch."""
    parts = [_processor(), *sorted(instructions()), _torch_version()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _read() -> dict[str, Any]:
    """All verdicts; none where the file is missing, too large or no JSON."""
    try:
        file = cache_file()
        with runfiles.opened(file.parent) as folder:
            return runfiles.read_json(folder, file.name, MOST_BYTES)
    except (OSError, ValueError, RuntimeError):  # the last: there is no home
        return {}


def _kept() -> Verdict | None:
    try:
        entry = _read()[_machine()]
        forbidden = entry["forbidden"] is True
        origin = f"tried before, kept in {cache_file()}"
        return Verdict(_speed_up(entry), forbidden=forbidden, origin=origin)
    except (ValueError, TypeError, LookupError):
        return None


def _keep(found: Verdict) -> Path | None:
    """Beside those of other machines; where it was kept, or None: then it is tried again."""
    whose = {"processor": _processor(), "torch": _torch_version()}
    entry = {"speed_up": found.speed_up, "forbidden": found.forbidden, **whose}
    machine = _machine()
    others = {name: other for name, other in _read().items() if name != machine}
    newest = dict(list(others.items())[1 - MOST_MACHINES :])
    try:
        file = cache_file()
        with runfiles.opened(file.parent, make=True) as folder:
            runfiles.write_json(folder, file.name, {**newest, machine: entry})
    except (OSError, RuntimeError):
        return None
    return file


def instructions() -> list[str]:
    """Which the processor announces, as Linux tells; elsewhere nothing is known."""
    return _cpuinfo("flags", "Features").split()


def _processor() -> str:
    return _cpuinfo("model name", "CPU part") or platform.machine()


def _cpuinfo(*names: str) -> str:
    """The first entry of one of these names."""
    if platform.system() != "Linux":
        return ""
    for line in CPUINFO.read_text(encoding="utf-8").splitlines():
        name, _, words = line.partition(":")
        if name.strip() in names:
            return words.strip()
    return ""


# --- In a process of its own ----------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """How many times as fast bfloat16 is, and whether the least times repeat, as they do where
    nothing disturbs. Of this thread's own time, by turns: what else runs here only adds to it.
    """
    import torch

    torch.set_num_threads(1)
    ways = {name: _learning(getattr(torch, name)) for name in ("float32", "bfloat16")}
    least: dict[str, list[float]] = {name: [] for name in ways}  # of every round
    for _ in range(ROUNDS):
        seconds = _round(ways)
        for name, times in least.items():
            times.append(min(seconds[name]))
        if all(map(repeats, least.values())):
            break
    speed_up = min(least["float32"]) / min(least["bfloat16"])
    return {"speed_up": speed_up, "calm": all(map(repeats, least.values()))}


def repeats(least: list[float]) -> bool:
    """Whether two rounds came down to about the same."""
    first, *others = sorted(least)
    return bool(others) and others[0] <= first * ALIKE


def _round(ways: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, learn in ways.items():
            begun_s = time.thread_time()
            learn()
            if turn:  # the first one warms up
                seconds[name].append(time.thread_time() - begun_s)
    return seconds


def _learning(dtype: object) -> Callable[[], None]:
    import torch
    from torch import nn

    torch.manual_seed(1)
    image = torch.rand(ROWS, 64, 9, 9).to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
    layers = nn.Sequential(nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(3136, 512))
    layers = layers.to(dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def learn() -> None:
        layers(image).sum().backward()

    return learn


if __name__ == "__main__":
    print(json.dumps(measured()))
