"""Decides the precision of a network for `network.precision auto`, before a run begins.

Some processors multiply bfloat16 twice as fast as float32, some no faster. Some virtual machines
announce bfloat16 and then kill the process that uses it. So a separate process tries it:
`python -m manyhands.config.precision` prints how many times as fast bfloat16 is on one thread, for
a convolution and a dense layer of the Nature network, forward and backward.

The result of an undisturbed trial is stored in the user's cache folder, by processor and torch
version, so that a seed repeats. If three trials are disturbed, a run computes in float32 and says
so. `manyhands doctor` tries again. The run's config records the decision. A resumed run computes as
before, but in float32 on a machine that forbids bfloat16.
"""

from __future__ import annotations

import hashlib
import json
import os
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
from manyhands.types.machine import cpuinfo, processor

if TYPE_CHECKING:
    from manyhands.config.plans import Plan

INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "avx10_2", "bf16"}  # of x86 and ARM
PAYS = 1.4  # the least speed-up that pays for converting numbers
ROWS, TURNS = 32, 7
ROUNDS = 8  # the most rounds; fewer if the smallest times repeat
ALIKE = 1.05  # two times whose ratio is at most this count as equal
TRIALS, PATIENCE_S = 3, 20  # until one is undisturbed; of each
BUSY = "no trial was undisturbed on this busy machine; `manyhands doctor` tries again"
MOST_BYTES, MOST_MACHINES = 1 << 16, 32  # limits of the cache file
FORBIDDEN = "float32, because this machine forbids bfloat16"


def settled(plan: Plan, device: str, *, own_network: bool = False) -> Plan:
    """Replaces `auto` by the precision in which this machine is fastest."""
    network = plan.network
    if network.precision == "bfloat16" and device == "cpu" and forbidden():
        raise BadRequest(
            "this machine announces bfloat16 instructions and kills processes that use them",
            "leave out --network.precision, or give float32",
        )
    if network.precision != "auto":
        return plan
    if own_network or network.torso != "nature" or device != "cpu":
        return _with(plan, "float32", "auto")
    precision = "bfloat16" if verdict().speed_up >= PAYS else "float32"
    return _with(plan, precision, f"auto: {verdict().why()}")


def as_before(plan: Plan, recorded: Path, device: str) -> Plan:
    """For a resumed run: `auto` means the precision that its config.json records."""
    if plan.network.precision != "auto":
        return bearable(plan, device)
    try:
        with runfiles.opened(recorded.parent) as folder:
            table = runfiles.read_json(folder, recorded.name)
        kept = table["config"]["network"]["precision"]
    except (OSError, ValueError, LookupError, TypeError):
        kept = "float32"  # older runs have no such option
    precision = "bfloat16" if kept == "bfloat16" else "float32"
    return bearable(_with(plan, precision, "as the run began"), device)


def bearable(plan: Plan, device: str) -> Plan:
    """Replaces bfloat16 by float32 if this machine kills processes that use bfloat16."""
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
    """A line about the precision, if a trial decided it."""
    source = plan.sources.get("network.precision", "")
    return f"{plan.network.precision}, {source}" if source.startswith("auto: ") else ""


# --- The machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    speed_up: float = 0.0  # against float32; 0: no instructions, or forbidden ones
    forbidden: bool = False  # a signal kills a process that computes in bfloat16
    calm: bool = True  # the trial was not disturbed, so its result would repeat
    origin: str = "this processor has no bfloat16 instructions"

    def why(self) -> str:
        if self.forbidden:
            return f"this machine forbids bfloat16 ({self.origin})"
        fast = f"bfloat16 is {self.speed_up:.1f} times as fast here ({self.origin})"
        return fast if self.speed_up else self.origin


def forbidden() -> bool:
    return verdict().forbidden


@cache
def verdict() -> Verdict:
    """The stored verdict, or else that of a trial now."""
    if not INSTRUCTIONS & set(instructions()):
        return Verdict()
    return _kept() or tried()


