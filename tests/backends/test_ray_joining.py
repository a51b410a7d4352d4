"""Joining Ray: one of our own, refusals within ten seconds, and what nodes must share."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from manyhands.backends.ray import comparing, joining, reserving
from manyhands.backends.ray.comparing import Facts
from manyhands.backends.ray.options import RayOptions
from manyhands.backends.ray.placing import NotEnough
from manyhands.types import BadRequest
from manyhands.types.needs import Needs, ProcessNeed
from support import ray_clusters
from support.command_line import call

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.heavy]
AT_MOST_S = 10.0


def refused(address: str) -> BadRequest:
    started = time.monotonic()
    with pytest.raises(BadRequest) as told:
        joining.join(RayOptions(address=address))
    assert time.monotonic() - started < AT_MOST_S
    assert told.value.remedy
    return told.value


# --- A Ray of our own -----------------------------------------------------------------------------


def test_our_own_ray_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    before = dict(os.environ)
    handler = signal.getsignal(signal.SIGTERM)
    with joining.join(RayOptions()) as cluster:
        (node,) = cluster.nodes
        assert cluster.is_own
        assert node.is_main
        assert node.name == "127.0.0.1"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
        assert signal.getsignal(signal.SIGTERM) is handler
        folder = cluster._own.path if cluster._own else Path("/nowhere")
        listening = _addresses_of(folder)
    assert listening == {"127.0.0.1"}
    assert not folder.exists()
    assert not _processes_of(folder)
    assert dict(os.environ) == before
    assert not list(tmp_path.iterdir())


def test_killed_main_leaves_no_ray_behind() -> None:
    code = (
        "import time\n"
        "from manyhands.backends.ray import joining\n"
        "from manyhands.backends.ray.options import RayOptions\n"
        "cluster = joining.join(RayOptions())\n"
        "print(cluster._own.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as main:
        assert main.stdout is not None
        folder = Path(main.stdout.readline().strip())
        assert folder.is_dir()
        main.kill()
    deadline = time.monotonic() + AT_MOST_S
    while (folder.exists() or _processes_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not folder.exists()
    assert not _processes_of(folder)


def _processes_of(folder: Path) -> list[str]:
    """The commands that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").replace("\0", " ")
        except OSError:
            continue
        if str(folder) in words and "/bin/sh" not in words:
            found.append(words)
    return found


def _addresses_of(folder: Path) -> set[str]:
    """The addresses on which Ray's daemons listen for TCP."""
    import psutil

    pids = [p.pid for p in psutil.process_iter() if _names(p, folder)]
    found = (c for pid in pids for c in psutil.Process(pid).net_connections("tcp"))
    return {c.laddr.ip.removeprefix("::ffff:") for c in found if c.status == "LISTEN"}


def _names(process: Any, folder: Path) -> bool:
    import psutil

    try:
        return any(str(folder) in word for word in process.cmdline())
    except psutil.Error:
        return False


# --- Refusals -------------------------------------------------------------------------------------


def test_ray_client_addresses_are_refused() -> None:
    assert "Ray Client is too slow" in refused("ray://10.0.0.1:10001").what


