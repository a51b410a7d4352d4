"""Checks this machine and shows how to fix problems."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
from typing import Any

from manyhands.config import precision
from manyhands.maths import compiled
from manyhands.runs import provenance
from manyhands.types import machine
from manyhands.types.sizes import human

EXTRAS = {
    "atari": (("ale_py",), "Atari games"),
    "box2d": (("Box2D", "pygame"), "LunarLander"),
    "video": (("av", "PIL", "pygame"), "record and watch"),
    "plots": (("matplotlib",), "plot"),
    "fast": (("numba",), "faster prioritized replay"),
    "plan": (("simpy",), "plan and --workers auto"),
    "ray": (("ray",), "several machines: --backend ray"),
}
LEAST_PYTHON = (3, 11)
LOW_BYTES = 1_000_000_000


def examine() -> dict[str, Any]:
    """Facts about the machine; ``advice`` has a sentence for each problem."""
    bfloat16 = precision.tried()
    facts = {
        "manyhands": provenance.versions()["manyhands"],
        "commit": provenance.commit(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": machine.cores(),
        "memory_free_bytes": machine.free_bytes(),
        "disk_free_bytes": shutil.disk_usage(".").free,
        "torch": _torch(),
        "bfloat16_speed_up": round(bfloat16.speed_up, 2),
        "bfloat16": bfloat16.why(),
        "compiled_loops": compiled.found().why,
        "extras": {name: _extra(name) for name in EXTRAS},
    }
    return facts | {"advice": _advice(facts)}


def _torch() -> dict[str, Any] | None:
    try:
        import torch
    except (ImportError, OSError):  # OSError: a shared library is missing
        return None
    mps = torch.backends.mps.is_available()
    device = "cuda" if torch.cuda.is_available() else "mps" if mps else "cpu"
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    facts = {"version": str(torch.__version__), "threads": torch.get_num_threads()}
    return {**facts, "device": device, "device_name": name}


def _extra(name: str) -> dict[str, Any]:
    modules, purpose = EXTRAS[name]
    missing = [module for module in modules if not _is_there(module)]
    fix = f'pip install "manyhands[{name}]"' if missing else ""
    return {"installed": not missing, "for": purpose, "missing": missing, "fix": fix}


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def _advice(facts: dict[str, Any]) -> list[str]:
    found = {
        "Python is older than 3.11: install a newer one": sys.version_info < LEAST_PYTHON,
        "torch cannot be imported: pip install torch": facts["torch"] is None,
        "less than 1 GB of memory is free: lower --memory.capacity": (
            facts["memory_free_bytes"] < LOW_BYTES
        ),
        "less than 1 GB of disk is free here: choose an --out elsewhere": (
            facts["disk_free_bytes"] < LOW_BYTES
        ),
    }
    return [sentence for sentence, holds in found.items() if holds]


def as_text(facts: dict[str, Any]) -> str:
    torch = facts["torch"]
    told = "missing"
    if torch:
        told = f"{torch['version']}, {torch['threads']} thread(s), {torch['device']}"
    rows = {
        "manyhands": f"{facts['manyhands']} {facts['commit'][:12]}".strip(),
        "python": f"{facts['python']} on {facts['platform']}",
        "cores": str(facts["cores"]),
        "memory free": human(facts["memory_free_bytes"]),
        "disk free": f"{human(facts['disk_free_bytes'])} here",
        "torch": told,
        "bfloat16": f"{_used(facts['bfloat16_speed_up'])} by --network.precision auto: "
        f"{facts['bfloat16']}",
    }
    rows["compiled"] = facts["compiled_loops"]
    for name, extra in facts["extras"].items():
        state = "ready" if extra["installed"] else f"missing: {extra['fix']}"
        rows[name] = f"{state}  ({extra['for']})"
    lines = [f"{name:12} {value}" for name, value in rows.items()]
    return "\n".join([*lines, "", *(facts["advice"] or ["no problems found"])])


def _used(speed_up: float) -> str:
    return "used" if speed_up >= precision.PAYS else "not used"
