"""What the package was at the commits that results name.

``benchmarks/commits.json`` keeps it: a commit's date, and, of the parts that some row depends on,
the presets and a fingerprint of the code. So the results page needs no git history: it is the
same in a shallow clone, and after commits were joined or moved. ``make results`` asks git for
what the file lacks.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FILE = HERE / "commits.json"
PACKAGE = "src/manyhands/"
LEARNING = "learning by "
ROOMS = {"algorithms", "envs", "maths", "memory", "networks", "optim", "roles", "strategies"}
# Beside algorithm, strategy and environment. Memories, torsos and optimizers are found by folder.
DECIDING = ("maths", "memory", "networks", "optim", "roles/actor", "roles/learner", "roles/pacing")
PRESENT = ""  # the working tree, where a function takes a commit
Table = dict[str, Any]


@cache
def known() -> Table:
    """The file's content, with what git added to it since."""
    found: Table = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def save() -> bool:
    """Writes what git added. True if there was anything."""
    text = json.dumps(known(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    changed = not FILE.exists() or FILE.read_text(encoding="utf-8") != text
    FILE.write_text(text, encoding="utf-8")
    return changed


def date(commit: str) -> str:
    return str(remembered(commit, "date", lambda: git("log", "-1", "--format=%cs", commit).strip()))


def preset(commit: str, name: str) -> Table:
    """A preset's file, ``recipes/dqn`` or ``tasks/cartpole``, as it was. Empty: there was none."""
    if commit == PRESENT:
        return read_preset(PRESENT, name)
    found: Table = remembered(commit, name, lambda: read_preset(commit, name))
    return found


def code(commit: str, part: str) -> str:
    """A fingerprint of a part (``envs/snake``, ``memory``), without comments and docstrings.

    ``learning by algorithms/dqn strategies/lock envs/gym`` is all that decides what is learned.
    """
    if commit == PRESENT:
        return fingerprint(PRESENT, part)
    return str(remembered(commit, f"code {part}", lambda: fingerprint(commit, part)))


def remembered(commit: str, key: str, ask: Callable[[], Any]) -> Any:
    facts = known().setdefault(commit, {})
    if key not in facts:
        facts[key] = ask()
    return facts[key]


def read_preset(commit: str, name: str) -> Table:
    path = next((p for p in listing(commit) if p.endswith(f"presets/{name}.toml")), None)
    return {} if path is None else tomllib.loads(text(commit, path))


def lr_end(commit: str) -> float | None:
    """The share of the learning rate at which its decay ends; None: each algorithm had its own."""
    path = f"{PACKAGE}maths/schedules.py"
    if commit != PRESENT:
        return cast("float | None", remembered(commit, "lr end", lambda: read_lr_end(commit, path)))
    return read_lr_end(commit, path)


def read_lr_end(commit: str, path: str) -> float | None:
    if path not in listing(commit):
        return None
    found = re.search(r"^LR_END = ([\d.]+)", text(commit, path), re.M)
    return float(found[1]) if found else None


# --- Code ---------------------------------------------------------------------------------------


def fingerprint(commit: str, part: str) -> str:
    if part.startswith(LEARNING):
        paths = closure(commit, [*DECIDING, *part.removeprefix(LEARNING).split()])
    else:
        paths = files_of(commit, part)
    whole = "\n".join(bare(text(commit, path)) for path in paths)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def files_of(commit: str, part: str) -> list[str]:
    start = PACKAGE + part
    paths = (p for p in listing(commit) if p == f"{start}.py" or p.startswith(f"{start}/"))
    return [path for path in paths if path.endswith(".py")]


def closure(commit: str, parts: list[str]) -> list[str]:
    """The files of these parts, and all that they import from rooms that decide learning."""
    there = set(listing(commit))
    waiting = [path for part in parts for path in files_of(commit, part)]
    found: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path not in found:
            found.add(path)
            names = imported(text(commit, path))
            starts = (PACKAGE + name.replace(".", "/") for name in names)
            waiting += [p for s in starts for p in (f"{s}.py", f"{s}/__init__.py") if p in there]
    return sorted(found)


@cache
def imported(source: str) -> frozenset[str]:
    """``optim.rules`` for every import of the package, from rooms that decide learning."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    inside = (name.removeprefix("manyhands.") for name in found if name.startswith("manyhands."))
    return frozenset(name for name in inside if name.split(".")[0] in ROOMS)


@cache
def bare(source: str) -> str:
    """Source text without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not is_text(line)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def is_text(line: ast.stmt) -> bool:
    return isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)


@cache
def listing(commit: str) -> tuple[str, ...]:
    """The package's files, then or now."""
    if commit == PRESENT:
        found = (ROOT / PACKAGE).rglob("*.*")
        return tuple(sorted(str(path.relative_to(ROOT)) for path in found))
    return tuple(git("ls-tree", "-r", "--name-only", commit, PACKAGE).splitlines())


def text(commit: str, path: str) -> str:
    if commit == PRESENT:
        return (ROOT / path).read_text(encoding="utf-8")
    return git("show", f"{commit}:{path}")


@cache
def git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, check=True, capture_output=True, encoding="utf-8"
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(
            f"a result names a commit that neither git nor {FILE.name} knows ({words[-1]})\n"
            "  measure it again, then run `make results`"
        ) from error
    return done.stdout
