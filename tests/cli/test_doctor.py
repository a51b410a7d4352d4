"""What `manyhands doctor` says of the machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands.cli import doctor
from support.command_line import BLOCK, call, command

Capture = pytest.CaptureFixture[str]


def test_the_doctor(capsys: Capture) -> None:
    assert call("doctor") == 0
    told = capsys.readouterr().out
    for word in (
        "python",
        "cores",
        "memory free",
        "disk free",
        "torch",
        "compiled",
        *doctor.EXTRAS,
    ):
        assert f"\n{word} " in f"\n{told}"
    assert call("doctor", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["cores"] >= 1
    assert facts["torch"]["device"] in ("cpu", "cuda", "mps")
    assert facts["memory_free_bytes"] > 0 < facts["disk_free_bytes"]
    assert set(facts["extras"]) == set(doctor.EXTRAS)


def test_the_doctor_names_what_is_missing(tmp_path: Path) -> None:
    code = "".join(BLOCK.format(name=name) for name in ("ale_py", "matplotlib"))
    done = command("doctor", code=code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert 'atari        missing: pip install "manyhands[atari]"' in done.stdout
    assert 'plots        missing: pip install "manyhands[plots]"' in done.stdout
    assert "video        ready" in done.stdout


def test_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda: None)
    facts = doctor.examine()
    assert any("pip install torch" in sentence for sentence in facts["advice"])
    assert "missing" in doctor.as_text(facts)
