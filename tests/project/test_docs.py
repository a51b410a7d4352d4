"""The site: built strictly and without a network, with every command, option and recipe in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from manyhands import cli, types

ROOT = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"  # whatever asks for something from elsewhere is refused
LINK = re.compile(r"\]\(([^)#\s]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the extra docs is not installed")
    out = tmp_path_factory.mktemp("site")
    environment = {**os.environ, "http_proxy": NOWHERE, "https_proxy": NOWHERE}
    environment["NO_MKDOCS_2_WARNING"] = "1"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(out)]
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return out


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        if "benchmarks" not in page.parts:  # a report of a study, as it was made
            loaded = re.findall(
                r"<(?:script|img|link)[^>]+(?:src|href)=\"?(https?:[^\"\s>]+)", read(page)
            )
            assert not loaded, f"{page} loads {loaded}"


def test_what_comes_from_the_code_is_there(
    site: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    commands, options = read(site / "reference/commands.html"), read_options(site)
    assert cli.main(["--help"]) == 0
    for name in re.findall(r"^  manyhands (\w+)", capsys.readouterr().out, re.M):
        assert f'id="{name}"' in commands
        assert cli.main([name, "--help"]) == 0
        for flag in re.findall(r"^  (--[a-z-]+) ", capsys.readouterr().out, re.M):
            assert f"<code>{flag}</code>" in commands, f"{name} {flag}"
    for recipe in ("dqn", "a3c", "apex", "gala"):
        assert cli.main(["train", "cartpole", "--recipe", recipe, "--help"]) == 0
        for flag in re.findall(r"^  (--[a-z_-]+\.[a-z0-9_-]+) ", capsys.readouterr().out, re.M):
            assert f"<code>{flag.replace('_', '-')}</code>" in options, flag


def test_the_glossary_has_the_words_of_the_types(site: Path) -> None:
    page = read(site / "reference/glossary.html")
    words = re.findall(r"^([a-z][a-z ]*?) {2,}\w", str(types.__doc__), re.M)
    assert "double buffer" in words
    assert not [word for word in words if f"<td>{word}</td>" not in page]


def test_no_line_is_left_to_be_made(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if "<!-- made:" in read(page)]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_of_the_repositorys_own_pages(name: str) -> None:
    links = LINK.findall((ROOT / name).read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (ROOT / link).exists()]
    assert not missing


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def read_options(site: Path) -> str:
    return read(site / "reference/options.html")
