"""Tables of speed: against other libraries, with many workers, and of single parts."""

from __future__ import annotations

from statistics import median
from typing import Any

import bench_peers
from provenance import Origin, learning, machine_of, parts_of, short
from results_tables import Row, Table, number, read

ATARI, BOX2D = "breakout", "LunarLander-v3"


def peers() -> Table:
    """Against Stable-Baselines3; every row has its unit."""
    rows = []
    replay = read("speed")
    for task, unit, id in (
        ("breakout", "Breakout", ATARI),
        ("lunarlander", "LunarLander", BOX2D),
    ):
        cell = replay[task]
        rows.append(
            Row(
                [
                    f"DQN, {unit}: {cell['settings']}",
                    "updates/s",
                    number(cell["median"]["ours"]),
                    number(cell["median"]["peer"]),
                    f"**{cell['median']['ratio']:.2f}**",
                    f"{min(p['ratio'] for p in cell['pairs']):.2f} to "
                    f"{max(p['ratio'] for p in cell['pairs']):.2f}",
                    f"{cell['median']['share_of_limit']:.0%}",
                ],
                Origin((cell["commit"],), machine_of(replay), learning("dqn", "serial", id)),
            )
        )
    rollouts = read("speed-rollouts")
    for name in ("a2c", "ppo"):
        rows += [_rollouts(rollouts, name, ours) for ours in ("ours", "ours in float32")]
    columns = ["settings", "unit", "ours", "theirs", "ratio", "rounds", "of the machine's limit"]
    return Table(columns, rows)


def _rollouts(results: dict[str, Any], name: str, ours: str) -> Row:
    cell = results[name]
    ratios = cell["ratios"][f"{ours} / peer"]
    precision = cell["precision"][ours]
    parts = learning(name, "serial", ATARI)
    origin = Origin((results["commit"],), machine_of(results), parts)
    return Row(
        [
            f"{name.upper()}, Breakout: {cell['settings']}, {precision}",
            "agent steps/s",
            number(cell["agent_steps_per_s"][ours]),
            number(cell["agent_steps_per_s"][cell["peer"]]),
            f"**{cell['ratio'][f'{ours} / peer']:.2f}**",
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            "–",
        ],
        origin,
    )


def libraries() -> Table:
    """All sides of `make bench-peers`: the rate, and the seconds before the clock starts."""
    results, rows = read("peers"), []
    kept = results["cells"]
    for name, job in bench_peers.JOBS.items():
        found = {side: bench_peers.rates_of(kept, name, side) for side in bench_peers.SIDES}
        rates = {side: median(values) for side, values in found.items() if values}
        if "ours" not in rates:
            continue
        fastest = max((rate for side, rate in rates.items() if "ours" not in side), default=None)
        ratio = "–" if fastest is None else f"**{rates['ours'] / fastest:.2f}**"
        cells = [f"{job.task} {job.algorithm}: {job.about}", f"{job.unit}/s"]
        cells += [_side(kept, name, side, rates.get(side)) for side in bench_peers.SIDES]
        commit = kept[bench_peers.key(name, "ours", 1, 0)]["commit"]
        parts = learning(job.algorithm, "serial", ATARI if job.task == ATARI else BOX2D)
        rows.append(Row([*cells, ratio], Origin((commit,), machine_of(results), parts)))
    labels = [side.label for side in bench_peers.SIDES.values()]
    return Table(["job", "unit", *labels, "ours / fastest other"], rows)


def _side(kept: dict[str, Any], job: str, side: str, rate: float | None) -> str:
    threads = bench_peers.best_threads(kept, job, side)
    cell = kept.get(bench_peers.key(job, side, threads, 0), {})
    if rate is None:
        return "failed" if "error" in cell else "–"
    return f"{number(rate)} · {number(cell['start_up_s'])} s · {threads}"


def start_up() -> Table:
    results = read("start-up")
    labels = {
        "help_s": "`manyhands --help`, seconds",
        "first_update_s": "`train cartpole` to its first update, seconds",
        "first_worker_s": "`hogwild`, two workers: the first is ready, seconds",
        "second_after_first_s": "the second after the first, seconds",
        "all_of_32_s": "32 workers are ready, seconds",
        "pss_of_one_of_2_mb": "PSS of each of 2 workers, MB",
        "pss_of_one_of_32_mb": "PSS of each of 32 workers, MB",
    }
    origin = Origin((results["commit"],), machine_of(results), ("backends",))
    return Table(
        ["what", "bar", "measured"],
        [
            Row([label, f"{bar:g}" if (bar := results["bars"].get(name)) else "–",
                 number(results[name], 2)], origin)
            for name, label in labels.items()
        ],
    )  # fmt: skip


