"""Ray loses requests and answers: what is carried arrives once all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support import ray_clusters

pytestmark = [pytest.mark.ray, pytest.mark.heavy]
ENTRIES, MOST, PUSHES = 2_000, 12_000, 200
LOST = {
    "num_failures": -1,  # as many as there are
    "req_failure_prob": 5,  # percent: a request does not arrive
    "resp_failure_prob": 5,  # an answer does not; sent again, the request comes twice
    "in_flight_failure_prob": 2,  # the sender learns of a failure while the request is on its way
}
FAILURES = json.dumps({"CoreWorkerService.grpc_client.PushTask": LOST})

SCRIPT = """
import json, sys, time
from contextlib import closing
import numpy as np
import ray
from manyhands.backends.ray import Ray, joining
from manyhands.backends.ray.options import RayOptions
from manyhands.types import Job

ENTRIES, MOST, INT = int(sys.argv[2]), int(sys.argv[3]), np.dtype(np.int64)

def lost(handle):
    count = 0
    for _ in range(100):
        try:
            ray.get(handle.pid.remote(), timeout=10)
        except ray.exceptions.ActorUnavailableError:
            count += 1
    return count

with joining.join(RayOptions(address=sys.argv[1])) as joined, closing(Ray(cluster=joined)) as made:
    stream = made.stream({"value": ((2, ENTRIES), INT)}, writers=2, fields=1)
    counts, notice = made.table(2, 1, INT), made.notice(np.zeros(2, np.int64))
    budget, channel = made.budget(counts, 0, MOST), made.channel(100)
    found = made.allocate((4,), INT)

    def write(rank):
        head, count = stream.heads.row(rank.index), counts.row(rank.index)
        vector = np.zeros(2, np.int64)
        while counts.rows()[:, 0].sum() < MOST:
            if budget.has_rest() and stream.has_room(rank.index):
                stream.arrays["value"][rank.index, head[0] % ENTRIES] = head[0] + 1
                head[0] += 1
                count[0] += 1
                time.sleep(0.0003)
            number = notice.read(vector)
            assert (vector == number).all()
            yield
        channel.put({"notice": number})

    def read(rank):
        next_entry, posted, tails = [0, 0], 0, [stream.tails.row(w) for w in range(2)]
        while counts.rows()[:, 0].sum() < MOST or (stream.heads.rows()[:, 0] > next_entry).any():
            ahead = counts.rows()[:, 0].copy()
            heads = stream.heads.rows()[:, 0].copy()
            found[0] += int((ahead > heads).any())
            for writer, head in enumerate(heads.tolist()):
                for entry in range(next_entry[writer], head):
                    value = stream.arrays["value"][writer, entry % ENTRIES]
                    found[1] += int(value != entry + 1)
                next_entry[writer] = head
                tails[writer][0] = head
            posted += 1
            notice.post(np.full(2, posted))
            time.sleep(0.002)
            yield
        found[2], found[3] = sum(next_entry), posted

    jobs = [Job(write, "writer", anywhere=True)] * 2 + [Job(read, "reader")]
    faults, running = [], made.run(jobs)
    for fault in running:
        faults += [fault.cause] if fault else []
        there = made._runners.there
    print(json.dumps({
        "faults": faults,
        "away": len(there.away),
        "lost": [lost(each.handle) for each in there.all],
        "ahead": int(found[0]), "wrong": int(found[1]), "read": int(found[2]),
        "counted": int(counts.rows()[:, 0].sum()), "posted": int(found[3]),
        "newest": [item["notice"] for item in channel.drain()],
    }))
"""


TOLD = """
import json, sys, time
from contextlib import closing
import numpy as np
import torch
from manyhands.backends.ray import Ray, joining
from manyhands.backends.ray.options import RayOptions
from manyhands.types import Job

NUMBERS, PUSHES, INT = 50_000, int(sys.argv[2]), np.dtype(np.int64)

class Sum:
    def __init__(self, total, told):
        self._total, self._told = total, told
    def add(self, vector, rank):
        self._total += vector
        self._told[int(rank)] += 1
    def told(self, rank):
        return self._total, int(self._told[int(rank)])

