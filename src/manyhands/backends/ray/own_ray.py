"""A Ray of this run's own: on loopback, with a random token, removed without a trace.

The token is in the environment of this run and nowhere else. All files are in one temporary folder.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from manyhands.backends.ray import calling_ray
from manyhands.types import Failure, machine

LOOPBACK = "127.0.0.1"
LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # 0: Ray's processes do not use other addresses
NICENESS = "RAY_worker_niceness"  # Ray's own choice is 15: beside other work a run would starve
STORE_BYTES = 256 << 20  # messages only, no data
LONGEST_FOLDER = 40  # characters: a socket's path has at most 107
LEAVING_S = 5.0  # until Ray's processes have closed their files
REMOVE = 'read _; sleep 2; rm -rf -- "$0"; sleep 3; rm -rf -- "$0"'


class Folder:
    """A temporary folder. If this process is killed, a shell removes it."""

    def __init__(self) -> None:
        given = Path(tempfile.gettempdir())
        parent = given if len(str(given)) <= LONGEST_FOLDER else Path("/tmp")
        self.path = Path(tempfile.mkdtemp(prefix="mh-ray-", dir=parent))
        # It reads a pipe that ends when this process does. Ray's processes end then, too.
        self._remover = subprocess.Popen(
            ["/bin/sh", "-c", REMOVE, str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def remove(self) -> None:
        """Ray's processes may still write while they end."""
        deadline = time.monotonic() + LEAVING_S
        while self.path.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.path, ignore_errors=True)
            time.sleep(0.02)
        self._remover.kill()
        self._remover.communicate()


def start() -> tuple[str, Folder]:
    """Starts it and joins it; returns its address and its folder."""
    folder = Folder()
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.update({**secret, LOOPBACK_ONLY: "0"})
    os.environ.setdefault(NICENESS, "0")
    try:
        with calling_ray.loopback_only():
            found = calling_ray.init(
                address="local",
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder.path),
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                num_cpus=machine.cores(),
            )
        if found["node_ip_address"] != LOOPBACK:
            calling_ray.leave()
            raise Failure(f"Ray listens on {found['node_ip_address']}, not on {LOOPBACK} only")
    except BaseException:
        folder.remove()
        raise
    return str(found["gcs_address"]), folder
