"""Tables of the results page: resumed runs, checkpoints, and what the change cost serial runs."""

from __future__ import annotations

from statistics import median

from provenance import Origin, machine_of
from results_tables import Row, Table, number, read

PARTS = ("runs", "memory/storage")
KINDS = ("checkpoint", "plain")


def kills() -> Table:
    """Main was killed, and the run resumed with other processes."""
    results = read("resume-kills")
    cells = results["cells"].values()
    pairs = {(cell["before"], cell["after"]) for cell in cells}
    facts = [f"`{results['command'].removeprefix('python ')}`", str(len(cells)), str(len(pairs))]
    origin = Origin((results["commit"],), machine_of(results), PARTS, measured=results["date"])
    row = Row([*facts, str(results["resumed"])], origin)
    return Table(["campaign", "kills", "pairs of arrangements", "runs that resumed"], [row])


def hand_over() -> Table:
    """LunarLander, resumed three times on its way."""
    results = read("hand-over")
    origin = Origin((results["commit"],), machine_of(results), PARTS, measured=results["date"])
    rows = []
    for cell in results["cells"]:
        how = "the same process" if cell["control"] else "hogwild, sync, serial"
        solved = cell["solved"]
        steps = number(solved["agent_steps"]) if solved else "not solved"
        falls = " · ".join(number(fall, 1) for fall in cell["falls"])
        rows.append(Row([str(cell["seed"]), how, falls, steps], origin))
    return Table(["seed", "resumed with", "fall of the mean return", "agent steps to 200"], rows)


def checkpoints() -> Table:
    results = read("checkpoint-speed")
    origin = Origin((results["commit"],), machine_of(results), PARTS, measured=results["date"])
    rows = []
    for way in ("write", "read"):
        speeds = {k: median(one[f"{k} {way}"] for one in results["MB/s"]) for k in KINDS}
        ratio = f"**{results['checkpoint / plain'][way]:.2f}**"
        rows.append(Row([way, *(number(speeds[kind]) for kind in KINDS), ratio], origin))
    return Table(["", "checkpoint, MB/s", "plain file, MB/s", "ratio"], rows)


def serial() -> Table:
    """Serial speed against earlier commits."""
    return _against_earlier("serial-speed")


def small_networks() -> Table:
    return _against_earlier("small-networks")


def _against_earlier(name: str) -> Table:
    results = read(name)
    rows = []
    for cell in results["tasks"].values():
        rates = cell["agent steps/s"]
        cells = [f"`{cell['command']}`", f"`{cell['before']}`", number(median(rates["quiet"]))]
        cells += [number(median(rates["before, quiet"])), f"**{cell['quiet / before']:.3f}**"]
        origin = Origin(
            (cell["commit"],), machine_of(results), ("roles",), measured=results["date"]
        )
        rows.append(Row(cells, origin))
    return Table(["command", "before", "now, agent steps/s", "then", "ratio"], rows)
