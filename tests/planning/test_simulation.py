"""The simulator against what queueing theory and arithmetic say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config import registry
from manyhands.planning import forecast, formula, simulation
from manyhands.planning.costs import ApartCosts, Costs, SharingCosts, Site, from_json
from manyhands.planning.parameters import DEPTH
from manyhands.planning.simulation import Way, simulate
from manyhands.types.communication import Sharing

COSTS = Costs(
    lanes=1, act_s=0.001, step_s=0.001, wait_s=0.0, record_s=0.0, draw_s=0.001, gradient_s=0.007,
    optimizer_s=0.0, updates_per_turn=1.0, parameters=1_000, cores=1,
)  # fmt: skip
FREE, LOCK = Way("free", Sharing()), Way("lock", Sharing(locks="vector"))
SERVED = Way("served", Sharing(shards=1, sends="shards"))
IN_STEP = Way("in step", Sharing(in_step=True, sends="sum"))
PAIRS = Way("pairs", Sharing(locks="pair", sends="pair"))
MANY = Site(64)


def costs(**sharing: SharingCosts) -> Costs:
    named = {name.replace("_", " "): one for name, one in sharing.items()}
    return replace(COSTS, sharing=named)


def test_one_worker_takes_the_sum_of_its_parts() -> None:
    found = simulate(FREE, replace(COSTS, wait_s=0.01), MANY, 1)
    assert found.updates_per_s == pytest.approx(1 / 0.020, rel=0.01)
    assert found.agent_steps_per_s == pytest.approx(found.updates_per_s)
    assert found.staleness == 0


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_without_waiting_n_workers_are_n_times_as_fast(workers: int) -> None:
    found = simulate(FREE, COSTS, MANY, workers)
    assert found.updates_per_s == pytest.approx(workers * 100, rel=0.02)
    assert found.staleness == pytest.approx(workers - 1, rel=0.05)


@pytest.mark.parametrize("way", [FREE, SERVED, PAIRS])
def test_cores_are_the_limit(way: Way) -> None:
    found = simulate(way, COSTS, Site(4), 32)
    assert found.updates_per_s == pytest.approx(4 * 100, rel=0.03)
    assert found.busy == pytest.approx(1, abs=0.02)


def test_a_lock_is_amdahls_serial_part() -> None:
    """Of 10 ms a tenth is exclusive: no more than a thousand updates a second, ten times one."""
    given = costs(lock=SharingCosts(pull_s=0.0005, push_s=0.0005))
    given = replace(given, gradient_s=0.006)
    one = simulate(LOCK, given, MANY, 1).updates_per_s
    assert one == pytest.approx(100, rel=0.01)
    assert simulate(LOCK, given, MANY, 4).updates_per_s == pytest.approx(4 * one, rel=0.1)
    assert simulate(LOCK, given, MANY, 60).updates_per_s == pytest.approx(1000, rel=0.02)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_shards_saturate_at_their_service_rate(shards: int) -> None:
    way = Way("served", Sharing(shards=shards, sends="shards"))
    given = costs(served=SharingCosts(serve_s=0.004))
    found = simulate(way, given, MANY, 48)
    assert found.updates_per_s == pytest.approx(min(250 * shards, 4800), rel=0.02)
    assert found.staleness == pytest.approx(48 * (1 + DEPTH), rel=0.05)  # all have a full queue


def test_one_that_asks_waits_for_the_push_before() -> None:
    asks = Way("served", Sharing(shards=1, asks=True, sends="shards"))
    given = costs(served=SharingCosts(serve_s=0.004))
    assert simulate(asks, given, MANY, 1).updates_per_s == pytest.approx(1 / 0.014, rel=0.01)
    assert simulate(SERVED, given, MANY, 1).updates_per_s == pytest.approx(100, rel=0.01)


def test_in_step_makes_one_update_of_all_gradients() -> None:
    found = simulate(IN_STEP, COSTS, MANY, 8)
    assert found.updates_per_s == pytest.approx(100, rel=0.02)
    assert found.agent_steps_per_s == pytest.approx(800, rel=0.02)
    assert found.staleness == 0


def test_in_step_waits_for_the_slowest() -> None:
    """Of 16 learners one is nearly always slow."""
    given = replace(COSTS, gradient_spread=(0.5,) * 3 + (2.5,))
    alone, sixteen = (simulate(IN_STEP, given, MANY, n).updates_per_s for n in (1, 16))
    assert alone == pytest.approx(100, rel=0.1)
    assert sixteen == pytest.approx(1 / 0.022, rel=0.1)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_islands_are_as_stale_as_they_are_large(size: int) -> None:
    way = Way("islands", Sharing(island=size))
    found = simulate(way, COSTS, MANY, 8)
    assert found.staleness == pytest.approx(size - 1, rel=0.05)
    assert found.updates_per_s == pytest.approx(800, rel=0.02)
    assert formula.outcome(way, COSTS, MANY, 8).staleness == size - 1


def test_pairs_are_as_stale_as_others_meet_them() -> None:
    found = simulate(PAIRS, costs(pairs=SharingCosts(push_s=0.0005)), MANY, 16)
    assert 0.5 < found.staleness < 1.5
    assert found.updates_per_s > 0.9 * 16 / 0.0105


@pytest.mark.parametrize(("workers", "rate"), [(1, 80.0), (2, 160.0), (6, 480.0), (12, 500.0)])
def test_actors_until_the_learner_is_full(workers: int, rate: float) -> None:
    """An actor's turn takes 12.5 ms, a gradient of the learner 8 ms, each for four steps."""
    apart = Way("actors", Sharing(), learners=1)
    given = replace(
        COSTS, act_s=0.0, step_s=0.0125, updates_per_turn=0.25, apart=ApartCosts(ahead_turns=50)
    )
    found = simulate(apart, given, MANY, workers)
    assert found.agent_steps_per_s == pytest.approx(rate, rel=0.03)
    assert found.staleness == 0


