"""`manyhands plan` and `train --workers auto` as they are typed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from manyhands.cli import auto
from manyhands.planning import command, forecast, report, ways
from manyhands.planning.costs import Costs, SharingCosts, Site, from_json
from manyhands.planning.simulation import Way
from manyhands.types import BadRequest, machine
from manyhands.types.communication import Sharing
from support.command_line import BLOCK, call
from support.command_line import command as run_command

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("words", "what", "remedy"),
    [
        ([], "plan needs a task", "one of "),
        (["cartpole", "--workers", "two"], "--workers 'two' is no list", "give numbers"),
        (["cartpole", "--workers", "0,1"], "--workers 0,1 is out of range", "from 1 to 10,000"),
        (["cartpole", "--gbps", "1"], "--gbps 1 without --nodes", "add --nodes N"),
        (["cartpole", "--cores", "-1"], "--cores -1 is out of range", "at least 0"),
        (["cartpole", "--recipe", "dnq"], "--recipe", "did you mean dqn?"),
        (["cartpole", "--strategy", "serial"], "cannot be shared by many workers", "try another"),
        (["cartpole", "--strategy", "hogwlid"], "strategy", "hogwild"),
        (["cartpole", "--steps", "10"], "--steps", "known: "),
        (["cartpole", "--out", "x.txt"], "--out x.txt: 'txt' is no format", "use .png"),
        (["cartpole", "--out", "/proc/x.png"], "cannot be written", "another --out"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_two_lines(
    words: list[str], what: str, remedy: str, capsys: Capture
) -> None:
    assert call("plan", *words) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert what in first
    assert remedy in first + second


def test_without_simpy_the_extra_is_named(tmp_path: Path) -> None:
    done = run_command("plan", "cartpole", code=BLOCK.format(name="simpy"), cwd=tmp_path)
    assert done.returncode == 2
    assert 'pip install "manyhands[plan]"' in done.stderr


def test_sites_are_this_machine_and_what_was_asked_for() -> None:
    here = Site(machine.cores())
    assert command.sites_of({}) == [here]
    assert command.sites_of({"cores": 64}) == [here, Site(64)]
    assert command.sites_of({"nodes": 8, "cores": 16}) == [here, Site(16, 8, 10.0)]
    assert command.sites_of({"nodes": 2, "gbps": 1.0}) == [here, Site(here.cores, 2, 1.0)]


def test_numbers_of_workers_are_sorted() -> None:
    assert command.counts_of("") == ()
    assert command.counts_of("8,1 8") == (1, 8)


@pytest.mark.parametrize(
    ("recipe", "names"),
    [("dqn", {"hogwild", "lock", "parameter_server", "allreduce", "gossip", "actors"}),
     ("paac", {"hogwild", "lock", "parameter_server", "allreduce", "gossip"}),
     ("apex", {"actors"}), ("impala", {"actors"})],
)  # fmt: skip
def test_every_way_that_fits_the_recipe_is_tried(recipe: str, names: set[str]) -> None:
    found = ways.of("cartpole", {"run": {"recipe": recipe}})
    assert {one.way.name for one in found} >= names
    assert ("actors" in names) == any(one.way.apart for one in found)


def test_a_plan_to_measure_learns_at_once_and_explores_little() -> None:
    (one,) = ways.of("lunarlander", {"run": {"strategy": "lock"}})
    plan = one.plan(2)
    assert (plan.top.strategy, plan.top.workers, plan.backend) == ("lock", 2, "processes")
    demand = plan.algorithm.replay_demand
    assert demand is not None
    assert demand.warmup_steps == 4 * demand.batch_size
    assert plan.sections["dqn"].epsilon_decay_steps == 0


COSTS = Costs(
    lanes=4, act_s=0.001, step_s=0.001, wait_s=0.0, record_s=0.0, draw_s=0.001, gradient_s=0.006,
    optimizer_s=0.001, updates_per_turn=1.0, parameters=1_000_000, cores=2,
    sharing={"gossip": SharingCosts(push_s=0.002), "hogwild": SharingCosts(push_s=0.001)},
)  # fmt: skip
WAYS = [
    Way("gossip", Sharing(locks="pair", sends="pair")),
    Way("hogwild", Sharing()),
    Way("actors", Sharing(), learners=1),
]


def test_the_report_says_the_sentence() -> None:
    here, nodes = Site(2), Site(16, nodes=8, gbps=100.0)
    sites = [forecast.curves(WAYS, COSTS, site, (1, 2, 300)) for site in (here, nodes)]
    said = report.sentence(COSTS, sites)
    assert "best on this machine: 2 workers hogwild, 2.0x" in said
    assert "8 nodes of 16 cores at 100 Gb/s: " in said
    assert "workers gossip, " in said
    assert re.search(r"at staleness [01]\.\d$", said)
    assert "learner-bound beyond" in said
    text = report.text(COSTS, sites, "a title")
    assert text.splitlines()[-1] == said
    table = text.split("8 nodes of 16 cores")[1].split("limit")[0]
    assert "gossip" in table
    assert "hogwild" not in table  # it works on one node only
    assert "~ by formula" in text


def test_the_json_has_what_the_text_has() -> None:
    sites = [forecast.curves(WAYS, COSTS, Site(2), (1, 2))]
    told = json.loads(json.dumps(report.as_json(COSTS, sites, "a title")))
    assert from_json(told["costs"]) == COSTS
    (site,) = told["sites"]
    assert site["site"]["cores"] == 2
    assert set(site["ways"]) == {"gossip", "hogwild", "actors"}
    hogwild = site["ways"]["hogwild"]
    assert hogwild["best"] == 2
    assert set(hogwild["workers"]) == {"1", "2"}
    fields = {"agent_steps_per_s", "updates_per_s", "staleness", "busy", "waiting", "simulated"}
    assert set(hogwild["workers"]["2"]) == fields


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    from manyhands.planning import drawing

    sites = [forecast.curves(WAYS, COSTS, site, (1, 2)) for site in (Site(2), Site(4))]
    path = drawing.draw(COSTS, sites, "a title", tmp_path / "curves.png")
    assert path.read_bytes().startswith(b"\x89PNG")


# --- train --workers auto -------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--workers", "auto"], ["--workers=auto"]])
def test_auto_is_taken_from_the_words(words: list[str]) -> None:
    assert auto.taken(["cartpole", *words, "--seed", "3"]) == (["cartpole", "--seed", "3"], True)
    assert auto.taken(["cartpole", "--workers", "3"]) == (["cartpole", "--workers", "3"], False)


def test_auto_and_a_number_are_refused() -> None:
    with pytest.raises(BadRequest, match="--workers auto and --actors"):
        auto.advised("cartpole", {"run": {"actors": 2}}, {})


# --- For real -------------------------------------------------------------------------------------


def test_plan_measures_and_predicts(capsys: Capture) -> None:
    words = ["--strategy", "parameter_server", "--nodes", "2", "--workers", "1,2,300"]
    assert call("plan", "cartpole", "--json", *words) == 0
    told = json.loads(capsys.readouterr().out)
    costs = from_json(told["costs"])
    assert costs.lanes == 8
    assert costs.updates_per_turn == 2
    assert costs.wait_s == 0
    assert min(costs.act_s, costs.step_s, costs.draw_s, costs.gradient_s) > 1e-6
    assert costs.sharing["parameter_server"].serve_s > 0
    here, nodes = told["sites"]
    assert here["site"]["nodes"] == 1
    assert nodes["site"]["nodes"] == 2
    found = here["ways"]["parameter_server"]["workers"]
    one = found["1"]["agent_steps_per_s"]
    assert 0.2 < one / told["one_worker_agent_steps_per_s"] < 1.2
    assert found["2"]["staleness"] == pytest.approx(1, abs=0.3)
    assert "best on this machine" in told["advice"]


def test_train_takes_the_advice_and_resume_keeps_it(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    small = ["--steps", "400", "--strategy", "hogwild", "--workers", "auto"]
    assert call("train", "cartpole", *small, "--out", out) == 0
    assert "--workers auto: " in capsys.readouterr().err
    recorded = json.loads((out / "config.json").read_text())["config"]["run"]
    assert recorded["workers"] >= 1
    again = ["--steps", "600", "--strategy", "hogwild", "--workers", "auto"]
    assert call("train", "cartpole", *again, "--out", out, "--resume-if-exists") == 0
    assert "--workers auto: " not in capsys.readouterr().err
