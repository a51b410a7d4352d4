"""In which precision a network computes: `network.precision auto`, settled before a run begins.

Some processors multiply bfloat16 twice as fast as float32 or faster, some no faster, and some
virtual machines announce what they then forbid, which ends the process. So it is tried, in a
process of its own: `python -m manyhands.precision` prints how many times as fast bfloat16 is, on
one thread, for a convolution and a dense layer of the Nature network, forwards and backwards.

What was found is written into the run's config, so that a resumed run computes as it did before;
on a machine that forbids bfloat16 in float32, in which its parameters are kept anyway.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from manyhands.types import BadRequest

if TYPE_CHECKING:
    from manyhands.config import Plan

CPUINFO = Path("/proc/cpuinfo")
INSTRUCTIONS = {"avx512_bf16", "amx_bf16", "avx10_2", "bf16"}  # x86's, and ARM's
PAYS = 1.4  # times as fast; less is lost again where numbers change their precision
ROWS, TURNS = 32, 7
PATIENCE_S = 60
FORBIDDEN = "float32, as this machine forbids bfloat16"


def settled(plan: Plan, device: str, *, own_network: bool = False) -> Plan:
    """The plan without `auto`: in what this machine computes its network soonest."""
    network = plan["network"]
    if network.precision == "bfloat16" and device == "cpu" and forbidden():
        raise BadRequest(
            "this machine announces instructions for bfloat16 and ends whoever uses them",
            "leave out --network.precision, or give float32",
        )
    if network.precision != "auto":
        return plan
    if own_network or network.torso != "nature" or device != "cpu":
        return _with(plan, "float32", "auto")
    precision = "bfloat16" if speed_up() >= PAYS else "float32"
    return _with(plan, precision, "auto, tried on this machine")


def as_before(plan: Plan, recorded: Path, device: str) -> Plan:
    """For who goes on with a run: `auto` is what its config.json says it was settled to."""
    if plan["network"].precision != "auto":
        return bearable(plan, device)
    try:
        kept = json.loads(recorded.read_text(encoding="utf-8"))["config"]["network"]["precision"]
    except (OSError, ValueError, LookupError, TypeError):
        kept = "float32"  # what runs computed in before there was a choice
    precision = "bfloat16" if kept == "bfloat16" else "float32"
    return bearable(_with(plan, precision, "as the run began"), device)


def bearable(plan: Plan, device: str) -> Plan:
    """What was trained elsewhere, in a precision that does not end the process here."""
    if plan["network"].precision == "bfloat16" and device == "cpu" and forbidden():
        return _with(plan, "float32", FORBIDDEN)
    return plan


def _with(plan: Plan, precision: str, source: str) -> Plan:
    network = replace(plan["network"], precision=precision)
    return replace(
        plan,
        sections={**plan.sections, "network": network},
        sources={**plan.sources, "network.precision": source},
    )


def speed_up() -> float:
    """Times as fast as float32; 0 where there are no instructions for it, or they are forbidden."""
    try:
        return float(trial().stdout)
    except ValueError:
        return 0.0


def forbidden() -> bool:
    """Whoever computes in bfloat16 here is ended by a signal."""
    return trial().returncode < 0


@cache
def trial() -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-P", "-m", "manyhands.precision"]
    try:
        if INSTRUCTIONS & set(instructions()):
            return subprocess.run(
                words, capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
    except (OSError, ValueError, subprocess.SubprocessError):
        pass
    return subprocess.CompletedProcess(words, 0, "", "")


def instructions() -> list[str]:
    """Which the processor announces, as Linux tells; elsewhere nothing is known."""
    if platform.system() != "Linux":
        return []
    for line in CPUINFO.read_text(encoding="utf-8").splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return words.split()
    return []


# --- In a process of its own ----------------------------------------------------------------------


def measured() -> float:
    import torch

    torch.set_num_threads(1)
    ways = {name: _learning(getattr(torch, name)) for name in ("float32", "bfloat16")}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(TURNS + 1):
        for name, learn in ways.items():
            begun_s = time.perf_counter()
            learn()
            if turn:  # the first one warms up
                seconds[name].append(time.perf_counter() - begun_s)
    return min(seconds["float32"]) / min(seconds["bfloat16"])  # what else runs here only adds


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
    print(measured())
