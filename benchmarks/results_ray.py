"""Tables of the results page: the backend ray. benchmarks/ray_*.py measure it."""

from __future__ import annotations

from statistics import median
from typing import Any

from provenance import Origin, machine_of
from results_tables import RESULTS, Row, Table, joined, number, read

PARTS = ("backends",)
Cell = dict[str, Any]


def _cells(name: str) -> dict[str, Cell]:
    """By cell; none, if it was not measured."""
    found: dict[str, Cell] = read(name) if (RESULTS / f"{name}.json").exists() else {}
    return found


def _origin(*cells: Cell) -> Origin:
    commits = tuple(dict.fromkeys(cell["commit"] for cell in cells))
    return Origin(commits, machine_of(cells[0]), PARTS)


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def speed() -> Table:
    """One machine, against processes."""
    rows = []
    for name, cell in _cells("ray-speed").items():
        run = cell["run"].removeprefix("manyhands train ")
        cells = [name, f"`{run}`"]
        for rate in ("agent_steps_per_s", "updates_per_s"):
            cells += [number(cell[backend][rate], 1) for backend in ("ray", "processes")]
            cells += [f"**{cell['ratio'][rate]:.2f}**"]
        rows.append(Row([*cells, _met(cell["goal_met"])], _origin(cell)))
    columns = ["recipe", "command", "ray, agent steps/s", "processes", "ratio"]
    return Table([*columns, "ray, updates/s", "processes", "ratio", "goal 0.90"], rows)


def carried() -> Table:
    """From node to node."""
    rows = []
    for name, cell in _cells("ray-nodes").items():
        age = cell["age_of_weights_ms"]
        cores = (cell["cores_of_main_node"], cell["cores_of_other_node"])
        cells = [name, number(cell["rows_per_s"]), number(cell["mb_per_s"], 1)]
        cells += [*(f"{100 * core:.0f} %" for core in cores)]
        share = cell.get("share_of_link")
        cells += [f"{age['median']:.0f}", f"{age['p95']:.0f}"]
        rows.append(Row([*cells, f"{100 * share:.0f} %" if share else "–"], _origin(cell)))
    columns = ["case", "rows/s", "MB/s", "core on main's node", "core on the other"]
    columns += ["age of weights, median, ms", "95 %, ms", "of the link"]
    return Table(columns, rows)


def waiting() -> Table:
    rows = []
    for cell in _cells("ray-waiting").values():
        for actors, goal in cell["goals"].items():
            rates = median(row[actors] for row in cell["agent_steps_per_s"])
            one = median(row["1"] for row in cell["agent_steps_per_s"])
            cells = [actors, number(rates), number(one), f"**{cell['times_one'][actors]:.1f}**"]
            met = f"{goal:g}: {_met(cell['goals_met'][actors])}"
            rows.append(Row([*cells, met], _origin(cell)))
    return Table(["actors", "agent steps/s", "with one", "times one", "goal"], rows)


def faults() -> Table:
    words = {
        "noticed_s": "until it is noticed",
        "elsewhere_s": "until its actors work elsewhere",
        "used_s": "until a node that comes is used",
    }
    rows = []
    for cell in _cells("ray-faults").values():
        for name, goal in cell["goals"].items():
            rounds = " · ".join(number(row[name], 1) for row in cell["rounds"])
            cells = [words[name], rounds, f"**{cell['median'][name]:.1f}**"]
            met = f"{goal:g}: {_met(cell['goals_met'][name])}"
            rows.append(Row([*cells, met], _origin(cell)))
    return Table(["a raylet is killed", "rounds, s", "median, s", "goal, s"], rows)


def learning() -> Table:
    """On two nodes."""
    groups: dict[str, list[tuple[str, Cell]]] = {}
    for name, cell in _cells("ray-learning").items():
        case, _, seed = name.rpartition(" ")
        groups.setdefault(case, []).append((seed, cell))
    rows = []
    for case, some in groups.items():
        runs = [cell for _, cell in some]
        task, recipe = case.split()
        solved = (run["solved"] for run in runs)
        cells = [task, f"`{recipe}`", joined(seed for seed, _ in some)]
        greedy = (run["solved_greedily"] for run in runs)
        cells += [joined(number(s and s["agent_steps"]) for s in greedy)]
        cells += [joined(number(s and s["agent_steps"]) for s in solved)]
        cells += [joined(number(run["return_mean_100"]) for run in runs)]
        cells += [joined(number(run["evaluation"]["mean"], 1) for run in runs)]
        cells += [str(sum(len(run.get("killed", ())) for run in runs))]
        cells += [str(sum(run["faults"]["nodes_lost"] for run in runs))]
        rows.append(Row(cells, _origin(*runs)))
    columns = ["task", "recipe", "seeds", "agent steps until greedy games solve it"]
    columns += ["until training does", "mean of training then", "100 games at the end"]
    return Table([*columns, "nodes killed", "nodes lost"], rows)


def many() -> Table:
    rows = []
    for name, cell in _cells("ray-many").items():
        cells = [name, str(cell["nodes"]), number(cell["all_running_s"])]
        cells += [f"{number(cell['agent_steps'])} of {number(cell['asked_steps'])}"]
        cells += [str(cell["restarts"]), number(cell["processes_pss_mb"])]
        left = f"{cell['processes_left']} · {cell['files_left_in_shared_memory']}"
        rows.append(Row([*cells, left], _origin(cell)))
    columns = ["run", "nodes", "seconds until all run", "agent steps", "restarts", "MB of all"]
    return Table([*columns, "processes · files left"], rows)


def memory() -> Table:
    rows = []
    for cell in _cells("ray-memory").values():
        for name, before in cell["before_mb"].items():
            after = cell["after_mb"][name]
            cells = [name.rstrip("0123456789 "), number(before, 1), number(after, 1)]
            rows.append(Row([*cells, f"{after - before:+.1f}"], _origin(cell)))
    return Table(["process", "third minute, MB", "last minute, MB", "growth, MB"], rows)
