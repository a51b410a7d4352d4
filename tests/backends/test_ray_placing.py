"""Which process on which node. Nothing here needs Ray."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.backends.ray import nodes as ray_nodes
from manyhands.backends.ray.nodes import Node
from manyhands.backends.ray.placing import NotEnough, Places, deal, place
from manyhands.config import plans
from manyhands.runs.machines import needs_of
from manyhands.types import BadRequest, Demand
from manyhands.types.needs import Needs, ProcessNeed

GB = 1_000_000_000


def node(id: str, cpus: float, *, is_main: bool = False, free: float | None = None) -> Node:
    free = cpus if free is None else free
    return Node(id, id, cpus, free, 8 * GB, 8 * GB, GB, is_main)


def apart(actors: int, learners: int = 1, shards: int = 0) -> Needs:
    return Needs(
        (ProcessNeed("actor", actors, anywhere=True), ProcessNeed("learner", learners)),
        (ProcessNeed("shard", shards),),
        memory_bytes=GB,
    )


def together(workers: int) -> Needs:
    return Needs((ProcessNeed("worker", workers),))


def test_learner_stays_with_main_and_actors_go_elsewhere() -> None:
    places = place(apart(8, 1, 2), [node("a", 3, is_main=True), node("b", 8)], cpus_each=1)
    assert str(places) == "node a: 1 learner, 2 shards, 1.0 GB; node b: 8 actors"
    assert places.ranks == ("b",) * 8 + ("a",)
    assert places.resources_on(places.core) == {"CPU": 3, "memory": GB}
    assert places.resources_on(places.nodes[1]) == {"CPU": 8}


def test_actors_fill_mains_node_first() -> None:
    places = place(apart(4), [node("a", 4, is_main=True), node("b", 8)], cpus_each=1)
    assert str(places) == "node a: 1 learner, 3 actors, 1.0 GB; node b: 1 actor"


def test_a_head_without_cpus_runs_no_learner() -> None:
    nodes = [node("head", 0, is_main=True), node("b", 4), node("c", 16)]
    with pytest.raises(BadRequest, match="1 learner must be on this machine, where the") as told:
        place(apart(10), nodes, cpus_each=1)
    assert "--entrypoint-num-cpus" in told.value.remedy


def test_processes_that_share_memory_are_not_spread() -> None:
    told = "6 workers must be on this machine, since they share memory: that takes 6 free"
    with pytest.raises(NotEnough, match=told):
        place(together(6), [node("a", 4, is_main=True), node("b", 8)], cpus_each=1)


OTHERS = (
    "on several nodes use --strategy allreduce, dogwild, gossip, hogwild_plus_plus or "
    "parameter_server"
)
SERVED = {"recipe": "downpour"}


def needed_by(options: dict[str, Any], **sections: Any) -> Needs:
    plan = plans.resolve("cartpole", {"run": {"workers": 6, **options}, **sections})
    return needs_of(plan, 6 * GB, 1000, Demand(32, 4, 100, 1, 0.99))


def test_the_first_worker_of_a_parameter_server_stays() -> None:
    nodes = [node("a", 3, is_main=True), node("b", 8)]
    places = place(needed_by(SERVED), nodes, cpus_each=1)
    assert str(places) == "node a: 2 workers, 1 shard, 6.0 GB; node b: 4 workers, 4.0 GB"
    assert places.resources_on(places.nodes[1]) == {"CPU": 4, "memory": 4 * (GB + 4 * 4 * 1000)}
    small = replace(nodes[1], free_bytes=3 * GB)
    with pytest.raises(NotEnough, match=r"4\.0 GB of memory are needed on node b"):
        place(needed_by(SERVED), [nodes[0], small], cpus_each=1)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"memory": {"scope": "global"}}, "they draw from one replay (--memory.scope global)"),
        ({"memory": {"kind": "prioritized"}}, "(--memory.kind prioritized)"),
        ({"parameter_server": {"transport": "queue"}}, "need memory that all share"),
    ],
)
def test_options_that_need_one_node(sections: dict[str, Any], why: str) -> None:
    nodes = [node("a", 4, is_main=True), node("b", 8)]
    with pytest.raises(NotEnough, match=re.escape(why)):
        place(needed_by(SERVED, **sections), nodes, cpus_each=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": "hogwild"}, f"--strategy hogwild they share one vector; {OTHERS}"),
        ({"strategy": "lock"}, f"--strategy lock they share one vector; {OTHERS}"),
        ({"strategy": "proximal"}, f"they share memory; {OTHERS}"),
    ],
)
def test_the_refusal_says_what_they_share(options: dict[str, Any], why: str) -> None:
    needs = needed_by(options)
    with pytest.raises(NotEnough) as told:
        place(needs, [node("a", 4, is_main=True), node("b", 8)], cpus_each=1)
    assert told.value.what.startswith("6 workers must be on this machine, since ")
    assert why in told.value.what


@pytest.mark.parametrize("recipe", ["ad-psgd", "gala", "hogwild-plus-plus", "dogwild"])
def test_all_workers_but_the_first_may_be_elsewhere(recipe: str) -> None:
    nodes = [node("a", 3, is_main=True), node("b", 8)]
    places = place(needed_by({"recipe": recipe, "workers": 6}), nodes, cpus_each=1)
    assert [len(places.ranks_on(one)) for one in places.nodes] == [3, 3]


def test_too_few_cpus_are_refused_with_all_nodes() -> None:
    nodes = [node("a", 2, is_main=True), node("b", 4, free=1)]
    with pytest.raises(NotEnough) as told:
        place(apart(8), nodes, cpus_each=1)
    assert "9 processes need 9 CPUs" in told.value.what
    assert "node a (this machine): 2 of 2 CPUs, 8.0 GB of memory free" in told.value.what
    assert "node b: 1 of 4 CPUs" in told.value.what


def test_main_needs_memory_for_the_replay() -> None:
    needs = replace(apart(1), memory_bytes=9 * GB)
    with pytest.raises(NotEnough, match=r"9\.0 GB of memory are needed on this machine"):
        place(needs, [node("a", 4, is_main=True)], cpus_each=1)


def test_small_object_store_is_refused_by_name() -> None:
    needs = replace(apart(4), message_bytes=GB)
    with pytest.raises(BadRequest, match="object store of node a holds"):
        place(needs, [node("a", 1, is_main=True), node("b", 4)], cpus_each=1)
    alone = [node("a", 8, is_main=True)]  # nothing is sent
    assert place(needs, alone, cpus_each=1).core.id == "a"


def test_hundreds_of_processes_fit_by_fractions() -> None:
    nodes = [node("a", 1, is_main=True), node("b", 1), node("c", 1)]
    places = place(apart(299), nodes, cpus_each=0.01)
    assert len(places.ranks) == 300
    assert [len(places.ranks_on(one)) for one in places.nodes] == [100, 100, 100]


def test_a_long_table_is_cut() -> None:
    text = ray_nodes.table([node(f"n{number}", 1) for number in range(20)])
    assert text.endswith("; 12 more nodes")


def test_nodes_of_one_address_get_names() -> None:
    found = [
        {"NodeID": id, "Alive": alive, "NodeManagerAddress": address, "Resources": {"CPU": cpus}}
        for id, alive, address, cpus in (
            ("aaaaaaaa", True, "10.0.0.1", 0.0),
            ("bbbbbbbb", True, "10.0.0.2", 4.0),
            ("cccccccc", True, "10.0.0.2", 8.0),
            ("dddddddd", False, "10.0.0.3", 8.0),
        )
    ]
    made = ray_nodes.from_ray(found, {"bbbbbbbb": {"CPU": 3.0}}, "aaaaaaaa")
    assert [one.name for one in made] == ["10.0.0.1", "10.0.0.2 (cccccc)", "10.0.0.2 (bbbbbb)"]
    assert [one.free_cpus for one in made] == [0.0, 0.0, 3.0]
    assert made[0].is_main


# --- Whatever the nodes are ---------------------------------------------------------------------

cpus = st.integers(0, 12)
clusters = st.lists(st.tuples(cpus, cpus), min_size=1, max_size=6).map(
    lambda sizes: [
        node(f"n{at}", float(total), is_main=at == 0, free=float(min(total, free)))
        for at, (total, free) in enumerate(sizes)
    ]
)
needed = st.builds(apart, st.integers(0, 20), st.integers(1, 4), st.integers(0, 3)) | st.builds(
    together, st.integers(1, 12)
)
each = st.sampled_from([0.25, 0.5, 1.0, 2.0])


@given(needed, clusters, each)
def test_placed_or_refused_and_never_too_many(
    needs: Needs, nodes: list[Node], cpus_each: float
) -> None:
    count = sum(need.count for need in needs.processes)
    all_cpus = cpus_each * (count + sum(need.count for need in needs.hosted))
    try:
        places = place(needs, nodes, cpus_each=cpus_each)
    except BadRequest:
        assert nodes[0].free_cpus < all_cpus  # a run that fits on main's node is not refused
        return
    assert len(places.ranks) == count
    assert set(places.ranks) <= {one.id for one in places.nodes}
    for one in places.nodes:
        assert places.resources_on(one)["CPU"] <= one.free_cpus
    _stays_together(places)


def _stays_together(places: Places) -> None:
    roles = [need for need in places.needs.processes for _ in range(need.count)]
    staying = {id for id, need in zip(places.ranks, roles, strict=True) if not need.anywhere}
    assert staying <= {places.core.id}


@given(st.integers(0, 40), st.lists(st.floats(0, 9), max_size=5), each)
def test_dealing_fills_what_is_free(count: int, free: list[float], cpus_each: float) -> None:
    by_node = {f"n{at}": cpus for at, cpus in enumerate(free)}
    dealt = deal(count, by_node, cpus_each=cpus_each)
    room = sum(int((cpus + 1e-6) / cpus_each) for cpus in free)
    assert sum(dealt.values()) == min(count, room)
    for id, number in dealt.items():
        assert number * cpus_each <= by_node[id] + 1e-5
