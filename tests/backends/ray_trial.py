"""The Backend seam tried on Ray: `host`, `tell`, `ask` and `run`, as little as it takes.

Run as a script it trains CartPole by the parameter server on two Ray workers and prints what came
of it as JSON. docs/roadmap.md says what was learned; it is no backend of ours yet.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle
import numpy as np
import ray
import torch
from torch import Tensor

from manyhands import optim
from manyhands.config import plans
from manyhands.roles import making, worker
from manyhands.runs import many_workers
from manyhands.types import Array, Job, Rank

STEPS = 1500  # of each worker


class Packer(cloudpickle.Pickler):  # type: ignore[misc]
    """By value; but what are views of one memory here are views of one memory there."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self._memory: dict[int, Array] = {}

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is not Tensor:
            return super().reducer_override(thing)
        whole = torch.empty(0, dtype=thing.dtype).set_(thing.untyped_storage()).numpy()
        memory = self._memory.setdefault(thing.untyped_storage().data_ptr(), whole)
        return view, (memory, thing.shape, thing.stride(), thing.storage_offset())


def view(memory: Array, shape: Any, stride: Any, offset: int) -> Tensor:
    return torch.from_numpy(memory).as_strided(shape, stride, offset)


def pack(thing: Any) -> bytes:
    file = io.BytesIO()
    Packer(file).dump(thing)
    return file.getvalue()


class Host:
    """An actor: the hosted object, made from its factory where it lives."""

    def __init__(self, content: bytes) -> None:
        torch.set_num_threads(1)
        self._hosted = pickle.loads(content)()

    def call(self, method: str, vector: Array | None, numbers: tuple[float, ...]) -> Any:
        given = () if vector is None else (torch.from_numpy(vector.copy()),)
        value = getattr(self._hosted, method)(*given, *numbers)
        if isinstance(value, tuple):
            return value[0].numpy().copy(), value[1]
        return value


class Answer:
    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def result(self, timeout_s: float) -> Any:
        try:
            vector, data = ray.get(self._reference, timeout=timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(str(error)) from error
        return torch.from_numpy(vector.copy()), data  # what the object store lends is read-only

    def ready(self) -> bool:
        return bool(ray.wait([self._reference], timeout=0)[0])


class Handle:
    """Travels as the actor's name; each client counts its own tells."""

    def __init__(self, name: str, depth: int) -> None:
        self._name, self._depth = name, depth
        self._told: list[Any] = []

    def __reduce__(self) -> Any:
        return Handle, (self._name, self._depth)

    def _call(self, method: str, vector: Tensor | None, numbers: tuple[float, ...]) -> Any:
        content = None if vector is None else vector.detach().reshape(-1).numpy().copy()
        return ray.get_actor(self._name).call.remote(method, content, numbers)

    def tell(self, method: str, vector: Tensor | None = None, *numbers: float) -> bool:
        if self._told:
            done, self._told = ray.wait(self._told, num_returns=len(self._told), timeout=0)
            ray.get(done)  # a tell that raised is heard of
        if len(self._told) >= self._depth:
            return False
        self._told.append(self._call(method, vector, numbers))
        return True

    def ask(self, method: str, vector: Tensor | None = None, *numbers: float) -> Answer:
        return Answer(self._call(method, vector, numbers))


def work_to_the_end(content: bytes, index: int) -> Any:
    """A worker's process. Its own last tells come before this: one caller's calls are in order."""
    torch.set_num_threads(1)
    steps = pickle.loads(content)(Rank(index, 0))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class RayTrial:
    """Memory is not shared: whoever captures a tensor has a copy as it was when it was sent."""

    def __init__(self) -> None:
        self._hosts: list[Any] = []

    def share(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        return np.zeros(shape, dtype)

    def host(self, factory: Callable[[], object], *, name: str, depth: int = 2, **_: Any) -> Handle:
        label = f"{name} {len(self._hosts)}"
        actor = ray.remote(Host).options(name=label, num_cpus=0.5)
        self._hosts.append(actor.remote(pack(factory)))
        return Handle(label, depth)

    def run(self, jobs: Sequence[Job]) -> Iterator[Any]:
        task = ray.remote(work_to_the_end).options(num_cpus=1, max_retries=0)
        waiting = [task.remote(pack(job.work), i) for i, job in enumerate(jobs)]
        while waiting:
            done, waiting = ray.wait(waiting, timeout=0.1)
            yield from ray.get(done)


def member(plan: plans.Plan, strategy: Any) -> Callable[[Rank], Iterator[None]]:
    def work(rank: Rank) -> Any:
        seeds = np.random.SeedSequence((plan.top.seed, rank.index))
        made = worker.Worker(
            plan,
            threads=1,
            join=lambda model: strategy.join(model, rank.index),
            seeds=seeds,
            rank=(rank.index, 2),
        )
        while made.actor.agent_steps < STEPS:
            made.turn()
            yield
        made.learner.catch_up()  # every shard has answered after its last tell
        return {"pid": os.getpid(), "updates": made.learner.updates}

    return work


STRANGER = "import sys, ray; ray.init(sys.argv[1], log_to_driver=False); ray.nodes()"


def lets_in_without_token(address: str) -> bool:
    """Ray listens on all addresses whatever it is told: what counts is whom it talks to."""
    stranger = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    stranger["RAY_AUTH_MODE"] = "disabled"
    try:
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, address],
            env=stranger,
            capture_output=True,
            check=False,
            timeout=60,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def train() -> dict[str, Any]:
    few = {"warmup_steps": 200, "batch_size": 16, "steps_per_update": 4}
    flags: dict[str, dict[str, Any]] = {"run": {"workers": 2, "strategy": "parameter_server"}}
    flags |= {"dqn": few, "parameter_server": {"shards": 2}, "network": {"hidden": (64,)}}
    plan, backend = plans.resolve("cartpole", flags), RayTrial()
    algorithm = making.seeded_algorithm(
        plan, many_workers._spec(plan, None), None, np.random.SeedSequence(1)
    )
    model = optim.FlatModel(algorithm.modules)
    before = model.vector.clone()
    strategy: Any = making.make_strategy(plan, backend, model, 2)  # type: ignore[arg-type]
    ends = list(backend.run([Job(member(plan, strategy))] * 2))
    after = strategy.newest()
    versions = [handle.ask("fetch").result(60)[1] for handle in strategy.handles]
    return {
        "workers": ends, "versions": versions,
        "moved": float((after - before).abs().max()), "finite": bool(after.isfinite().all()),
    }  # fmt: skip


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:
        found: Any = ray.init(
            address="local", num_cpus=3, include_dashboard=False, _node_ip_address="127.0.0.1",
            object_store_memory=80 * 2**20, log_to_driver=False, _temp_dir=folder,
        )  # fmt: skip
        try:
            stranger = lets_in_without_token(found.address_info["address"])
            print(json.dumps({**train(), "let_in_without_token": stranger}))
        finally:
            ray.shutdown()
    sys.exit(0)
