"""Measures what the parts of a run cost here, with real runs of a second each.

Every strategy runs alone and with many workers, in processes, with the real memory. Differences in
the machine's speed between two runs are taken out: a gradient is the same work in all.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np

from manyhands.planning import laps, windows
from manyhands.planning.costs import ApartCosts, Costs, SharingCosts
from manyhands.planning.ways import Chosen
from manyhands.planning.windows import Window
from manyhands.types import Demand, EnvSpec, QueueDemand, RolloutDemand, machine

SECONDS = 1.0  # of each run
MANY = 8  # times the cores: so many workers use them all, even if environments wait
ROUND_TRIPS = 300
SLICES_S = (0.001, 0.02)


@dataclass(frozen=True)
class Trial:
    """One way, alone and with many."""

    chosen: Chosen
    workers: int
    alone: Window
    many_workers: int
    many: Window | None
    lanes: int
    facts: windows.Facts

    def turns(self, window: Window) -> float:
        return max(1, window.steps) / self.lanes

    def seconds(self, role: str, *parts: str) -> float:
        return sum(self.alone.split[role][part] for part in parts)


def measure(chosen: list[Chosen], tell: Callable[[str], None] = lambda _: None) -> Costs:
    tell("measuring a worker in this process")
    spreads, trials = laps.spreads(chosen[0].plan(1)), []
    for number, one in enumerate(chosen):
        tell(f"measuring {one.way.name} ({number + 1} of {len(chosen)})")
        trials.append(_try(one, waits=spreads.wait_s > 0))
    others = max(w.others for t in trials for w in (t.alone, t.many) if w is not None)
    if others > windows.CALM:
        tell(f"other programs used up to {others:.1f} cores: measure again when they have ended")
    return costs_of(trials, spreads, wake_s())


def _try(one: Chosen, *, waits: bool) -> Trial:
    sharing, cores = one.way.sharing, machine.cores()
    workers = 2 if sharing.locks == "pair" and not one.way.apart else 1
    facts, alone = _window(one, workers)
    many_workers = MANY * cores if waits or sharing.in_step else cores
    many = None if one.way.apart or many_workers < 2 else _window(one, many_workers)[1]
    return Trial(one, workers, alone, many_workers, many, facts.lanes, facts)


def _window(one: Chosen, workers: int) -> tuple[windows.Facts, Window]:
    with windows.started(one.plan(workers)) as run:
        run.await_updates()
        return run.facts(), run.calm_window(SECONDS)


def wake_s() -> float:
    """From a message to the moment at which a sleeping process runs: half a round trip."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as cat:
        assert cat.stdin is not None and cat.stdout is not None  # noqa: PT018
        trips = []
        for _ in range(ROUND_TRIPS):
            begun_s = time.perf_counter()
            cat.stdin.write(b"x")
            cat.stdout.read(1)
            trips.append(time.perf_counter() - begun_s)
        cat.stdin.close()
    return statistics.median(trips) / 2


# --- From windows to costs ----------------------------------------------------------------------


def costs_of(trials: list[Trial], spreads: laps.Spreads, wake: float) -> Costs:
    plain = [t for t in trials if not t.chosen.way.apart and t.workers == 1] or trials
    facts, (acting, learning) = trials[0].facts, _roles(trials[0])

    def a_turn(*parts: str) -> float:
        return _median(t.seconds(acting, *parts) / t.turns(t.alone) for t in plain)

    def a_gradient(part: str) -> float:
        return _median(t.seconds(learning, part) / max(1, t.alone.learned) for t in plain)

    gradient_s = a_gradient("gradient")
    wait_s = spreads.wait_s
    sharing = {t.chosen.way.name: _sharing(t, gradient_s, wake) for t in trials}
    contention = _contention(trials)
    for trial in trials:
        if trial.chosen.way.sharing.in_step:
            name = trial.chosen.way.name
            sharing[name] = _with_peers(sharing[name], trial, contention)
    return Costs(
        lanes=facts.lanes,
        act_s=a_turn("act"),
        step_s=max(0.0, a_turn("env") - wait_s),
        wait_s=wait_s,
        record_s=a_turn("other") + (a_turn("idle") if acting == "worker" else 0.0),
        draw_s=a_gradient("sample"),
        gradient_s=gradient_s,
        optimizer_s=min(one.push_s for one in sharing.values()),
        updates_per_turn=_updates_per_turn(plain[0]),
        parameters=facts.parameters,
        rollout_turns=_rollout_turns(facts),
        row_bytes=row_bytes(facts.spec),
        cores=machine.cores(),
        contention=contention,
        slice_s=_slice_s(trials),
        wake_s=wake,
        turn_spread=spreads.turn,
        gradient_spread=spreads.gradient,
        sharing=sharing,
        apart=_apart(trials),
    )


