"""Ray's import and `ray.init`, and what we use of Ray that its documentation does not promise.

Checked with Ray 2.60. Nothing else in this room imports from ``ray._private`` or ``ray._raylet``.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from manyhands.types import BadRequest
from manyhands.types.errors import text_of

LEFT_BY_RAY = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")  # set by `ray.init`
DOCS = 'see "From laptop to cluster" in the documentation'


def ray_module() -> ModuleType:
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise BadRequest(
            f"--backend ray: Ray cannot be imported: {text_of(error)}",
            'pip install "manyhands[ray]"',
        ) from error


def _inside(module: str) -> Any:
    return importlib.import_module(f"ray.{module}")


# --- Joining --------------------------------------------------------------------------------------


def init(**how: Any) -> Mapping[str, Any]:
    """`ray.init`, which leaves this process' signals and messages as they were."""
    ray = ray_module()
    read_environment_again()
    _Hushed.begin()
    try:
        with _signals_kept():
            found = ray.init(log_to_driver=False, logging_level="ERROR", **how).address_info
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        leave()
        raise BadRequest(f"Ray could not be joined: {text_of(error)}", DOCS) from error
    for name in LEFT_BY_RAY:
        os.environ.pop(name, None)
    known: Mapping[str, Any] = found
    return known


def leave() -> None:
    """`ray.shutdown`. A Ray that this process joined is no longer joined, one it started ends."""
    ray_module().shutdown()
    _Hushed.end()


class _Hushed:
    """Ray prints the end of a raylet with pages of its log. A run has faults.jsonl."""

    before: Any = None

    @classmethod
    def begin(cls) -> None:
        worker = _inside("_private.worker")
        cls.before = cls.before or worker.print_to_stdstream
        worker.print_to_stdstream = lambda *_, **__: None

    @classmethod
    def end(cls) -> None:
        if cls.before is not None:
            _inside("_private.worker").print_to_stdstream, cls.before = cls.before, None


def read_environment_again() -> None:
    """Ray reads mode and token when it is imported. A script may have imported it before."""
    raylet = _inside("_raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """`ray.init` replaces the handler of SIGTERM by one that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def loopback_only() -> Iterator[None]:
    """Ray replaces 127.0.0.1 by the machine's address, unless this constant forbids clusters."""
    constants = _inside("_private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def address_of(given: str) -> str | None:
    """HOST:PORT; None: `auto`, and no cluster is known. ValueError: it is no address."""
    found: str | None = _inside("_private.services").canonicalize_bootstrap_address(given)
    return found


# --- Asking ---------------------------------------------------------------------------------------


def is_welcome(address: str, timeout_s: float) -> bool:
    """False: the cluster refuses the token. Other errors of Ray may end the process."""
    from ray.exceptions import AuthenticationError

    try:
        _inside("_raylet").GcsClient(address=address).get_all_node_info(timeout=timeout_s)
    except AuthenticationError:
        return False
    return True


def free_by_node() -> Mapping[str, Mapping[str, float]]:
    """The resources that are not in use, by node id."""
    found: Mapping[str, Mapping[str, float]]
    found = _inside("_private.state").available_resources_per_node()
    return found
