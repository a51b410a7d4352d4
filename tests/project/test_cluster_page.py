"""The page "From laptop to cluster": its commands are right, and Ray accepts its files."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from manyhands.cli.arguments import TrainFlags, read
from manyhands.config import sections

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "cluster.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
COMMANDS = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
FILES = [text for kind, text in BLOCKS if kind == "yaml"]


def trainings() -> list[list[str]]:
    """The words after `manyhands train` of every command."""
    found = (re.search(r"manyhands train ([^\"]*)", line) for line in COMMANDS)
    return [shlex.split(match[1]) for match in found if match]


def test_every_training_has_options_that_exist() -> None:
    assert len(trainings()) == 7
    known = {field.name for field in fields(sections.types_of("dqn", "serial", "ray")["ray"])}
    for words in trainings():
        typed = read(words, TrainFlags, sections=True)
        assert typed.own["backend"] == "ray"
        assert set(typed.sections.get("ray", {})) <= known


def test_ray_accepts_the_cluster_file() -> None:
    pytest.importorskip("ray")
    yaml = pytest.importorskip("yaml")
    from ray.autoscaler._private import util

    cluster: dict[str, Any] = yaml.safe_load(FILES[0])
    util.validate_config(util.prepare_config(cluster))
    assert yaml.safe_load(FILES[1])["spec"]["authOptions"] == {"mode": "token"}


def test_the_commands_of_ray_have_these_options() -> None:
    scripts = pytest.importorskip("ray.scripts.scripts")
    words = [word for line in COMMANDS if line.startswith("ray start") for word in line.split()]
    known = {option for each in scripts.start.params for option in each.opts}
    assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
