"""Contract tests on Ray: one local Ray for all, and only tests that cover each word once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from manyhands.config import registry

BACKENDS = [
    pytest.param(name, marks=pytest.mark.ray) if name == "ray" else name
    for name in registry.names("backends")
]
CHOSEN = {  # with the backend ray; the other tests check what it shares with `processes`
    "test_a_hosted_object_is_told_and_asked",
    "test_several_clients_use_one_handle",
    "test_no_increment_is_lost_under_a_lock",
    "test_locks_of_each_node_exclude_its_jobs",
    "test_a_group_averages_without_workers_that_have_ended",
    "test_every_worker_knows_its_rank",
    "test_workers_park_continue_and_stop",
    "test_closing_ends_the_workers_and_another_run_may_follow",
    "test_what_cannot_go_well_is_not_swallowed",
    "test_all_see_what_each_row_s_writer_wrote",
    "test_a_budget_is_used_up_and_hardly_exceeded",
    "test_a_notice_is_read_whole",
    "test_a_live_vector_is_read_as_it_is",
    "test_a_count_is_never_ahead_of_its_rows",
    "test_room_comes_back_through_the_tails",
    "test_parked_workers_give_their_states",
    "test_no_worker_is_parked_inside_a_group",
}


def is_left_out(item: pytest.Item) -> bool:
    """A contract test with the backend ray that is not chosen."""
    callspec = getattr(item, "callspec", None)
    on_ray = callspec is not None and callspec.params.get("backend") == "ray"
    return on_ray and getattr(item, "originalname", "") not in CHOSEN


@contextmanager
def made(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The backend that a fixture's parameter names."""
    given = {}
    if request.param == "ray":
        given["cluster"] = request.getfixturevalue("local_ray")
    with closing(registry.load("backends", request.param).make(3, **given)) as backend:
        yield backend
