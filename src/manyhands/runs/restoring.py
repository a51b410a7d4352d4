"""Restores a checkpoint: for the same processes exactly, for others as far as that can be.

Weights, optimizer statistics, target network, counters, schedules, priorities and the newest rows
of the replay always go along. Running episodes and random states belong to a process: they go along
if the run has the same processes as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from manyhands.config.plans import Plan
from manyhands.memory.queue import Queues
from manyhands.memory.storage.shared_lanes import SharedLanes
from manyhands.roles import counters, pacing
from manyhands.runs.time_split import split_of
from manyhands.runs.workers import Workers
from manyhands.types import Array, Demand, State, restored

SHOWN = {"envs_per_worker": "environments per worker", "island_size": "workers per island"}


class Arrangement(NamedTuple):
    """What decides which processes a run has, and what each of them holds."""

    strategy: str
    workers: int
    actors: int
    learners: int
    envs_per_worker: int
    island_size: int

    def changes(self, before: Arrangement) -> str:
        """In words: ``workers 1 -> 2``. Empty if nothing changed."""
        pairs = zip(self._fields, before, self, strict=True)
        return ", ".join(f"{SHOWN.get(k, k)} {was} -> {now}" for k, was, now in pairs if was != now)

    def has_processes_of(self, before: Arrangement) -> bool:
        """Whether each process can continue with the state that it had."""
        if self.single and before.single:
            return self.envs_per_worker == before.envs_per_worker
        return self._replace(island_size=before.island_size) == before

    @property
    def single(self) -> bool:
        return self.workers == 1 and not self.actors


def arrangement_of(plan: Plan) -> Arrangement:
    top = plan.top
    learners = top.learners if top.actors else 0
    return Arrangement(
        top.strategy, top.workers, top.actors, learners, top.envs_per_worker, top.island_size
    )


def saved_arrangement(state: State) -> Arrangement:
    saved = {"island_size": 1, **state["arrangement"]}  # version 0.2 had no islands
    numbers = (restored.count(saved, name) for name in Arrangement._fields[1:])
    return Arrangement(str(saved["strategy"]), *numbers)


def restore(
    workers: Workers, weights: Mapping[str, Array], state: State, replay: State | None
) -> str:
    """Returns what had to change, in one line; empty if nothing had to."""
    now, before = arrangement_of(workers.plan), saved_arrangement(state)
    same = now.has_processes_of(before)
    workers.model.load(weights)
    notes = [now.changes(before)] if now != before else []
    moved = _restore_experience(workers, replay)
    notes, dealt = notes + moved, bool(moved)
    _restore_learning(workers, state)
    _restore_counters(workers, state, same=same)
    if workers.published is not None:
        learned = int(workers.counters.rows()[:, counters.UPDATES].sum())
        workers.published.publish(workers.model.vector, learned)
    workers.since = workers.agent_steps
    if same:
        workers.saved = _own_states(workers, state, replay, dealt=dealt)
    elif workers.since:
        notes.append("running episodes begin again")
    workers.prepare()
    return "; ".join(notes)


def _restore_experience(workers: Workers, replay: State | None) -> list[str]:
    """The rows of a replay, or the rollouts that waited."""
    shared, saved = workers.shared_lanes, (replay or {}).get("shared")
    if shared is None or replay is None:
        return []
    if isinstance(shared, Queues):
        workers.kept_queues = saved is not None and "heads" in saved and shared.restore(saved)
        return [] if workers.kept_queues else ["rollouts that waited are dropped"]
    if saved is None or saved.get("arrays", {}).keys() != shared.stream.arrays.keys():
        return ["the memory starts empty, because its rows hold other columns"]
    demand = workers.algorithm.demand
    assert isinstance(demand, Demand)
    kept = shared.restore(saved, demand.n_step)
    there = int(np.minimum(saved["written"], saved["rows"]).sum())
    return [] if _is_as_before(shared, saved) else [f"{kept:,} of {there:,} replay rows are kept"]


def _is_as_before(shared: SharedLanes, saved: State) -> bool:
    return bool(np.array_equal(shared.written(), saved["written"]))


def _restore_learning(workers: Workers, state: State) -> None:
    """Strategy, target network and network buffers."""
    if workers.buffers is not None:
        workers.buffers.put(workers.model.buffers.arrays())
    if state["algorithm"]:
        workers.algorithm.restore(state["algorithm"])  # checks that the state fits
        if workers.kept_state is not None:
            workers.kept_state.put(state["algorithm"])
    workers.strategy.restore(workers.model.vector.clone(), state["strategy"])
    workers.strategy.ledger.restore(state["ledger"])
    if workers.acted is not None and state.get("acted"):  # not before 0.3
        workers.acted.restore(state["acted"])
    workers.scores.restore(state["scores"])
    workers.processes.restarts = restored.count(state, "restarts")
    workers.processes.nodes_lost = restored.count({"nodes_lost": 0, **state}, "nodes_lost")
    workers.scale_lr(restored.number(state, "lr_scale", least=0))


def _restore_counters(workers: Workers, state: State, *, same: bool) -> None:
    saved = np.asarray(state["counters"])
    if saved.ndim == 2 and saved.shape[1] == counters.IMAGINED:  # saved by version 0.2 or older
        saved = np.pad(saved, ((0, 0), (0, 1)))
    like = np.zeros((len(saved), len(counters.FIELDS)))
    saved = restored.between({"counters": saved}, "counters", like, 0, restored.MOST)
    workers.split_before = {
        str(role): restored.numbers(parts, parts, least=0)
        for role, parts in state["split_before"].items()
    }
    elapsed_s = restored.number(state, "elapsed_s", least=0)
    if same:
        if len(saved) != workers.ranks:
            raise ValueError(f"counters of {len(saved)} processes, not of {workers.ranks}")
        workers.before_s, rows = elapsed_s, saved
    else:
        actors = saved_arrangement(state).actors
        workers.split_before = split_of(saved, actors, elapsed_s, workers.split_before)
        rows = _dealt_counters(workers, saved)
    for rank, row in enumerate(rows):
        workers.counters.row(rank)[:] = row


def _dealt_counters(workers: Workers, saved: Array) -> Array:
    """Totals stay. Steps are dealt evenly to the processes that act; nothing is due for them."""
    rows = np.zeros((workers.ranks, len(counters.FIELDS)))
    steps = int(saved[:, counters.STEPS].sum())
    acting = workers.acting
    rows[:acting, counters.STEPS] = [steps // acting + (i < steps % acting) for i in range(acting)]
    first = acting if workers.apart else 0
    for field in (counters.UPDATES, counters.NONFINITE, counters.TORN, counters.IMAGINED):
        rows[first, field] = saved[:, field].sum()
    demand = workers.algorithm.demand
    if workers.apart and isinstance(demand, Demand):
        for pairing in pacing.pairings(workers.plan):
            recorded = int(rows[list(pairing.actors), counters.STEPS].sum())
            due = max(0, pairing.updates_due(demand, recorded))
            rows[list(pairing.learners), counters.DRAWN] = due
    return rows


def _own_states(
    workers: Workers, state: State, replay: State | None, *, dealt: bool
) -> dict[int, State]:
    """Each process's own state. Its rollout, if it has one, is in the replay's file.

    `dealt`: its lanes hold other rows now, so its next rows begin pieces of their own.
    """
    rollouts = (replay or {}).get("rollouts", {})
    own: dict[int, State] = {}
    for name, one in state["processes"].items():
        kept = {**one, "memory": _memory(one, rollouts.get(name))}
        if dealt and "actor" in one:
            first = np.ones_like(one["actor"]["first"])
            kept["actor"] = {**one["actor"], "first": first}
        own[_rank(name, workers.ranks)] = kept
    return own


def _rank(name: str, ranks: int) -> int:
    return restored.count({"rank": int(name)}, "rank", most=ranks - 1)


def _memory(one: State, rollout: Any) -> State:
    return {**one.get("memory", {}), "lanes": rollout}
