"""Each id is served by the file of its kind."""

from __future__ import annotations

import subprocess
import sys

import pytest

from manyhands import envs


def test_the_files_of_the_folder_are_the_kinds() -> None:
    assert envs.KINDS == ["atari", "gym", "maze", "snake", "toy"]


@pytest.mark.parametrize(
    ("id", "kind"),
    [
        ("breakout", "atari"),
        ("ALE/Pong-v5", "atari"),
        ("PongNoFrameskip-v4", "atari"),
        ("manyhands/Snake-v0", "snake"),
        ("manyhands/Snake-v1", "gym"),
        ("toy/identity", "toy"),
        ("CartPole-v1", "gym"),
        ("module:Env-v0", "gym"),
        ("grids.py:Grid", "gym"),
        ("", "gym"),
    ],
)
def test_one_kind_serves_an_id(id: str, kind: str) -> None:
    assert envs.kind_of(id) == kind
    serving = [name for name in envs.KINDS if envs.load(name).serves(id)]
    assert sorted({kind, envs.ANY}) == serving


def test_asking_for_the_kind_does_not_import_the_emulator() -> None:
    code = (
        "from manyhands import envs; import sys;"
        "print(envs.kind_of('pong'), 'ale_py' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["atari", "False"]