with joining.join(RayOptions(address=sys.argv[1])) as joined, closing(Ray(cluster=joined)) as made:
    total, told = made.share(torch.zeros(NUMBERS)), made.share(torch.zeros(3))
    handle = made.host(lambda: Sum(total, told), numbers=NUMBERS)
    wrong = made.table(3, 1, INT)

    def push(rank):
        own, ones = wrong.row(rank.index), torch.ones(NUMBERS)
        for number in range(1, PUSHES + 1):
            while not handle.tell("add", ones, rank.index):
                time.sleep(0.0005)
            if number % 10 == 0:
                vector, mine = handle.ask("told", None, rank.index).result(100)
                own[0] += mine != number or len(set(vector.tolist())) != 1 or vector[0] < number
            yield

    faults = [fault.cause for fault in made.run([Job(push, anywhere=True)] * 3) if fault]
    made.look()
    vector, _ = handle.ask("told", None, 0).result(10)
    print(json.dumps({
        "faults": faults, "away": len(made._runners.there.away), "told": told.tolist(),
        "sums": sorted(set(vector.tolist())), "wrong": wrong.rows()[:, 0].tolist(),
    }))
"""


MET = """
import json, random, sys, time
from contextlib import closing
import torch
from manyhands import optim
from manyhands.backends.ray import Ray, joining
from manyhands.backends.ray.options import RayOptions
from manyhands.strategies import gossip
from manyhands.types import Job

PUSHES, EXCHANGES = int(sys.argv[2]), 20

def make_model():
    torch.manual_seed(5)
    return optim.FlatModel({"a": torch.nn.Linear(200, 200)})

with joining.join(RayOptions(address=sys.argv[1])) as joined, closing(Ray(cluster=joined)) as made:
    model = make_model()
    shared = gossip.make(
        gossip.Config(topology="complete"), backend=made, vector=model.vector, parts=model.parts,
        optimizer=optim.Config(name="sgd", momentum=0.0), learners=3,
    )
    for first, *_ in shared._vectors:
        first.normal_()
    mean, distance = shared.newest(), shared.consensus_distance()

    def work(rank):
        model = make_model()
        parameters, ones = shared.join(model, rank.index), torch.ones(model.vector.numel())
        def keep():
            parameters.keep()
            return {}
        pushes = 0
        while pushes < PUSHES or (rank.index and shared.number(rank.index) < EXCHANGES):
            version = parameters.pull(model)
            lr = 0.01 if pushes < PUSHES else 0.0
            parameters.push(ones, part="a", version=version, lr=lr)
            pushes += 1
            time.sleep(0.002)
            yield keep

    jobs = [Job(work, anywhere=rank > 0) for rank in range(3)]
    faults = [fault.cause for fault in made.run(jobs) if fault]
    made.look()
    print(json.dumps({
        "faults": faults, "away": len(made._runners.there.away), "pushes": shared.version(),
        "moved": float((shared.newest() - mean + 0.01 * PUSHES).abs().max()),
        "nearer": shared.consensus_distance() / distance,
    }))
"""


def ran(script: str, tmp_path: Path, head_cpus: int, *given: int) -> dict[str, Any]:
    """What the script prints on two nodes whose requests are lost."""
    file = tmp_path / "script.py"
    file.write_text(script)
    with (
        ray_clusters.environment(RAY_testing_rpc_failure=FAILURES),
        ray_clusters.cluster(2, head_cpus=head_cpus) as made,
    ):
        words = [sys.executable, str(file), made.address, *map(str, given)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found["away"] == 1
    assert set(found["faults"]) <= {"silent for 3 s", "was silent"}, "no node was given up"
    return found


def test_every_tell_is_taken_once(tmp_path: Path) -> None:
    found = ran(TOLD, tmp_path, 2, PUSHES)
    assert found["told"] == [PUSHES] * 3
    assert found["sums"] == [3 * PUSHES]
    assert found["wrong"] == [0, 0, 0], "an answer comes after the tells before the question"


def test_gossip_keeps_the_mean_of_all_replicas(tmp_path: Path) -> None:
    found = ran(MET, tmp_path, 1, PUSHES)
    assert found["pushes"] >= 3 * PUSHES
    assert found["moved"] < 1e-3
    assert found["nearer"] < 0.2


def test_nothing_is_lost_or_taken_twice(tmp_path: Path) -> None:
    found = ran(SCRIPT, tmp_path, 1, ENTRIES, MOST)
    assert all(lost for lost in found["lost"]), "Ray lost requests"
    assert (found["ahead"], found["wrong"]) == (0, 0)
    assert found["read"] == found["counted"]
    assert MOST <= found["counted"] < MOST + 2
    assert all(newest > found["posted"] / 2 for newest in found["newest"])