def _roles(trial: Trial) -> tuple[str, str]:
    """The one that acts, and the one that learns."""
    return ("actor", "learner") if trial.chosen.way.apart else ("worker", "worker")


def _median(values: Iterable[float]) -> float:
    return float(statistics.median(values))


def _sharing(trial: Trial, gradient_s: float, wake: float) -> SharingCosts:
    """As if this run had been as fast as the others."""
    role = "learner" if trial.chosen.way.apart else "worker"
    gradients = max(1, trial.alone.learned)
    own_s = trial.seconds(role, "gradient") / gradients
    faster = gradient_s / own_s if own_s else 1.0
    pull_s, push_s = (faster * trial.seconds(role, p) / gradients for p in ("pull", "push"))
    serve_s = faster * trial.alone.cpu_s.get("shard", 0.0) / gradients
    if trial.chosen.way.sharing.asks:  # the answer comes after the push was applied
        pull_s = max(0.1 * pull_s, pull_s - serve_s - 2 * wake)
    return SharingCosts(pull_s=pull_s, push_s=push_s, serve_s=serve_s)


def _contention(trials: list[Trial]) -> float:
    """How much longer the same work takes with all cores busy."""
    found = [
        (trial.many.used_s / trial.turns(trial.many))
        / (trial.alone.used_s / trial.turns(trial.alone))
        for trial in trials
        if trial.many is not None and trial.workers == 1 and not trial.chosen.way.sharing.in_step
    ]
    return max(1.0, _median(found)) if found else 1.0


def _with_peers(costs: SharingCosts, trial: Trial, contention: float) -> SharingCosts:
    """Each other member wakes this one once or twice in every push."""
    if trial.many is None:
        return costs
    alone, many = (w.used_s / max(1, w.learned) for w in (trial.alone, trial.many))
    more_s = (many / contention - alone) / (trial.many_workers - 1)
    return SharingCosts(costs.pull_s, costs.push_s, costs.serve_s, max(0.0, more_s))


def _updates_per_turn(trial: Trial) -> float:
    """As the algorithm demands it. From a replay it may train several parts with each batch."""
    demand = trial.facts.demand
    if isinstance(demand, RolloutDemand):
        return demand.epochs * demand.minibatches / demand.steps
    if isinstance(demand, QueueDemand):
        return 1 / (demand.steps * demand.batch_rollouts)
    exact = trial.lanes / demand.steps_per_update
    seen = trial.alone.learned / trial.turns(trial.alone)
    return exact * max(1, round(seen / exact))


def _rollout_turns(facts: windows.Facts) -> int:
    return 1 if isinstance(facts.demand, Demand) else facts.demand.steps


def _slice_s(trials: list[Trial]) -> float:
    found = [t.many.used_s / max(1, t.many.preempted) for t in trials if t.many is not None]
    least, most = SLICES_S
    return min(most, max(least, _median(found))) if found else 0.004


def row_bytes(spec: EnvSpec) -> int:
    """Of what a turn records: the newest frame, and some numbers, in every environment."""
    frame = prod(spec.frame_shape) * np.dtype(spec.frame_dtype).itemsize
    return spec.lanes * (frame + 16)


def _apart(trials: list[Trial]) -> ApartCosts:
    trial = next((t for t in trials if t.chosen.way.apart), None)
    if trial is None:
        return ApartCosts()
    demand, facts = trial.facts.demand, trial.facts
    pull_s = trial.seconds("actor", "pull") / trial.turns(trial.alone)
    if isinstance(demand, QueueDemand):
        each = float(demand.slots * demand.steps)
        return ApartCosts(pull_s, ahead_turns_each=each, publish_every=facts.publish_every)
    return ApartCosts(
        pull_s=pull_s,
        ahead_turns=facts.ahead_steps / facts.lanes,
        publish_every=facts.publish_every,
    )
