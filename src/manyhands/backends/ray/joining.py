"""Joins a Ray cluster that runs already, or starts a Ray of this run's own."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from manyhands.backends.ray import calling_ray, comparing, nodes, own_ray, probe, shipping
from manyhands.backends.ray.nodes import Node
from manyhands.backends.ray.options import RayOptions
from manyhands.types import BadRequest
from manyhands.types.errors import text_of

MODE, TOKEN, TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
CONNECT_S = 3.0
ALIKE = ("torch", "numpy")  # besides Python and manyhands
LEAST_CPUS = 0.0001  # the smallest fraction that Ray counts
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise a warning about GPUs
}


class Cluster:
    """A cluster that this process has joined. `close` leaves it, and ends a Ray of our own."""

    def __init__(
        self, address: str, *, own: own_ray.Folder | None, notes: tuple[str, ...] = ()
    ) -> None:
        self.address, self.notes = address, notes
        self._own, self._before, self._closed = own, dict[str, str | None](), False

    @property
    def is_own(self) -> bool:
        return self._own is not None

    def cpus_each(self, options: RayOptions) -> float:
        """Next to none in a Ray of our own: on one machine, processes may share cores."""
        return LEAST_CPUS if self.is_own else options.cpus_per_worker

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those alive now, main's first."""
        ray = calling_ray.ray_module()
        here = ray.get_runtime_context().get_node_id()
        return nodes.from_ray(ray.nodes(), calling_ray.free_by_node(), here)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        calling_ray.leave()
        if self._own is not None:
            self._own.remove()
        _restore(self._before)

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def join(options: RayOptions) -> Cluster:
    """Joins the cluster at the address. Without one, starts a Ray of our own.

    Use `close`, or a with block.
    """
    own = own_ray.LOOPBACK_ONLY, own_ray.NICENESS
    names = (MODE, TOKEN, *own, *QUIET, *calling_ray.LEFT_BY_RAY)
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(QUIET)
    try:
        if calling_ray.ray_module().is_initialized():
            raise BadRequest(
                "this process has joined a Ray cluster already", "call ray.shutdown() first"
            )
        made = _existing(options) if options.address else _own()
    except BaseException:
        _restore(before)
        raise
    made._before = before
    return made


def _restore(before: Mapping[str, str | None]) -> None:
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


# --- A cluster that runs already ------------------------------------------------------------------


def _existing(options: RayOptions) -> Cluster:
    address, shipped = _address(options.address), shipping.runtime_env(options.ship)
    if not _listens(address):
        raise BadRequest(
            f"--ray.address {options.address}: nothing answers at {address}",
            "give the address that `ray start --head` printed, or leave it out for a local Ray",
        )
    notes = _authentication(address)
    answer = probe.ask(address)
    if answer == probe.BAD_TOKEN:
        raise BadRequest(
            f"--ray.address {options.address}: the cluster refuses this token"
            + ("" if os.environ.get(MODE) == "token" else f" ({MODE} is {os.environ.get(MODE)})"),
            f"set {TOKEN} or {TOKEN_PATH} to the token that the cluster was started with",
        )
    if answer == probe.SILENT:
        raise BadRequest(
            f"--ray.address {options.address}: what listens at {address} is not a Ray cluster "
            "of this version",
            "give the address that `ray start --head` printed",
        )
    calling_ray.init(address=address, runtime_env=shipped)
    made = Cluster(address, own=None, notes=notes)
    try:
        comparing.compare(made.nodes, ALIKE, None)
    except BaseException:
        made.close()
        raise
    return made


def _address(given: str) -> str:
    """HOST:PORT. `auto` is the cluster of RAY_ADDRESS, or the one started on this machine."""
    if "://" in given:
        raise BadRequest(
            f"--ray.address {given}: Ray Client is too slow for training (0.1 GB/s)",
            "run this command on a node of the cluster, with --ray.address HOST:PORT or auto, "
            "or use `ray job submit`",
        )
    try:
        found = calling_ray.address_of(given)
    except ValueError:
        found = ""
    except OSError as error:
        raise BadRequest(
            f"--ray.address {given}: {text_of(error)}", "give HOST:PORT, or auto"
        ) from error
    if found is None:
        raise BadRequest(
            f"--ray.address {given}: no Ray cluster was started on this machine",
            "start one with `ray start --head`, or leave out --ray.address for a local Ray",
        )
    if not found.rpartition(":")[2].isdigit():
        raise BadRequest(f"--ray.address {given} is not an address", "give HOST:PORT, or auto")
    return found


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
        return True
    return False


def _authentication(address: str) -> tuple[str, ...]:
    """Turns the token on if there is one. Lines for the user if the user turned it off."""
    mode = os.environ.get(MODE, "").lower()
    if mode == "disabled":
        return (f"{MODE}=disabled: any program that reaches {address} can run code there",)
    if mode in ("", "token") and not _has_token():
        raise BadRequest(
            f"no token for the Ray cluster at {address}",
            f"set {TOKEN} or {TOKEN_PATH} to the cluster's token; "
            f"{MODE}=disabled for a cluster without one",
        )
    os.environ.setdefault(MODE, "token")
    return ()


def _has_token() -> bool:
    if os.environ.get(TOKEN):
        return True
    file = Path(os.environ.get(TOKEN_PATH) or Path.home() / ".ray" / "auth_token")
    with suppress(OSError):
        return file.stat().st_size > 0
    return False


def _own() -> Cluster:
    address, folder = own_ray.start()
    return Cluster(address, own=folder)
