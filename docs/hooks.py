"""mkdocs hooks: what the site takes from the code and the results, so that it cannot go stale.

A line ``<!-- made: NAME -->`` in a page is replaced:

commands     every command with its options, as `manyhands COMMAND --help` prints them
options      every section's options: type, default, range, reason
recipes      `manyhands list`
files ROOM   the files of a room, with the first line of their docstrings
glossary     the words in the docstring of `manyhands.types`

Nothing here knows where in the package things lie: commands are asked for their help, and the
classes of options are found by their fields.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import io
import os
import pkgutil
import re
import typing
from collections.abc import Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "manyhands"
RESULTS = ROOT / "benchmarks" / "results"
MADE = re.compile(r"^<!-- made: (\w+)(?: (\w+))? -->$", re.M)
COMMAND = r"^  manyhands (\w+)\b.*?  +(\S.*)$"
OPTION = re.compile(r"^  (--\S+)\s+(.*)$")
DEFAULT = re.compile(r"^(.*?)(?: \[([^\[\]]*)\])?$")


# --- mkdocs -------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The results that the results page links to are part of the site."""
    for path in sorted(RESULTS.rglob("*.*")):
        where = str(path.relative_to(ROOT))
        files.append(File.generated(config, where, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    markdown = markdown.replace("](../benchmarks/results/", "](benchmarks/results/")
    return MADE.sub(lambda match: MAKERS[match[1]](match[2]), markdown)


# --- What the command says ----------------------------------------------------------------------


def said(*words: str) -> str:
    """What `manyhands WORDS` prints, in lines as long as they need."""
    (script,) = entry_points(group="console_scripts", name="manyhands")
    out = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="10000"), contextlib.redirect_stdout(out):
        code = script.load()(list(words))
    assert code == 0, f"manyhands {' '.join(words)} ended with {code}"
    return out.getvalue()


def commands(_: str | None) -> str:
    parts = []
    for name, about in re.findall(COMMAND, said("--help"), re.M):
        lines = said(name, "--help").splitlines()
        own = lines[: next((n for n, line in enumerate(lines) if line[:1] == "s"), len(lines))]
        rows = [found.groups() for line in own if (found := OPTION.match(line))]
        table = [("option", "meaning", "default"), ("---", "---", "---")]
        table += [(f"`{flag}`", *meaning(text)) for flag, text in rows]
        usage = f"## {name}\n\n{sentence(about)}\n\n```text\n{lines[0]}\n```\n"
        parts.append(usage + ("\n" + as_table(table) if rows else ""))
    return "\n\n".join(parts)


def meaning(text: str) -> tuple[str, str]:
    found = DEFAULT.match(text)
    assert found is not None
    return found[1], f"`{found[2]}`" if found[2] else ""


def recipes(_: str | None) -> str:
    parts = []
    for heading, block in re.findall(r"^(\w+):\n((?:  .*\n?)+)", said("list"), re.M):
        rows = [("name", "what it is"), ("---", "---")]
        rows += [
            (f"`{name}`", about) for name, about in re.findall(r"^  (\S+) +(.*)$", block, re.M)
        ]
        parts.append(f"## {heading.capitalize()}\n\n{as_table(rows)}")
    return "\n\n".join(parts)


# --- Options ------------------------------------------------------------------------------------


def options(_: str | None) -> str:
    """Every section that a part can have, in the order in which `--help` shows them."""
    found: dict[str, list[str]] = {}
    listed = dict(re.findall(r"^(\w+):\n((?:  .*\n?)+)", said("list"), re.M))
    members = {room: re.findall(r"^  (\S+)", listed[room], re.M) for room in listed}
    asked = [["--algorithm", name] for name in members["algorithms"]]
    asked += [["--strategy", name, "--workers", "2"] for name in members["strategies"]]
    asked += [["--backend", name] for name in members["backends"]]
    for words in asked:
        alone = words[1] in ("serial", "delayed")  # one learner only
        for section, names in sections(
            said("train", "cartpole", *words[: 2 if alone else 4], "--help")
        ):
            found.setdefault(section, names)
    return "\n\n".join(section_table(section, names) for section, names in found.items())


def sections(text: str) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for section, field in re.findall(r"^  --([\w-]+)\.([\w-]+) ", text, re.M):
        found.setdefault(section.replace("-", "_"), []).append(field.replace("-", "_"))
    return list(found.items())


def section_table(section: str, names: list[str]) -> str:
    kind = options_classes()[frozenset(names), section_home(section, names)]
    hints = typing.get_type_hints(kind)
    rows = [("option", "type", "default", "range", "meaning"), ("---",) * 5]
    for field in dataclasses.fields(kind):
        flag = f"`--{section}.{field.name}`".replace("_", "-")
        default = "" if field.default in ("", None, ()) else f"`{field.default}`"
        kind_of_value = type_of(hints[field.name])
        rows.append((flag, kind_of_value, default, limits(field.metadata), field.metadata["doc"]))
    return f"## {section}\n\n{as_table(rows)}"


def section_home(section: str, names: list[str]) -> str:
    """Of classes with the same fields the one whose module has the section's name."""
    homes = [home for fields, home in options_classes() if fields == frozenset(names)]
    assert homes, f"no class has the fields of --{section}: {names}"
    return next((home for home in homes if home.rpartition(".")[2] == section), homes[0])


@cache
def options_classes() -> dict[tuple[frozenset[str], str], type]:
    """Dataclasses whose fields give their reason, by their fields and their module."""
    import manyhands

    found: dict[tuple[frozenset[str], str], type] = {}
    for module in pkgutil.walk_packages(manyhands.__path__, "manyhands."):
        if module.name.endswith("__main__"):
            continue
        try:
            names = vars(importlib.import_module(module.name))
        except ImportError:
            continue  # an extra that is not installed
        for kind in names.values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind):
                fields = dataclasses.fields(kind)
                if fields and all("doc" in field.metadata for field in fields):
                    found[frozenset(f.name for f in fields), kind.__module__] = kind
    return found


