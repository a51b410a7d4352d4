"""The folder is the registry: the files of a room that can be chosen, by their names."""

from __future__ import annotations

import re
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path

from manyhands.types.errors import BadRequest


def names(folder: Path, has: str = "make") -> list[str]:
    """The files and folders that define ``has``. Read, not imported. Others are theirs to share."""
    defines = re.compile(rf"^(def )?{has}\b", re.M)
    files = {e.stem: e if e.suffix == ".py" else e / "__init__.py" for e in folder.iterdir()}
    return sorted(
        name
        for name, file in files.items()
        if not name.startswith("_")
        and file.is_file()
        and defines.search(file.read_text(encoding="utf-8"))
    )


def unknown(what: str, name: str, known: list[str], *, otherwise: str = "") -> BadRequest:
    """The refusal of a name that is not known, with the nearest one that is.

    `otherwise`: the remedy if none is near; by default the list of all.
    """
    bare = {one.lstrip("-"): one for one in known}  # dashes that all have make nothing near
    asked = name.lstrip("-")
    near = get_close_matches(asked, bare, n=5, cutoff=0.6)
    best = max(
        near, key=lambda one: (_likeness(asked, one), -abs(len(one) - len(asked))), default=""
    )
    every = otherwise or f"known: {', '.join(known)}"
    hint = f"did you mean {bare[best]}?" if near else every
    return BadRequest(f"{what} {name!r} is not known", hint)


def _likeness(asked: str, one: str) -> tuple[float, int]:
    """Of two that share as many letters with it, the one of its length is nearer."""
    return SequenceMatcher(None, one, asked).ratio(), -abs(len(one) - len(asked))
