"""Numbers as they are typed."""

from __future__ import annotations

import pytest

from manyhands.config.sections import Top
from manyhands.config.values import checked


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e5", 100_000),
        ("12_000", 12_000),
        ("1.5E3", 1500),
        ("1.23456789012345678e17", 123_456_789_012_345_678),  # no float holds it
    ],
)
def test_a_whole_number_is_exact(text: str, number: int) -> None:
    assert checked("--seed", text, Top, "seed") == number