@pytest.mark.parametrize("address", ["nonsense", "10.0.0.1", "host:port"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert "is not an address" in refused(address).what


def test_wrong_addresses_are_refused_quickly() -> None:
    assert "nothing answers" in refused("127.0.0.1:1").what
    assert "nothing answers" in refused("no.such.host.invalid:6379").what


def test_the_command_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--backend=ray", "--actors=2", "--ray.address=127.0.0.1:1", "--out=never", "--quiet")
    assert call("train", "cartpole", "--recipe=distributed-dqn", *words) == 2
    assert "--ray.address 127.0.0.1:1: nothing answers at" in capsys.readouterr().err
    assert not Path("never").exists()


def test_other_servers_are_refused() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with ray_clusters.environment(RAY_AUTH_MODE="disabled"):
            assert "is not a Ray cluster" in refused(address).what


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_clusters.cluster(1, head_cpus=1, token="the-right-token") as made:
        yield made


def test_tokens_are_checked(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # without the token of the user that runs this
    with ray_clusters.environment(RAY_AUTH_MODE=None, RAY_AUTH_TOKEN=None):
        assert "no token for the Ray cluster" in refused(cluster.address).what
    with ray_clusters.environment(RAY_AUTH_MODE=None, RAY_AUTH_TOKEN="a-wrong-one"):
        assert "refuses this token" in refused(cluster.address).what
    with ray_clusters.environment(RAY_AUTH_MODE="disabled", RAY_AUTH_TOKEN=None):
        assert "RAY_AUTH_MODE is disabled" in refused(cluster.address).what


def test_a_token_alone_turns_authentication_on(cluster: Any, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("the-right-token")
    how = {"RAY_AUTH_MODE": None, "RAY_AUTH_TOKEN": None, "RAY_AUTH_TOKEN_PATH": str(file)}
    with ray_clusters.environment(**how), joining.join(RayOptions(address=cluster.address)) as made:
        assert not made.is_own
        assert not made.notes
        assert sorted(node.cpus for node in made.nodes) == [1, 1]


# --- Comparing and reserving ----------------------------------------------------------------------


def _wait_until_taken(cluster: joining.Cluster) -> None:
    """Ray tells a node's free CPUs a moment after it has taken them."""
    until = time.monotonic() + AT_MOST_S
    while any(node.free_cpus for node in cluster.nodes) and time.monotonic() < until:
        time.sleep(0.05)
    assert [node.free_cpus for node in cluster.nodes] == [0, 0]


def test_nodes_are_asked_and_reserved(cluster: Any) -> None:
    lines: list[str] = []
    needs = Needs((ProcessNeed("actor", 1, anywhere=True), ProcessNeed("learner", 1)))
    with joining.join(RayOptions(address=cluster.address)) as made:
        nodes = comparing.compare(made.nodes, ("torch", "numpy"), None)
        assert all(node.free_bytes > 0 for node in nodes)
        how: dict[str, Any] = {"cpus_each": 1.0, "tell": lines.append}
        held = reserving.reserve(needs, lambda: made.nodes, wait_minutes=0, **how)
        _wait_until_taken(made)
        started = time.monotonic()
        with pytest.raises(NotEnough, match="1 learner must be on this machine"):
            reserving.reserve(needs, lambda: made.nodes, wait_minutes=0, **how)
        with pytest.raises(NotEnough):
            reserving.reserve(needs, lambda: made.nodes, wait_minutes=0.01, **how)
        assert time.monotonic() - started < AT_MOST_S
        held.release()
        reserving.reserve(needs, lambda: made.nodes, wait_minutes=1, **how).release()
    assert lines[0].startswith("waiting up to 0.01 minutes: 1 learner must be on")


def test_a_trial_that_fails_names_the_node(cluster: Any) -> None:
    joined, told = joining.join(RayOptions(address=cluster.address)), r"node .*: it forbids bfloat"
    with joined as made, pytest.raises(BadRequest, match=told):
        comparing.compare(made.nodes, (), lambda: "it forbids bfloat16")


SAME = Facts({"Python": "3.11", "manyhands": "0.1", "torch": "2.6"}, 1)


def test_differences_are_refused_by_node_and_name() -> None:
    other = Facts({"Python": "3.11", "manyhands": "0.1", "torch": "2.5"}, 1)
    comparing.check(SAME, {"10.0.0.7": SAME})
    with pytest.raises(BadRequest, match=r"node 10\.0\.0\.7 has torch 2\.5, this machine has 2\.6"):
        comparing.check(SAME, {"10.0.0.6": SAME, "10.0.0.7": other})


def test_a_node_without_manyhands_is_named() -> None:
    without = Facts({"Python": "3.11", "manyhands": "none", "torch": "2.6"}, 0, "no module")
    with pytest.raises(BadRequest, match=r"node 10\.0\.0\.7 has no manyhands"):
        comparing.check(SAME, {"10.0.0.7": without})
