"""Real Ray clusters for tests: several nodes on this machine, or two hosts with a network between.

Every cluster has its own token and a short folder: a socket's path has at most 107 characters.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[2] / "src"
STORE_BYTES = 80 << 20
START_S, LEAVE_S = 40.0, 10.0
PORT = 6379


@contextmanager
def environment(**values: str | None) -> Iterator[None]:
    """Sets variables, or removes those with None; restores them afterwards."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="mht-", dir="/tmp"))
    try:
        yield made
    finally:
        deadline = time.monotonic() + LEAVE_S
        while made.exists() and time.monotonic() < deadline:
            shutil.rmtree(made, ignore_errors=True)
            time.sleep(0.05)


def secret(token: str | None) -> dict[str, str | None]:
    """The variables of a cluster with this token; None: of one that takes all comers.

    Ray's own niceness of 15 would starve node runners beside the other half of the tests.
    """
    mode = "disabled" if token is None else "token"
    return {
        "RAY_AUTH_MODE": mode,
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
    }


# --- Several nodes of this machine ----------------------------------------------------------------


@contextmanager
def cluster(
    *cpus: int, head_cpus: int = 0, token: str | None = "", store_bytes: int = STORE_BYTES
) -> Iterator[Any]:
    """A `ray.cluster_utils.Cluster`: a head, where main is, and a node for each number of CPUs."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    from manyhands.backends.ray import calling_ray

    token = secrets.token_hex(16) if token == "" else token
    how: dict[str, Any] = {"object_store_memory": store_bytes, "include_dashboard": False}
    source = {"PYTHONPATH": f"{SOURCES}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    with folder() as home, environment(**secret(token), **source, RAY_ADDRESS=None):
        calling_ray.read_environment_again()
        Path("/tmp/ray").mkdir(exist_ok=True)  # Ray keeps the address there, whatever its folder
        made = Cluster()  # its processes end with this one, also if that is killed
        try:
            made.add_node(num_cpus=head_cpus, temp_dir=str(home), **how)
            for number in cpus:
                made.add_node(num_cpus=number, **how)
            yield made
        finally:
            made.shutdown()


# --- Two hosts ------------------------------------------------------------------------------------


class Hosts:
    """Two network namespaces of this machine, joined by a bridge: 10.77.0.1 and 10.77.0.2."""

    addresses = ("10.77.0.1", "10.77.0.2")

    def __init__(self, home: Path, token: str) -> None:
        self.home, self.token = home, token
        tag = secrets.token_hex(2)
        self.names = (f"mh{tag}a", f"mh{tag}b")
        self.bridge = f"mh{tag}"
        self._started: list[subprocess.Popen[bytes]] = []

    def words(self, host: int, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.names[host], *command]

    def environment(self) -> dict[str, str]:
        found = {**os.environ, **secret(self.token), "PYTHONPATH": str(SOURCES)}
        return {name: value for name, value in found.items() if value is not None}

    def start_ray(self, *, cpus: Sequence[int], hidden: Path | None = None) -> str:
        """A head on the first host, a node on the second; returns the head's address.

        `hidden`: a folder that the second host does not have.
        """
        ray = str(Path(sys.executable).with_name("ray"))
        address = f"{self.addresses[0]}:{PORT}"
        for host, number in enumerate(cpus):
            first = ["--head", f"--port={PORT}", "--include-dashboard=false"]
            which = [f"--address={address}"] if host else first
            words = [ray, "start", "--block", "--disable-usage-stats", *which]
            words += [f"--node-ip-address={self.addresses[host]}", f"--num-cpus={number}"]
            words += [f"--object-store-memory={STORE_BYTES}", f"--temp-dir={self.home / str(host)}"]
            if host and hidden is not None:
                script = 'mount -t tmpfs none "$0" && cd / && exec "$@"'
                words = ["unshare", "--mount", "sh", "-c", script, str(hidden), *words]
            log = (self.home / f"{host}.log").open("wb")
            self._started.append(
                subprocess.Popen(
                    self.words(host, *words),
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
            log.close()
            self._wait(host)
        return address

    def _wait(self, host: int) -> None:
        deadline = time.monotonic() + START_S
        while b"Ray runtime started" not in (self.home / f"{host}.log").read_bytes():
            if time.monotonic() > deadline or self._started[-1].poll() is not None:
                pytest.fail((self.home / f"{host}.log").read_text()[-2000:])
            time.sleep(0.1)

    def limit(self, rate: str) -> None:
        """The rate of each host's link, such as "1gbit"."""
        for host in range(2):
            how = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "100ms"]
            _run(*self.words(host, "tc", "qdisc", "replace", "dev", "eth0", *how))

    def link(self, host: int, *, up: bool) -> None:
        _run(*self.words(host, "ip", "link", "set", "eth0", "up" if up else "down"))

    def make(self) -> None:
        _run("ip", "link", "add", self.bridge, "type", "bridge")
        _run("ip", "link", "set", self.bridge, "up")
        for host, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            inside, outside = f"{self.bridge}i{host}", f"{self.bridge}o{host}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", inside, "type", "veth", "peer", "name", outside)
            _run("ip", "link", "set", outside, "master", self.bridge, "up")
            _run("ip", "link", "set", inside, "netns", name, "name", "eth0")
            _run(*self.words(host, "ip", "address", "add", f"{address}/24", "dev", "eth0"))
            for device in ("lo", "eth0"):
                _run(*self.words(host, "ip", "link", "set", device, "up"))
            _run(*self.words(host, "ip", "route", "add", "default", "dev", "eth0"))

    def close(self) -> None:
        for process in self._started:
            process.terminate()
        for process in self._started:
            with suppress(subprocess.TimeoutExpired):
                process.wait(LEAVE_S)
            process.kill()
            process.wait()
        for name in self.names:
            for pid in _try("ip", "netns", "pids", name).split():
                _try("kill", "-9", pid)
            _try("ip", "netns", "delete", name)
        _try("ip", "link", "delete", self.bridge)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Skips the test where network namespaces are not allowed."""
    pytest.importorskip("ray")
    if shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("the commands ip and tc are not installed")
    with folder() as home:
        hosts = Hosts(home, secrets.token_hex(16))
        try:
            try:
                hosts.make()
            except subprocess.CalledProcessError as error:
                pytest.skip(f"network namespaces are not allowed: {error.stderr.strip()}")
            yield hosts
        finally:
            hosts.close()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


def _try(*words: str) -> str:
    return subprocess.run(words, check=False, capture_output=True, text=True).stdout
