"""Tables of learning results: benchmarks/learn.py's files, the campaigns."""

from __future__ import annotations

from typing import Any

from provenance import Origin, machine_of, parts_of, preset
from results_tables import Row, Table, files, joined, link, number, read

Run = dict[str, Any]
NO_BAR = "–"
NO_VALUE = {"--quiet", "--until-solved"}
NOT_SHOWN = {"--seed", "--out", "--recipe", "--minutes", "--steps", "--threads", "--threshold"}
NOT_SHOWN |= {"--evaluation.period-steps", "--quiet", "--until-solved"}


def options(command: str) -> dict[str, str]:
    """The flags of a ``manyhands train`` command."""
    words, found = command.split()[3:], {}
    while words:
        word = words.pop(0)
        found[word] = "" if word in NO_VALUE else words.pop(0)
    return found


def origin_of(runs: list[Run], task: str, machine: str) -> Origin:
    flags = options(runs[0]["command"])
    commits = tuple(dict.fromkeys(run["commit"] for run in runs))
    recipe = flags.get("--recipe") or str(preset(commits[0], "tasks", task).get("recipe", ""))
    parts = parts_of(commits[0], recipe, task, flags.get("--strategy", ""))
    given = frozenset(flag[2:].replace("-", "_") for flag in flags)
    return Origin(commits, machine, parts, task, recipe, given)


def how(origin: Origin, runs: list[Run]) -> str:
    shown = {k: v for k, v in options(runs[0]["command"]).items() if k not in NOT_SHOWN}
    flags = " ".join(f"{flag} {value}" for flag, value in shown.items())
    return f"`{origin.recipe}`" + (f" `{flags}`" if flags else "")


def levels(run: Run) -> dict[str, tuple[int, float] | None]:
    """Bar -> agent steps and seconds until the mean of 100 episodes reached it."""
    if run.get("reached"):
        reached = run["reached"].items()
        return {bar: at and (at["agent_steps"], at["wall_s"]) for bar, at in reached}
    if solved := run["solved"]:
        return {f"{solved['threshold']:g}": (solved["agent_steps"], solved["wall_s"])}
    return {NO_BAR: None}


def rows_of(runs: list[Run], task: str, machine: str, name: str) -> list[Row]:
    origin = origin_of(runs, task, machine)
    scored = [run["evaluation"] for run in runs]
    played = "–" if not scored[0] else joined(number(e["mean"], 1) for e in scored)
    games = f" ({scored[0]['episodes']} games)" if scored[0] else ""
    bars = sorted({bar for run in runs for bar in levels(run)}, key=lambda bar: (len(bar), bar))
    rows = []
    for bar in bars if len(bars) == 1 else [bar for bar in bars if bar != NO_BAR]:
        at = [levels(run).get(bar) for run in runs]
        cells = [
            task,
            how(origin, runs),
            joined(str(run["seed"]) for run in runs),
            bar,
            joined(number(a and a[0]) for a in at),
            joined(number(a[1] if a else run["wall_s"]) for a, run in zip(at, runs, strict=True)),
            joined(number(run["best_return_mean_100"], 1) for run in runs),
            played + games,
            link(name),
        ]
        rows.append(Row(cells, origin))
    return rows


def learning() -> Table:
    columns = ["task", "recipe", "seeds", "bar", "agent steps to the bar", "seconds"]
    columns += ["best mean of 100", "score of the last policy", "file"]
    rows: list[Row] = []
    for path in files("learn-*.json"):
        if "trials" in path.name:
            continue
        results = read(path.stem)
        rows += rows_of(results["runs"], results["task"], machine_of(results), path.name)
    seen = {(row.origin.commits, row.cells[6]) for row in rows}
    for path in files("*-summary.json"):
        summary = read(path.stem)
        if ((summary["commit"],), number(summary["best_return_mean_100"], 1)) in seen:
            continue  # learn.py's file has this run too
        rows += rows_of([summary], summary["task"], machine_of(summary), path.name)
    return Table(columns, sorted(rows, key=lambda row: row.cells[:2]))


# --- Kills --------------------------------------------------------------------------------------


def soak() -> Table:
    results = read("soak")
    compared = results["comparison"]
    columns = ["run", "kills", "restarts", "updates", "seconds", "updates until a mean of 200"]
    columns += ["mean height of the curve", "mean of the last 100 episodes"]
    rows = []
    for name, cell in sorted(results["cells"].items()):
        parts = ("backends/processes", *parts_of(cell["commit"], "hogwild", "lunarlander"))
        origin = Origin((cell["commit"],), machine_of(cell), parts, "lunarlander", "hogwild")
        cells = [
            name.replace(" ", ", seed "),
            str(cell["killed"]),
            str(cell["faults"]["restarts"]),
            number(cell["updates"]),
            number(cell["wall_s"]),
            number(compared["updates_to_solve"][name]),
            number(compared["mean_height"][name]),
            number(cell["return_mean_100"]),
        ]
        rows.append(Row(cells, origin))
    return Table(columns, rows)


def campaigns() -> Table:
    rows = []
    for name in ("soak-kills", "soak-faults"):
        results = read(name)
        cells = results["cells"].values()
        signals = sum(sum(cell.get("sent", {}).values()) for cell in cells)
        restarts = sum(cell.get("faults", {}).get("restarts", 0) for cell in cells)
        wrong = sum(bool(cell["wrong"]) for cell in cells)
        kills = [number(signals), number(restarts)] if signals else ["", ""]
        command = f"`{results['command'].removeprefix('python ')}`"
        parts, made = ("backends/processes", "envs"), results["date"]
        origin = Origin((results["commit"],), machine_of(results), parts, measured=made)
        rows.append(Row([command, str(len(cells)), *kills, str(wrong)], origin))
    return Table(["campaign", "runs", "signals", "restarts", "runs with something wrong"], rows)
