"""The section of a backend: in use with that backend alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from manyhands.config import plans
from manyhands.types import BadRequest
from support.command_line import call


def test_the_section_of_the_backend_in_use() -> None:
    flags = {"run": {"backend": "ray", "workers": 2, "recipe": "hogwild"}}
    plan = plans.resolve("cartpole", {**flags, "ray": {"address": "auto", "wait_minutes": "2"}})
    assert plan.as_layer()["ray"]["wait_minutes"] == 2.0
    assert plan.sources["ray.address"] == "flag"
    assert plan.top.device == "cpu"
    assert plans.resolve("cartpole", flags).as_layer()["ray"]["address"] == ""


def test_a_backend_that_is_not_in_use_has_no_section() -> None:
    with pytest.raises(BadRequest, match="belongs to ray, which this run does not use"):
        plans.resolve("cartpole", {"run": {}, "ray": {"address": "auto"}})


def test_help_and_values_show_the_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("train", "cartpole", "--backend", "ray", "--help") == 0
    assert "--ray.address" in capsys.readouterr().out
    words = ("--backend", "ray", "--ray.cpus-per-worker", "0.5", "--print-config")
    assert call("train", "cartpole", *words) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if "cpus_per_worker" in one]
    assert line.split() == ["ray.cpus_per_worker", "0.5", "flag"]


def test_a_backend_of_ones_own_may_have_a_section(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from manyhands.types import option\n"
        "@dataclass(frozen=True)\n"
        "class Config:\n"
        "    speed: int = option(3, 'how fast')\n"
        "def make(seed, **options): ...\n"
    )
    flags = {"run": {"backend": str(tmp_path / "mine.py")}, "mine": {"speed": "7"}}
    plan = plans.resolve("cartpole", flags)
    assert plan.as_layer()["mine"] == {"speed": 7}