def guard() -> Table:
    rows = []
    for cpu, cases in read("guard").items():
        for name, case in cases.items():
            cells = [name, number(case["ratio"], 2)]
            cells.append(f"{case['lowest']:.2f} to {case['highest']:.2f}")
            rows.append(Row(cells, Origin((case["commit"],), short(cpu), ("networks",))))
    return Table(["case", "ratio", "blocks"], rows)


def busy() -> Table:
    """Beside one busy loop on two cores, and against the commit before."""
    results = read("busy")
    rows = []
    for cell in results["tasks"].values():
        rates = cell["agent steps/s"]
        before = f"**{cell['quiet / before']:.2f}**" if "quiet / before" in cell else "–"
        cells = [f"`{cell['command']}`", number(median(rates["quiet"]))]
        cells += [number(median(rates["busy"])), f"**{cell['busy / quiet']:.2f}**", before]
        rows.append(Row(cells, Origin((cell["commit"],), machine_of(results), ("networks",))))
    columns = ["command", "quiet, agent steps/s", "beside a busy loop", "ratio"]
    return Table([*columns, "quiet, of the commit before"], rows)


# --- Many workers -------------------------------------------------------------------------------


def workers() -> Table:
    """Two workers on two cores."""
    columns = ["network", "strategy", "times one worker of it", "times serial, one thread"]
    columns += ["times serial, two threads", "file"]
    rows = []
    for name in ("sharing", "sharing-again-workers"):
        for network, cell in read(name)["workers"].items():
            for strategy, times in cell["times_one_worker_with_one_thread"].items():
                own = f"{strategy}, one worker" in cell["median"]
                cells = [
                    {"mlp": "LunarLander's 256×256", "nature": "Nature's"}[network],
                    f"`{strategy}`",
                    number(times, 2) if own else "–",
                    number(cell["times_serial_with_one_thread"][strategy], 2),
                    number(cell["times_serial_with_two_threads"][strategy], 2),
                    f"{name}.json",
                ]
                rows.append(Row(cells, _shared(cell, strategy)))
    return Table(columns, rows)


def _shared(cell: dict[str, Any], strategy: str) -> Origin:
    parts = learning("dqn", strategy, "toy/frames")
    return Origin((cell["commit"],), machine_of(cell), parts)


def waiting() -> Table:
    columns = ["recipe", "16 workers", "32 workers", "goals", "file"]
    rows = []
    for name in ("sharing", "sharing-again-waiting"):
        for recipe, cell in read(name)["waiting"].items():
            goals = " and ".join(f"{goal:g}" for goal in cell["goals"].values())
            times = [number(cell["times_one"].get(n), 1) for n in ("16", "32")]
            parts = parts_of(cell["commit"], recipe, "toy/slow")
            origin = Origin((cell["commit"],), machine_of(cell), parts, "toy/slow", recipe)
            rows.append(Row([f"`{recipe}`", *times, goals, f"{name}.json"], origin))
    return Table(columns, rows)


def cost() -> Table:
    """Pull and push, as a share of the gradient's time."""
    cell = read("sharing")["cost"]["nature, batch 32"]
    rows = []
    for name, share in cell["median"]["sharing / gradient"].items():
        ms, goal = cell["median"]["ms"][name], cell["goals"].get(name)
        cells = [f"`{name}`", *(number(ms[part], 2) for part in ("gradient", "pull", "push"))]
        cells += [f"{share:.1%}", "–" if goal is None else f"{goal:.0%}"]
        rows.append(Row(cells, _shared(cell, name.partition(",")[0])))
    return Table(["strategy", "gradient, ms", "pull", "push", "share", "goal"], rows)


