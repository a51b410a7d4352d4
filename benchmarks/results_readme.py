"""The README's two tables: which rows of the results page they show."""

from __future__ import annotations

import results_learning as learning
import results_speed as peers
from results_tables import markdown, number, read

SHOWN = (  # file, bar, text
    ("learn-cartpole-ppo", "475"),
    ("learn-lunarlander", "200"),
    ("learn-lunarlander-ppo", "200"),
)


def results() -> str:
    rows = {
        (row.cells[-1].split("]")[0][1:], row.cells[3]): row for row in learning.learning().rows
    }
    lines = []
    for name, bar in SHOWN:
        row = rows[f"{name}.json", bar]
        task, recipe, seeds, _, steps, seconds = (
            cell.replace(" · ", "·") for cell in row.cells[:6]
        )
        name = recipe.split("` `")[0].rstrip("`") + "`" + ("†" if row.origin.mark() else "")
        lines.append([task, name, bar, seeds, steps, seconds])
    columns = ["task", "recipe", "mean of 100 reached", "seeds", "agent steps", "seconds"]
    return markdown(columns, lines)


def speed() -> str:
    lines = []
    for row in peers.peers().rows:
        what, unit, ours, theirs, ratio = row.cells[:5]
        if "float32" not in what:
            lines.append([what.partition(":")[0] + f", {unit}", ours, theirs, ratio])
    two = read("sharing")["workers"]["nature"]["times_one_worker_with_one_thread"]["hogwild"]
    many = read("sharing")["waiting"]["hogwild"]
    rate = many["median"]["agent_steps_per_s"]
    lines.append(["two `hogwild` workers against one, Nature's network", "", "", f"**{two:.2f}**"])
    lines.append(
        ["32 `hogwild` workers against one, waiting environment, agent steps/s",
         number(rate["32"]), number(rate["1"]), f"**{many['times_one']['32']:.1f}**"]
    )  # fmt: skip
    return markdown(["", "ours", "reference", "ratio"], lines)