def tried() -> Verdict:
    """The verdict of a trial now. Stores that of an undisturbed one; else float32 is used."""
    if not INSTRUCTIONS & set(instructions()):
        return Verdict()
    for _ in range(TRIALS):
        found = _outcome(trial())
        if found.calm:
            kept = _keep(found)
            where = f"stored in {kept}" if kept else "not stored"
            return replace(found, origin=f"tried now, {where}")
    return Verdict(forbidden=found.forbidden, calm=False, origin=BUSY)


def trial() -> subprocess.CompletedProcess[str] | None:
    words = [sys.executable, "-P", "-m", "manyhands.config.precision"]
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S}
    try:
        return subprocess.run(words, check=False, **how)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _outcome(done: subprocess.CompletedProcess[str] | None) -> Verdict:
    if done is not None and done.returncode < 0:  # another signal than SIGILL may be unrelated
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


# --- The cache file -------------------------------------------------------------------------------


def cache_file() -> Path:
    """The cache file: one verdict for every kind of machine that shares the folder."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(folder) if os.path.isabs(folder) else Path.home() / ".cache"
    return home / "manyhands" / "precision.json"


def _machine() -> str:
    """What a trial depends on: the processor, its instructions, the version of torch."""
    parts = [processor(), *sorted(instructions()), _torch_version()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _torch_version() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return "none"


def _read() -> dict[str, Any]:
    """All stored verdicts; none if the file is missing, too large or not JSON."""
    try:
        file = cache_file()
        with runfiles.opened(file.parent) as folder:
            return runfiles.read_json(folder, file.name, MOST_BYTES)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: no home folder
        return {}


def _kept() -> Verdict | None:
    try:
        entry = _read()[_machine()]
        forbidden = entry["forbidden"] is True
        origin = f"tried before, stored in {cache_file()}"
        return Verdict(_speed_up(entry), forbidden=forbidden, origin=origin)
    except (ValueError, TypeError, LookupError):
        return None


def _keep(found: Verdict) -> Path | None:
    """Stores a verdict beside those of other machines; None if it cannot be written."""
    machine_facts = {"processor": processor(), "torch": _torch_version()}
    entry = {"speed_up": found.speed_up, "forbidden": found.forbidden, **machine_facts}
    machine = _machine()
    others = {name: other for name, other in _read().items() if name != machine}
    newest = dict(list(others.items())[1 - MOST_MACHINES :])
    try:
        file = cache_file()
        with runfiles.opened(file.parent, make=True) as folder:
            runfiles.write_json(folder, file.name, {**newest, _machine(): entry})
    except (OSError, RuntimeError):
        return None
    return file


def instructions() -> list[str]:
    """The instructions that the processor announces; empty if not on Linux."""
    return cpuinfo("flags", "Features").split()


# --- In a separate process ------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """The speed-up of bfloat16, from the smallest CPU times, and whether these repeat."""
    import torch

    torch.set_num_threads(1)
    ways = {name: _learning(getattr(torch, name)) for name in ("float32", "bfloat16")}
    least: dict[str, list[float]] = {name: [] for name in ways}  # by round
    for _ in range(ROUNDS):
        seconds = _round(ways)
        for name, times in least.items():
            times.append(min(seconds[name]))
        if all(map(repeats, least.values())):
            break
    speed_up = min(least["float32"]) / min(least["bfloat16"])
    return {"speed_up": speed_up, "calm": all(map(repeats, least.values()))}


def repeats(least: list[float]) -> bool:
    """Whether the two smallest times are about equal."""
    first, *others = sorted(least)
    return bool(others) and others[0] <= first * ALIKE


def _round(ways: dict[str, Callable[[], None]]) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, learn in ways.items():
            begun_s = time.thread_time()
            learn()
            if turn:  # the first turn warms up
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
