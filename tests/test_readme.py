"""The README's table of algorithms and strategies: each cell is a command that trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from manyhands import cli

README = Path(__file__).parent.parent / "README.md"
SMALL = "--envs-per-worker 2 --network.hidden 32 --threads 1 --backend inprocess --quiet"
ENOUGH = {  # for a first update, and few
    "dqn": "--steps 300 --dqn.warmup-steps 100 --dqn.batch-size 8 --memory.capacity 1000",
    "double_q": "--steps 300 --double-q.warmup-steps 100 --double-q.batch-size 8",
    "a2c": "--steps 100",
    "impala": "--steps 400",
    "ppo": "--steps 200 --ppo.minibatches 2 --ppo.epochs 2",
    "pqn": "--steps 200 --pqn.minibatches 2 --pqn.epochs 2",
}


def table() -> list[tuple[str, str, str]]:
    """Algorithm, strategy and command of every cell."""
    lines = README.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("| algorithm × strategy"))
    _, *strategies = columns(lines[begin].replace("parameter server", "parameter_server"))
    found, algorithm = [], ""
    for line in lines[begin + 2 :]:
        if not line.startswith("|"):
            break
        name, *cells = columns(line)
        first = name.split(",")[0]
        algorithm = first if first in ENOUGH else algorithm  # "… by many actors" goes on
        found += [(algorithm, *cell) for cell in zip(strategies, cells, strict=True)]
    return found


def columns(line: str) -> list[str]:
    return [
        cell.strip().strip("`").replace("all-reduce", "allreduce") for cell in line[1:-1].split("|")
    ]


def test_the_table_is_whole() -> None:
    assert len(table()) == 11 * 6
    assert len(set(table())) == 11 * 6
    assert {algorithm for algorithm, _, _ in table()} == set(ENOUGH)


@pytest.mark.parametrize(("algorithm", "strategy", "command"), table())
def test_a_cell_is_a_command_that_trains(
    algorithm: str, strategy: str, command: str, tmp_path: Path
) -> None:
    words = f"{command} {SMALL} {ENOUGH[algorithm]}".split()
    assert cli.main(["train", "cartpole", *words, "--out", str(tmp_path / "run")]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["algorithm"], summary["strategy"]) == (algorithm, strategy)
    assert summary["updates"] > 0
