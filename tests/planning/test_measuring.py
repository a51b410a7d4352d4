"""From what runs did in a second to costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyhands.planning import laps, measuring
from manyhands.planning.measuring import Trial
from manyhands.planning.simulation import Way
from manyhands.planning.ways import Chosen
from manyhands.planning.windows import Facts, Window
from manyhands.roles.stopwatch import PARTS_OF_TIME
from manyhands.types import Demand, EnvSpec, machine
from manyhands.types.communication import Sharing

SPEC = EnvSpec("made up", 2, (10,), "float32", 1, 4)
FACTS = Facts(2, 1000, Demand(32, 1.0, 100, 1, 0.99), SPEC, ahead_steps=100, publish_every=8)
SPLIT = {
    "env": 0.2, "act": 0.1, "sample": 0.2, "gradient": 0.3, "pull": 0.02, "push": 0.1, "idle": 0.0,
    "other": 0.08,
}  # fmt: skip
WINDOW = Window(
    seconds=1.0, steps=200, updates=200, learned=200, staleness=0.0, split={"worker": SPLIT},
    cpu_s={"worker": 1.0}, preempted=5, others_s=0.1,
)  # fmt: skip


def trial(name: str, sharing: Sharing, alone: Window = WINDOW, many: Window = WINDOW) -> Trial:
    chosen = Chosen(Way(name, sharing), "made up", {})
    return Trial(chosen, 1, alone, 2, many, 2, FACTS)


def test_parts_are_of_a_turn_or_of_a_gradient() -> None:
    costs = measuring.costs_of([trial("free", Sharing())], laps.Spreads(), wake=0.00001)
    assert (costs.lanes, costs.updates_per_turn, costs.parameters) == (2, 2.0, 1000)
    assert costs.act_s == pytest.approx(0.001)
    assert costs.step_s == pytest.approx(0.002)
    assert costs.record_s == pytest.approx(0.0008)
    assert costs.draw_s == pytest.approx(0.001)
    assert costs.gradient_s == pytest.approx(0.0015)
    assert costs.optimizer_s == costs.sharing["free"].push_s == pytest.approx(0.0005)
    assert costs.row_bytes == 2 * (40 + 16)
    assert costs.cores == machine.cores()


def test_waits_are_not_work() -> None:
    costs = measuring.costs_of([trial("free", Sharing())], laps.Spreads(wait_s=0.0015), wake=0)
    assert costs.wait_s == 0.0015
    assert costs.step_s == pytest.approx(0.0005)


def test_a_faster_machine_is_taken_out() -> None:
    """The second run was twice as fast in all: its push costs as much as the first's."""
    fast = replace(WINDOW, split={"worker": {part: SPLIT[part] / 2 for part in PARTS_OF_TIME}})
    trials = [trial("one", Sharing()), trial("other", Sharing(), fast), trial("third", Sharing())]
    costs = measuring.costs_of(trials, laps.Spreads(), wake=0)
    assert costs.sharing["other"].push_s == pytest.approx(costs.sharing["one"].push_s)


def test_contention_is_more_time_for_the_same_work() -> None:
    busy = replace(WINDOW, steps=320, learned=320, cpu_s={"worker": 2.0})
    costs = measuring.costs_of([trial("free", Sharing(), many=busy)], laps.Spreads(), wake=0)
    assert costs.contention == pytest.approx(1.25)


def test_a_shard_is_not_waited_for_twice() -> None:
    """Of 5 ms of a pull, 3 ms are the shard's work, and 0.2 ms are two wake-ups."""
    waits = {**SPLIT, "pull": 1.0}
    served = replace(WINDOW, split={"worker": waits}, cpu_s={"worker": 1.0, "shard": 0.6})
    one = trial("served", Sharing(shards=1, asks=True), served)
    costs = measuring.costs_of([one], laps.Spreads(), wake=0.0001)
    assert costs.sharing["served"].serve_s == pytest.approx(0.003)
    assert costs.sharing["served"].pull_s == pytest.approx(0.0018)


def test_quantiles_have_the_mean_one() -> None:
    found = laps.spread([0.001 * (1 + n % 3) for n in range(300)])
    assert len(found) == laps.QUANTILES
    assert sum(found) / len(found) == pytest.approx(1)
    assert max(found) == pytest.approx(1.5, abs=0.1)
    assert laps.spread([1.0, 2.0]) == (1.0,)


def test_a_message_wakes_a_process_quickly() -> None:
    assert 1e-7 < measuring.wake_s() < 0.05
