"""Time of a gradient, and of the pull and the push around it, by the learner's stopwatch.

Learner, algorithm and strategies are the real ones. Batches are random numbers, not a replay's, and
no environment steps between two updates. The learner reads the parameter server's memory, as recipe
downpour does. With `asked` a pull waits until the shard has applied the push before it: this is the
worst case. A push of Hogwild contains the optimizer's step, so its cost depends on the optimizer:
Adam unless the row names another.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyhands import optim
from manyhands.backends.processes import Processes
from manyhands.config import plans as config
from manyhands.config import presets, registry
from manyhands.roles import making
from manyhands.roles.learner import Learner
from manyhands.roles.stopwatch import Stopwatch
from manyhands.types import Batch, EnvSpec
from sharing import Book, Row

OPTIMIZERS = ("rmsprop", "adagrad", "sgd")  # beside Adam: A3C's, Downpour SGD's, Hogwild!'s own
BY = {f"hogwild, copy, {name}": name for name in OPTIMIZERS}
GOALS = {"hogwild, copy": 0.10, **dict.fromkeys(BY, 0.10), "parameter_server": 0.25}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "serial": ("serial", {}),
    "hogwild, copy": ("hogwild", {"copy": True}),
    "parameter_server": ("parameter_server", {"fetch": "read"}),
    "parameter_server, asked": ("parameter_server", {}),
    "parameter_server, queue": ("parameter_server", {"transport": "queue"}),
}
BREAKOUT = EnvSpec("breakout", 8, (84, 84), "uint8", 4, 4, 4)
LUNARLANDER = EnvSpec("LunarLander-v3", 8, (8,), "float32", 1, 4)
POOL = 2_000  # observations drawn from
UPDATES = 10  # of one way before the next way runs


class Draws:
    """Replaces a memory: batches of random rows, gathered for every update."""

    torn_rows = 0

    def __init__(self, spec: EnvSpec, batch_size: int) -> None:
        rng = np.random.default_rng(1)
        shape = (POOL, *spec.observation_shape)
        pixels = spec.frame_dtype == "uint8"
        pool = rng.integers(0, 256, shape, np.uint8) if pixels else rng.random(shape, np.float32)
        self._pool, self._rng = torch.from_numpy(pool), rng
        self._actions, self.batch_size = spec.actions, batch_size
        self.due_now = 0

    def due(self, demand: Any, targets: Callable[[Any], Any]) -> Iterator[Batch]:  # noqa: ARG002
        for _ in range(self.due_now):
            yield targets(self._draw())

    def _draw(self) -> Batch:
        n, rng = self.batch_size, self._rng
        rows, then = (torch.from_numpy(rng.integers(0, POOL, n)) for _ in range(2))
        return Batch(
            observation=self._pool[rows],
            action=torch.from_numpy(rng.integers(0, self._actions, n)),
            reward=torch.from_numpy(rng.random(n, np.float32)),
            discount=torch.full((n,), 0.99),
            next_observation=self._pool[then],
            weight=torch.ones(n),
            rows=rows.numpy(),
        )

    def report(self, batch: Batch, priorities: Tensor) -> None: ...


class Timed:
    """A learner with one way of sharing."""

    def __init__(self, backend: Processes, plan: config.Plan, spec: EnvSpec, way: str) -> None:
        name, values = WAYS["hogwild, copy" if way in BY else way]
        algorithm = making.make_algorithm(plan, spec, None, "cpu")
        self.model, module = optim.FlatModel(algorithm.modules), registry.load("strategies", name)
        strategy = module.make(
            module.Config(**values),
            backend=backend,
            vector=self.model.vector,
            parts=self.model.parts,
            optimizer=plan.optim,
            learners=1,
        )
        self.draws, self.stopwatch = Draws(spec, plan.sections["dqn"].batch_size), Stopwatch()
        self.learner = Learner(
            algorithm,
            self.draws,
            strategy.join(self.model, 0),
            self.model,
            stopwatch=self.stopwatch,
            clip_norm=plan.optim.clip_norm,
        )

    def ms(self, updates: int) -> Row:
        """Milliseconds per update, after one that is not counted."""
        for due_now in (1, updates):
            before, self.draws.due_now = dict(self.stopwatch.seconds), due_now
            self.stopwatch.begin()
            self.learner.step(0)
        spent = {part: self.stopwatch.seconds[part] - before[part] for part in before}
        return {part: 1e3 * spent[part] / updates for part in ("gradient", "pull", "push")}


def plain_copy_ms(numbers: int, times: int) -> float:
    """Cycles through three buffers, as messages do."""
    vector = torch.randn(numbers)
    buffers = cycle([torch.zeros(numbers) for _ in range(3)])
    for _ in range(3):
        next(buffers).copy_(vector)
    begun_s = time.perf_counter()
    for _ in range(times):
        next(buffers).copy_(vector)
    return 1e3 * (time.perf_counter() - begun_s) / times


# --- One size -------------------------------------------------------------------------------------


def cost(book: Book) -> None:
    updates = 2 if book.smoke else UPDATES
    nature = {"channels": (32, 64, 64), "hidden": (512,)}
    flags: presets.Layer = {"run": {"recipe": "dqn"}, "dqn": {"batch_size": 32}, "network": nature}
    own = {way: {**flags, "optim": {"name": name}} for way, name in BY.items()}
    plans = {way: config.resolve("breakout", own.get(way, flags)) for way in (*WAYS, *BY)}
    cell = book.begin("cost", "nature, batch 32", goals=GOALS, updates=updates, threads=1)
    if not cell.complete:
        with closing(Processes()) as backend:
            ways = {way: Timed(backend, plan, BREAKOUT, way) for way, plan in plans.items()}
            for timed in ways.values():
                timed.ms(2)  # the shards have started, the buffers are there
            for number in cell.to_do():
                cell.add(_round_of_ways(ways, updates, backwards=number % 2 == 1))
    found = cell.kept["median"]["sharing / gradient"]
    met = {way: found[way] <= goal for way, goal in GOALS.items()}
    cell.conclude(sharing_of_gradient=found, goals_met=met)


def _round_of_ways(ways: dict[str, Timed], updates: int, *, backwards: bool) -> Row:
    """`beyond serial`: pull and push less serial's push, which is the optimizer's step (Adam)."""
    found: Row = {}
    for way in reversed(ways) if backwards else ways:
        found[way] = {part: round(ms, 3) for part, ms in ways[way].ms(updates).items()}
    numbers = next(iter(ways.values())).model.vector.numel()
    applied = found["serial"]["push"]
    shared = {way: ms["pull"] + ms["push"] for way, ms in found.items()}
    gradient = {way: ms["gradient"] for way, ms in found.items()}
    return {
        "ms": found,
        "numbers": numbers,
        "plain copy, ms": round(plain_copy_ms(numbers, 2 * updates), 3),
        "sharing / gradient": {way: round(shared[way] / gradient[way], 4) for way in ways},
        "beyond serial / gradient": {
            way: round((shared[way] - applied) / gradient[way], 4) for way in WAYS
        },
    }


# --- Many sizes -----------------------------------------------------------------------------------

SIZES = (10_000, 31_600, 100_000, 316_000, 1_000_000, 3_160_000, 10_000_000)
BATCHES = (32, 128, 512)
MOST_UPDATES, ABOUT_NUMBERS = 20, 20_000_000  # the larger, the fewer updates


def size(book: Book) -> None:
    """Compute and communication for one update, drawn as in Ong, Chavez and Hong 2015."""
    for wanted in SIZES[:2] if book.smoke else SIZES:
        width = round(math.sqrt(wanted + 49) - 7)
        cell = book.begin("size", f"{wanted:,} parameters", hidden=[width, width], threads=1)
        if not cell.complete:
            updates = 2 if book.smoke else max(2, min(MOST_UPDATES, ABOUT_NUMBERS // wanted))
            with closing(Processes()) as backend:
                ways = {way: _mlp(backend, width, way) for way in WAYS}
                for timed in ways.values():
                    timed.ms(2)
                for number in cell.to_do():
                    cell.add(_round_of_size(ways, updates, backwards=number % 2 == 1))
    picture = draw(book.results["size"], book.path.with_name("sharing-size.png"))
    print(f"-> {picture}")


def _mlp(backend: Processes, width: int, way: str) -> Timed:
    flags: presets.Layer = {"run": {"recipe": "dqn"}, "network": {"hidden": (width, width)}}
    return Timed(backend, config.resolve("lunarlander", flags), LUNARLANDER, way)


def _round_of_size(ways: dict[str, Timed], updates: int, *, backwards: bool) -> Row:
    computed, shared = {}, {}
    for batch_size in reversed(BATCHES) if backwards else BATCHES:
        ways["serial"].draws.batch_size = batch_size
        computed[str(batch_size)] = round(ways["serial"].ms(updates)["gradient"], 4)
    for way in reversed(ways) if backwards else ways:
        ways[way].draws.batch_size = BATCHES[0]
        ms = ways[way].ms(updates)
        shared[way] = round(ms["pull"] + ms["push"], 4)
    numbers = ways["serial"].model.vector.numel()
    return {
        "numbers": numbers,
        "compute, ms": computed,
        "communicate, ms": shared,
        "plain copy, ms": round(plain_copy_ms(numbers, 2 * updates), 4),
        "communicate / compute": {
            way: {batch: round(shared[way] / computed[batch], 4) for batch in computed}
            for way in ways
        },
    }


def draw(cells: Row, path: Path) -> Path:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    found = sorted((cell["median"] for cell in cells.values()), key=lambda row: row["numbers"])
    numbers = [row["numbers"] for row in found]
    figure, (times, ratios) = pyplot.subplots(1, 2, figsize=(15, 4.8), layout="constrained")
    for batch, colour in zip(found[0]["compute, ms"], ("#9ecae1", "#4292c6", "#08519c")):  # noqa: B905
        label, ms = f"compute, batch {batch}", [row["compute, ms"][batch] for row in found]
        times.plot(numbers, ms, "o-", color=colour, label=label)
    for way, colour in zip(WAYS, ("0.6", "C2", "C1", "C4", "C3"), strict=True):
        label = "optimizer's step alone (serial)" if way == "serial" else f"communicate, {way}"
        times.plot(
            numbers,
            [row["communicate, ms"][way] for row in found],
            "s--",
            color=colour,
            label=label,
        )
        for batch, line in zip(found[0]["compute, ms"], (":", "--", "-")):  # noqa: B905
            share = [row["communicate / compute"][way][batch] for row in found]
            if way != "serial":
                ratios.plot(numbers, share, line, color=colour, label=f"{way}, batch {batch}")
    ratios.axhline(1, color="0.8", zorder=0)
    for axes, words in ((times, "ms for one update"), (ratios, "communicate / compute")):
        axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel=words)
        axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1))
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path