def test_workers_on_slow_links_wait_for_them() -> None:
    """A vector of 1.25 MB takes 10 ms at 1 Gb/s: the server's link carries a hundred a second."""
    given = replace(COSTS, parameters=312_500)
    site = Site(cores=16, nodes=2, gbps=1.0)
    found = simulate(SERVED, given, site, 32)
    near = simulate(SERVED, given, Site(cores=16), 16)  # those on its own node do not use it
    assert found.updates_per_s == pytest.approx(near.updates_per_s + 100, rel=0.05)


def test_it_repeats() -> None:
    given = replace(COSTS, turn_spread=(0.5, 1.5), gradient_spread=(0.5, 1.5))
    for way in (FREE, LOCK, SERVED, IN_STEP, PAIRS):
        assert simulate(way, given, Site(2), 5) == simulate(way, given, Site(2), 5)


@settings(max_examples=20, deadline=None)
@given(
    st.floats(0.0002, 0.01), st.floats(0, 0.01), st.floats(0.25, 4.0), st.integers(1, 8),
    st.integers(1, 24),
)  # fmt: skip
def test_more_workers_are_never_slower_on_enough_cores(
    gradient_s: float, wait_s: float, updates: float, cores: int, workers: int
) -> None:
    given = replace(COSTS, gradient_s=gradient_s, wait_s=wait_s, updates_per_turn=updates)
    fewer, more = (
        simulate(FREE, given, Site(cores), n, gradients=400).agent_steps_per_s
        for n in (workers, workers + 1)
    )
    assert more >= 0.9 * fewer  # turns of several updates end at other times


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from([FREE, LOCK, SERVED, IN_STEP, PAIRS]), st.integers(2, 40), st.integers(1, 16)
)
def test_nothing_is_faster_than_its_parts_allow(way: Way, workers: int, cores: int) -> None:
    given = costs(
        lock=SharingCosts(0.0001, 0.0004), served=SharingCosts(0.0001, 0.0002, 0.001),
        in_step=SharingCosts(0, 0.001), pairs=SharingCosts(0, 0.0005),
    )  # fmt: skip
    site = Site(cores)
    found = simulate(way, given, site, workers, gradients=400).agent_steps_per_s
    work = formula.total_core_s(way, given, site, workers)
    assert found <= 1.05 * min(workers / 0.010, cores / work)


# --- The closed formula ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", [FREE, LOCK, SERVED, IN_STEP, PAIRS])
@pytest.mark.parametrize("site", [Site(4), Site(1)])
def test_the_formula_agrees_where_it_takes_over(way: Way, site: Site) -> None:
    given = costs(
        lock=SharingCosts(0.0001, 0.0004), served=SharingCosts(0.0001, 0.0002, 0.001),
        in_step=SharingCosts(0, 0.001), pairs=SharingCosts(0, 0.0005),
    )  # fmt: skip
    simulated = simulate(way, given, site, 64).agent_steps_per_s
    found = formula.outcome(way, given, site, 64).agent_steps_per_s
    assert found == pytest.approx(simulated, rel=0.1)


def test_ten_thousand_workers_are_quick_and_join_the_simulation() -> None:
    curve = forecast.curve(FREE, COSTS, Site(4), (1, 4, 256, 10_000))
    assert list(curve.outcomes) == [1, 4, 256, 10_000]
    assert curve.best() == 4
    near, far = curve.outcomes[256], curve.outcomes[10_000]
    assert near.simulated
    assert not far.simulated
    assert far.agent_steps_per_s == pytest.approx(near.agent_steps_per_s, rel=0.02)
    assert far.staleness > 9_000


@pytest.mark.parametrize(
    ("way", "site", "limit"),
    [(FREE, Site(2), "cores"), (LOCK, Site(400), "lock"), (SERVED, Site(400), "shards"),
     (FREE, Site(400), "environments")],
)  # fmt: skip
def test_the_limit_is_named(way: Way, site: Site, limit: str) -> None:
    given = costs(lock=SharingCosts(0.001, 0.001), served=SharingCosts(serve_s=0.002))
    given = replace(given, wait_s=0.02)
    assert forecast.curve(way, given, site, (200,)).outcomes[200].waiting == limit


# --- What strategies say of themselves ------------------------------------------------------------


@pytest.mark.parametrize("name", registry.names("strategies"))
def test_every_strategy_can_be_simulated(name: str) -> None:
    sharing = registry.load("strategies", name).Config().sharing
    found = simulate(Way(name, sharing), COSTS, Site(4), 4, gradients=200)
    assert 100 < found.agent_steps_per_s <= 401


def test_costs_survive_json() -> None:
    given = replace(COSTS, sharing={"lock": SharingCosts(1, 2)}, turn_spread=(0.5, 1.5))
    assert from_json(given.as_json()) == given


def test_a_strategy_that_was_not_measured_costs_a_step() -> None:
    way = Way("new", Sharing())
    assert way.costs(replace(COSTS, optimizer_s=0.5)).push_s == 0.5
    assert simulation.GRADIENTS > 100
