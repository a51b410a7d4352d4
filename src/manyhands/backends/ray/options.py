"""The options of the section ``ray``. Reading them does not import Ray."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.types import Options, option


@dataclass(frozen=True)
class RayOptions(Options):
    address: str = option(
        "", "a running cluster, HOST:PORT or auto; default: a Ray of this run's own"
    )
    cpus_per_worker: float = option(
        1.0, "CPUs that a cluster counts for each process of the run", low=0.0001
    )
    wait_minutes: float = option(
        0.0, "minutes to wait for CPUs and memory that are missing; 0: refuse at once", low=0
    )
    ship: str = option("", "your packages and modules that nodes lack: paths, separated by commas")