def type_of(hint: Any) -> str:
    if isinstance(hint, type) and not typing.get_args(hint):
        return f"`{hint.__name__}`"
    without_modules = re.sub(r"[a-z_]+\.", "", str(hint))
    return " or ".join(f"`{kind}`" for kind in without_modules.split(" | "))


def limits(metadata: Any) -> str:
    if metadata.get("choices"):
        return ", ".join(f"`{choice}`" for choice in metadata["choices"])
    words = {"low": "≥ ", "above": "> ", "high": "≤ "}
    return ", ".join(f"{w}{metadata[k]:g}" for k, w in words.items() if metadata.get(k) is not None)


# --- Rooms --------------------------------------------------------------------------------------


def files(room: str | None) -> str:
    """Read, not imported. A room that is not a folder yet has nothing to show."""
    found = sorted((PACKAGE / str(room)).rglob("*.py"))
    rows = [("file", "what it holds"), ("---", "---")]
    for path in found:
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if doc:
            rows.append((f"`{path.relative_to(PACKAGE)}`", doc.partition("\n")[0]))
    return f"## Files\n\n{as_table(rows)}" if len(rows) > 2 else ""


def glossary(_: str | None) -> str:
    """Words begin a line; their meanings follow after spaces and may continue, indented."""
    doc = ast.get_docstring(ast.parse((PACKAGE / "types" / "__init__.py").read_text("utf-8"))) or ""
    _, _, words = doc.partition("Words\n-----\n")
    block = re.sub(r"\n +", " ", words.partition("\n\n")[0]).replace("``", "`")
    rows = [re.split(r" {2,}", line, maxsplit=1) for line in block.splitlines()]
    assert rows, "the docstring of types has no glossary"
    return as_table([("word", "meaning"), ("---", "---"), *((a, b) for a, b in rows)])


def as_table(rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows
    )


def sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


MAKERS = {
    "commands": commands,
    "options": options,
    "recipes": recipes,
    "files": files,
    "glossary": glossary,
}