def saturation() -> Table:
    rows = []
    for shards, cell in read("sharing")["saturation"].items():
        typical = cell["median"]
        rates = ("updates_per_s", "updates_per_s, without waiting")
        most = max(max(typical[rate].values()) for rate in rates)
        shares = [f"{typical['of so many times one'][n]:.0%}" for n in ("8", "16")]
        cells = [shards.split()[0], number(most), *shares]
        rows.append(Row(cells, _shared(cell, "parameter_server")))
    columns = ["shards", "updates/s at most", "8 clients, of 8 × one", "16 clients, of 16 × one"]
    return Table(columns, rows)


# --- Parts --------------------------------------------------------------------------------------


def allreduce() -> Table:
    results = read("allreduce-gloo")
    origin = Origin((results["commit"],), machine_of(results), ("strategies/allreduce",))
    rows = []
    for name, cell in results.items():
        if isinstance(cell, dict) and "ms" in cell:
            ms = [number(median(cell["ms"][whose]), 2) for whose in ("ours", "gloo")]
            rows.append(Row([name, *ms, f"{cell['gloo / ours']:.1f}"], origin))
    return Table(["average", "ours, ms", "gloo, ms", "gloo / ours"], rows)


def prioritized() -> Table:
    results = read("prioritized")
    origin = Origin((results["commit"],), machine_of(results), ("memory",))
    names = ("ours_us", "ours_numpy_us", "cpprb_us")
    rows = [
        Row(
            [
                name,
                *(number(c[n]) for n in names),
                number(c["ratio"], 2),
                number(c["ratio_numpy"], 2),
            ],
            origin,
        )
        for name, c in results["cycles"].items()
    ]
    columns = ["insert, draw, update; µs", "ours", "ours without numba", "cpprb"]
    return Table([*columns, "ratio", "ratio without numba"], rows)


def acting() -> Table:
    results = read("acting")
    origin = Origin((results["commit"],), machine_of(results), ("networks",))
    rows = [
        Row([n, number(c["numpy"]), number(c["torch"]), number(c["torch / numpy"], 2)], origin)
        for n, c in results["QNetwork"].items()
    ]
    return Table(["observations", "NumPy, µs", "torch, µs", "torch / NumPy"], rows)


def dense() -> Table:
    results = read("dense")
    origin = Origin((results["commit"],), machine_of(results), ("networks",))
    pairs = zip(results["1 threads, us"].items(), results["2 threads, us"].values(), strict=True)
    rows = [
        Row([n, *(number(c["transposed / as written"], 2) for c in (one, two))], origin)
        for (n, one), two in pairs
    ]
    return Table(["rows", "one thread", "two threads"], rows)


def backend() -> Table:
    results = read("backend")
    origin = Origin(
        (results["commit of the file"],), machine_of(results), ("backends",), of_file=True
    )
    hot, cold = results["one after the other, us"], results["after 5 ms of sleep, us"]
    rows = [Row([name, number(hot[name]), number(cold[name])], origin) for name in hot]
    return Table(["what", "one after the other, µs", "after 5 ms of sleep, µs"], rows)


def others() -> Table:
    """Single figures."""
    speed, snake, display = read("speed"), read("snake-speed"), read("display-cost")
    players = read("snake-greedy")
    committed = (players["commit of the file"],)
    greedy = Origin(committed, machine_of(players), ("envs/snake",), of_file=True)
    rows = [
        Row(
            ["Snake, 256 boards of 8×8, one core", f"{snake['median']['steps_per_s']:,} steps/s"],
            Origin((snake["commit"],), machine_of(snake), ("envs/snake",)),
        ),
        Row(
            ["live display, of a CartPole run's CPU time", f"{display['share']:.2%}"],
            Origin((display["commit"],), machine_of(display)),
        ),
        Row(
            ["a million Atari rows in the replay", f"{speed['million_atari_rows_gb']:.2f} GB"],
            Origin((speed["breakout"]["commit"],), machine_of(speed), ("memory",)),
        ),
        Row(
            ["drawing a Breakout batch, of its gradient step", f"{speed['draw']['ratio']:.1%}"],
            Origin((speed["breakout"]["commit"],), machine_of(speed), ("memory",)),
        ),
    ]
    for board in players["boards"]:
        what = f"greedy Snake player, {board['board']}×{board['board']}, mean of {board['games']}"
        rows.append(Row([what, number(board["mean"], 1)], greedy))
    return Table(["what", "figure"], rows)
