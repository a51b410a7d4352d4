"""What surrounds the code: one source of the version, and automation that calls the Makefile."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import manyhands
from manyhands.cli import doctor
from manyhands.runs import provenance

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_has_one_source() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    attribute = PROJECT["tool"]["setuptools"]["dynamic"]["version"]["attr"]
    assert attribute == "manyhands.__version__"
    assert provenance.versions()["manyhands"] == manyhands.__version__
    assert doctor.examine()["manyhands"] == manyhands.__version__
    elsewhere = [ROOT / "Dockerfile", ROOT / "mkdocs.yml"]
    assert not [path for path in elsewhere if manyhands.__version__ in path.read_text()]
    cited = (ROOT / "CITATION.cff").read_text()  # a copy, which must agree
    assert re.findall(r"^version: (.*)$", cited, re.M) == [manyhands.__version__]
    assert re.search(r"^date-released: \d{4}-\d\d-\d\d$", cited, re.M)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_a_run_records_the_commit_of_the_checkout() -> None:
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance.commit() == provenance.versions()["commit"] == head


def test_everything_is_in_the_extra_of_all() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert set(re.findall(r"\w+", everything)) - {"manyhands"} == set(extras) - {"all"}


def test_workflows_call_targets_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    called = re.findall(r"make ([a-z-]+)$", workflows(), re.M)
    assert {"quick", "test", "docs"} <= set(called)
    for target in called:
        assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"


def test_the_pythons_that_are_tested_are_those_that_are_named() -> None:
    named = re.findall(r"Python :: (3\.\d+)", str(PROJECT["project"]["classifiers"]))
    assert set(re.findall(r'"(3\.\d+)"', workflows())) == set(named)


def workflows() -> str:
    found = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return "\n".join(path.read_text(encoding="utf-8") for path in found)
