"""Asks every node for its versions and its free memory, before any work.

What differs from main's machine is refused, with the names of the node and of the library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from manyhands.backends.ray import calling_ray
from manyhands.backends.ray.nodes import LABEL, Node
from manyhands.types import BadRequest
from manyhands.types.errors import short

PATIENCE_S = 10.0
RETRIES = 5  # of a question that was lost on its way
NONE = "none"  # the version of what is not installed


@dataclass(frozen=True, slots=True)
class Facts:
    """What a machine has."""

    versions: Mapping[str, str]  # "Python", "manyhands" and libraries
    free_bytes: int
    problem: str = ""  # why it cannot do the work


def asker(libraries: Sequence[str], trial: Callable[[], str] | None) -> Callable[[], Any]:
    """A function that returns a machine's facts as plain data.

    It is sent by value and imports everything itself: a node may lack what this machine has.
    """

    packed = None if trial is None else cloudpickle.dumps(trial)

    def ask() -> tuple[dict[str, str], int, str]:
        import hashlib
        import pickle
        import platform
        from importlib import metadata
        from pathlib import Path

        versions = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for library in libraries:
            try:
                versions[library] = metadata.version(library)
            except metadata.PackageNotFoundError:
                versions[library] = "none"
        try:
            import manyhands
            from manyhands.types import machine
        except ImportError as error:
            return {**versions, "manyhands": "none"}, 0, f"{type(error).__name__}: {error}"
        home = Path(manyhands.__file__).parent
        digest = hashlib.sha256()
        for file in sorted(home.rglob("*.py")):
            digest.update(file.read_bytes())
        code = f"{manyhands.__version__} (code {digest.hexdigest()[:8]})"
        problem = pickle.loads(packed)() if packed is not None else ""
        return {**versions, "manyhands": code}, machine.free_bytes(), problem

    return ask


def compare(
    nodes: Sequence[Node], libraries: Sequence[str], trial: Callable[[], str] | None
) -> tuple[Node, ...]:
    """The nodes with the memory that is really free. Raises BadRequest if one differs from here."""
    ask = asker(libraries, trial)
    here = Facts(*ask())
    found = _asked(nodes, ask)
    check(here, {node.name: found[node.id] for node in nodes})
    return tuple(
        replace(node, free_bytes=min(node.free_bytes, found[node.id].free_bytes)) for node in nodes
    )


def check(here: Facts, by_node: Mapping[str, Facts]) -> None:
    """Raises BadRequest for all that differs, the first of it with a remedy."""
    lacking = [
        f"node {name} has no manyhands ({facts.problem})"
        for name, facts in by_node.items()
        if facts.versions["manyhands"] == NONE
    ]
    if lacking:
        raise BadRequest(
            "; ".join(lacking), "install manyhands there, into the Python that `ray start` uses"
        )
    differing = [
        f"node {name} has {library} {facts.versions[library]}, this machine has {version}"
        for name, facts in by_node.items()
        for library, version in here.versions.items()
        if facts.versions[library] != version
    ]
    if differing:
        raise BadRequest("; ".join(differing), "install the same versions on every node")
    if broken := [
        f"node {name}: {facts.problem}" for name, facts in by_node.items() if facts.problem
    ]:
        raise BadRequest("; ".join(broken), "add --network.precision float32")


def _asked(nodes: Sequence[Node], ask: Callable[[], Any]) -> dict[str, Facts]:
    """From a task on each node. It needs no CPU, so that full nodes answer too."""
    ray = calling_ray.ray_module()
    task = ray.remote(num_cpus=0, max_retries=RETRIES)(ask)
    asked = {node.id: task.options(label_selector={LABEL: node.id}).remote() for node in nodes}
    refs = list(asked.values())
    ready, _ = ray.wait(refs, num_returns=len(refs), timeout=PATIENCE_S)
    if silent := [node.name for node in nodes if asked[node.id] not in ready]:
        raise BadRequest(
            f"node {', '.join(silent)} did not answer within {PATIENCE_S:g} s",
            "look at its logs, or remove it from the cluster with `ray stop` there",
        )
    return {node.id: _facts(ray, node, asked[node.id]) for node in nodes}


def _facts(ray: Any, node: Node, ref: Any) -> Facts:
    try:
        return Facts(*ray.get(ref))
    except ray.exceptions.RayError as error:
        raise BadRequest(
            f"node {node.name} cannot run Python tasks: {short(str(error))}",
            "look at the logs of that node",
        ) from error
