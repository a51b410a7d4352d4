"""Tables of the results page: planning with a table on the Dyna maze, and with a learned model."""

from __future__ import annotations

from statistics import mean, median
from typing import Any

from provenance import Origin, learning, machine_of
from results_tables import Row, Table, files, joined, link, number, read

PARTS = ("algorithms/tabular", "memory/planning", "memory/sweeping", "envs/maze")
DYNA, SWEEPING = "tabular-dyna-q", "prioritized-sweeping"


def episodes() -> Table:
    results = read("planning-episodes")
    origin = Origin((results["commit"],), machine_of(results), PARTS, measured=results["date"])
    rows = []
    for cell in results["cells"]:
        lengths = list(cell["lengths"].values())
        spans = (slice(1, 2), slice(2, 10), slice(10, 30))
        means = [joined(number(mean(some[span])) for some in lengths) for span in spans]
        rows.append(Row([str(cell["planning_steps"]), *means], origin))
    return Table(["planning steps", "episode 2", "episodes 3 to 10", "episodes 11 to 30"], rows)


def sweeping() -> Table:
    results = read("planning-sweeping")
    origin = Origin((results["commit"],), machine_of(results), PARTS, measured=results["date"])
    found: dict[int, dict[str, list[int]]] = {}
    for cell in results["cells"]:
        updates = [one["updates"] for one in cell.values() if isinstance(one, dict)]
        found.setdefault(cell["states"], {})[cell["recipe"]] = updates
    rows = []
    for states, of in found.items():
        if len(of) == 2:
            ratio = median(a / b for a, b in zip(of[DYNA], of[SWEEPING], strict=True))
            shown = [joined(map(number, of[recipe])) for recipe in (DYNA, SWEEPING)]
            rows.append(Row([str(states), *shown, f"**{ratio:.1f}**"], origin))
    return Table(["states", f"`{DYNA}`", f"`{SWEEPING}`", "median ratio"], rows)


def dyna() -> Table:
    """Real steps to the measure of benchmarks/dyna.py; more than the run's length: not reached."""
    rows = []
    for path in files("dyna-*.json"):
        results = read(path.stem)
        arms: dict[str, dict[str, dict[str, Any]]] = {}
        for name, cell in sorted(results["cells"].items()):
            arm, _, seed = name.rpartition("-s")
            arms.setdefault(arm, {})[seed] = cell
        for arm, cells in arms.items():
            commits = tuple(dict.fromkeys(cell["commit"] for cell in cells.values()))
            algorithm = "dqn" if arm == "control" else "dyna_q"
            parts = learning(algorithm, "serial", results["task"])
            shown = [
                number(cell["real_steps"])
                if cell["real_steps"]
                else f"> {number(cell['agent_steps'])}"
                for cell in cells.values()
            ]
            best = [number(max(mean for _, mean in c["evaluations"])) for c in cells.values()]
            machines = " / ".join(dict.fromkeys(machine_of(cell) for cell in cells.values()))
            origin = Origin(commits, machines, parts)
            named = [results["task"], f"`{arm}`", joined(cells), joined(shown), joined(best)]
            took = joined(number(cell["wall_s"]) for cell in cells.values())
            rows.append(Row([*named, took, link(path.name)], origin))
    columns = ["task", "how", "seeds", "real steps", "best evaluation", "seconds", "file"]
    return Table(columns, rows)
