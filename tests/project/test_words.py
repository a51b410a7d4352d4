"""Plain words: what we do not write, a complete glossary, and a README whose commands are right."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from manyhands import cli, types
from manyhands.config import presets

ROOT = next(path for path in Path(__file__).parents if (path / "pyproject.toml").is_file())
READ = [
    *(ROOT / "src" / "manyhands").rglob("*.py"),
    *(ROOT / "src" / "manyhands").rglob("*.toml"),
    *(ROOT / "src" / "manyhands").rglob("*.html"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").glob("*.py"),
    *ROOT.glob("*.md"),
]

# People are "who". A process, a worker or a gradient is "it" or "that": name the thing instead.
PERSONS = ("who", "whoever", "whom", "nobody", "somebody", "anybody", "everybody", "everyone")
# Pictures of things, and verbs that a reader has to translate: see the glossary for our words.
PICTURES = ("crew", "shelf", "dues", "circles", "knobs?", "bank", "seats?", "baton", "anew")
IDIOMS = ("afresh", "mend(?:s|ed)?", "go(?:es)?[ _]on", "go(?:es)?[ _]back", "yours to give")
BANNED = re.compile(
    rf"(?<![a-z])(?:{'|'.join((*PERSONS, *PICTURES, *IDIOMS))})(?![a-z])", re.IGNORECASE
)


@pytest.mark.parametrize("file", READ, ids=lambda file: str(file.relative_to(ROOT)))
def test_plain_words(file: Path) -> None:
    lines = file.read_text(encoding="utf-8").splitlines()
    found = [f"{n}: {line.strip()}" for n, line in enumerate(lines, 1) if BANNED.search(line)]
    assert not found, "\n".join(found)


def test_the_list_finds_what_it_should() -> None:
    for text in ("ends whoever uses them", "self._nobody", "a dataclass of knobs", "it goes on"):
        assert BANNED.search(text)
    for text in ("the whole vector", "whose values", "a seated clone", "embankment", "renewed"):
        assert not BANNED.search(text)


# --- The glossary -------------------------------------------------------------------------------

USED_BY_TWO_ROOMS = [
    "actor",
    "agent-step",
    "backend",
    "batch",
    "cell",
    "channel",
    "checkpoint",
    "column",
    "demand",
    "fault",
    "frame",
    "group",
    "head",
    "hosted-object",
    "imagined",
    "incarnation",
    "island",
    "lane",
    "learner",
    "ledger",
    "member",
    "memory",
    "node",
    "notice",
    "pacing",
    "part",
    "plan",
    "rank",
    "recipe",
    "replay",
    "ring",
    "rollout",
    "row",
    "shard",
    "slot",
    "snapshot",
    "staleness",
    "strategy",
    "stream",
    "table",
    "target-network",
    "task",
    "torso",
    "turn",
    "update",
    "version",
    "worker",
]


def glossary() -> list[tuple[str, str]]:
    _, _, words = str(types.__doc__).partition("Words\n-----\n")
    block = re.sub(r"\n +", " ", words.partition("\n\n")[0])
    entries = [re.split(r" {2,}", line, maxsplit=1) for line in block.splitlines()]
    return [(word, meaning) for word, meaning in entries]


def test_the_glossary_is_in_order() -> None:
    words = [word for word, _ in glossary()]
    assert all(one < other for one, other in pairwise(words)), "alphabetical, each word once"


def test_the_glossary_is_complete() -> None:
    missing = {word.replace("-", " ") for word in USED_BY_TWO_ROOMS} - dict(glossary()).keys()
    assert not missing


def test_a_meaning_is_short() -> None:
    for word, meaning in glossary():
        assert meaning.endswith(".")
        assert len(meaning.split()) <= 30, word


# --- Presets and the README ---------------------------------------------------------------------


@pytest.mark.parametrize("recipe", presets.names("recipes"))
def test_a_recipe_cites_author_and_year(recipe: str) -> None:
    assert re.search(r"\b[A-Z][a-z]+\b.* (?:19|20)\d\d\)", presets.read("recipes", recipe)["about"])


README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| `(manyhands [^|]+)` \|$", README, re.M)


def test_every_recipe_has_a_command_in_the_readme() -> None:
    assert sorted(recipe for recipe, _ in COMMANDS) == presets.names("recipes")


@pytest.mark.parametrize(("recipe", "command"), COMMANDS)
def test_a_command_of_the_readme_is_right(
    recipe: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *words = shlex.split(command)
    assert cli.main([*words, "--print-config"]) == 0
    assert re.search(rf"^recipe +{recipe} +flag$", capsys.readouterr().out, re.M)
