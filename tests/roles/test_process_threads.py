"""How many threads a process computes with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

from manyhands.config import plans
from manyhands.maths import threads
from manyhands.roles.process_setup import set_threads_for


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    torchs, ours = torch.get_num_threads(), threads.count()
    yield
    torch.set_num_threads(torchs)
    threads.use(ours)


def test_a_users_network_computes_with_one_thread_unless_asked() -> None:
    """Two that spin are many times slower beside another busy process."""
    plan = plans.resolve("cartpole", {})
    set_threads_for(plan, 2, nn.Linear)
    assert (torch.get_num_threads(), threads.count()) == (1, 1)
    named = replace(plan, network=replace(plan.network, torso="/my.py:Net"))
    set_threads_for(named, 2)
    assert (torch.get_num_threads(), threads.count()) == (1, 1)
    asked = replace(plan, top=replace(plan.top, threads=2))
    set_threads_for(asked, 2, nn.Linear)
    assert (torch.get_num_threads(), threads.count()) == (2, 1)


def test_networks_of_the_house_share_a_pass_among_all_threads() -> None:
    set_threads_for(plans.resolve("cartpole", {}), 2)
    assert (torch.get_num_threads(), threads.count()) == (1, 2)
