"""Folders that cannot be written to, names that are too long, a locale without their letters."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import manyhands as mh
from support.command_line import ALONE, SMALL, assert_told, call, command, contents

Capture = pytest.CaptureFixture[str]
COMMANDS = {
    "resume": ["--steps=400", "--quiet"],
    "evaluate": ["--episodes=1"],
    "record": [],
    "plot": [],
    "list": [],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trained") / "run"
    return mh.train("toy/identity", out=path, **SMALL).path


@pytest.fixture
def read_only(trained: Path, tmp_path: Path) -> Iterator[Path]:
    """A disk that is mounted so: permissions would not keep root from writing."""
    place = tmp_path / "disk"
    shutil.copytree(trained, place / "run")
    mounts = [["--bind", str(place), str(place)], ["-o", "remount,bind,ro", str(place)]]
    done = [subprocess.run(["mount", *m], capture_output=True, check=False) for m in mounts]
    if any(one.returncode for one in done):
        subprocess.run(["umount", str(place)], capture_output=True, check=False)
        pytest.skip("needs root and leave to mount a disk read-only")
    yield place / "run"
    subprocess.run(["umount", str(place)], check=True)


def test_a_disk_that_is_read_only(read_only: Path, capsys: Capture) -> None:
    before = contents(read_only)
    for words in (["resume", read_only, "--steps=400", "--quiet"], ["plot", read_only]):
        assert call(*words) in (1, 2)
        assert_told(capsys.readouterr().err, "Read-only file system")
    new = read_only.parent / "new"
    assert call("train", "toy/identity", "--steps=400", "--quiet", "--out", new) == 2
    assert_told(capsys.readouterr().err, "Read-only file system", "--out")
    assert call("evaluate", read_only, "--episodes=1") == 0
    assert contents(read_only) == before


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("run", ["x" * 300, "x" * 300 + "/run"], ids=["name", "on the way"])
def test_a_name_no_folder_can_have(name: str, run: str, capsys: Capture) -> None:
    assert call(name, run, *COMMANDS[name]) == 2
    assert_told(capsys.readouterr().err)


@pytest.mark.parametrize("coding", ["utf-8", "latin-1"])
def test_letters_that_the_locale_does_not_have(coding: str, trained: Path, tmp_path: Path) -> None:
    """The name is bytes; those of Latin 1 are letters in no UTF-8 locale either."""
    run = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + "résumé".encode(coding)))
    shutil.copytree(trained, run)
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for words in (["resume", run, "--steps=320"], ["plot", run]):
        ran = command(*words, env={**ALONE, **plain}, errors="replace")
        assert ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr
    assert (run / "curves.png").is_file()
