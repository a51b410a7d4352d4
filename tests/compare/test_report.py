"""What a comparison says: its numbers by a slow reference, its figures, its page in a browser."""

from __future__ import annotations

import json
import re
import shutil
import statistics as slow
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from manyhands.compare import (
    command,
    figures,
    findings,
    folder,
    gallery,
    groups,
    origin,
    report,
    results,
    study,
    tables,
)
from manyhands.compare.bars import shares
from manyhands.viewing.plot import headless_pyplot
from support import made_up_runs

RECIPES = "dqn,hogwild,locked,a3c"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


def asked(**own: Any) -> study.Study:
    plain = {"recipes": RECIPES, "workers": "1,2,4", "seeds": "5", "minutes": 8.0}
    return study.read("cartpole", {**plain, **own}, {})


def compared(out: Path, which: study.Study, **made: Any) -> groups.Comparison:
    cells = made_up_runs.write(out, which, **made)
    return groups.compared(which, results.read(folder.Folder(out), cells), cores=2)


# --- A slow reference ---------------------------------------------------------------------------


def iqm(values: list[float]) -> float:
    ordered = sorted(values)
    drop = len(ordered) // 4
    return slow.fmean(ordered[drop : len(ordered) - drop])


def raw(out: Path, name: str, workers: int) -> list[dict[str, Any]]:
    """The runs of a group, from their own files."""
    runs = sorted((out / "cells").glob(f"{name}-w{workers}-s*"))
    return [json.loads((run / "summary.json").read_text()) for run in runs]


def reference(out: Path, name: str, workers: int) -> dict[str, float]:
    runs = raw(out, name, workers)
    ends = [run["solved"] or run for run in runs]
    return {
        "episodes_to_solve": iqm([end["episodes"] for end in ends]),
        "seconds_to_solve": iqm([end["wall_s"] for end in ends]),
        "agent_steps_to_solve": iqm([end["agent_steps"] for end in ends]),
        "seconds_per_episode": iqm([end["wall_s"] / end["episodes"] for end in ends]),
        "updates_per_s": iqm([run["updates_per_s"] for run in runs]),
        "staleness_mean": iqm([run["staleness"]["mean"] for run in runs]),
        "sharing": iqm([_sharing(run["time_split"]["worker"]) for run in runs]),
    }


def _sharing(parts: dict[str, float]) -> float:
    return (parts["pull"] + parts["push"]) / sum(parts.values())


def drawn_points(figure: figures.Figure) -> dict[str, list[float]]:
    """What matplotlib was told to draw: the marks of each recipe, from left to right."""
    pyplot = headless_pyplot()
    with pyplot.rc_context(figures.STYLE):
        made = figure.draw(pyplot)
        marks = [line for line in made.axes[0].lines if line.get_marker() not in ("None", "")]
        found: dict[str, list[float]] = {}
        name = ""
        for mark in marks:
            label = str(mark.get_label())
            if not label.startswith("_"):  # what the legend shows, without a point
                name = label
                found[name] = []
            else:
                found[name].append(float(mark.get_ydata()[0]))
        pyplot.close(made)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_figures_show_what_the_raw_runs_say(seed: int, tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(), seed=seed)
    pictures = {figure.name: figure for figure in gallery.figures(comparison)}
    for measure in reference(tmp_path, "hogwild", 2):
        if measure not in pictures:
            continue
        points = drawn_points(pictures[measure])
        for name in RECIPES.split(","):
            counts = [1] if name == "dqn" else [1, 2, 4]
            expected = [reference(tmp_path, name, count)[measure] for count in counts]
            assert points[name] == pytest.approx(expected)


def test_measures_match_the_reference_also_with_lost_seeds(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(), lost=0.4)
    for (name, workers), group in comparison.groups.items():
        if group.refusal:
            assert name == "dqn"
            assert not group.measures
            continue
        for measure, value in reference(tmp_path, name, workers).items():
            assert group.measures[measure].value == pytest.approx(value)
        all_solved = all(run["solved"] for run in raw(tmp_path, name, workers))
        assert (group.measures["seconds_to_solve"].bound == "") == all_solved
        assert group.solved == sum(bool(run["solved"]) for run in raw(tmp_path, name, workers))


def test_speed_up_is_over_the_serial_run_of_that_algorithm(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(), lost=0.0)
    assert comparison.baselines["hogwild"] == ("dqn", 1)
    assert comparison.baselines["a3c"] == ("a3c", 1)  # no serial run of a2c is there
    told = dict(findings.baseline_sentences(comparison))
    assert told["hogwild"] == "dqn with one worker"
    assert "its own" in told["a3c"]
    for name, base in (("hogwild", "dqn"), ("locked", "dqn"), ("a3c", "a3c")):
        serial = reference(tmp_path, base, 1)["seconds_to_solve"]
        for count in (2, 4):
            speed_up = serial / reference(tmp_path, name, count)["seconds_to_solve"]
            measures = comparison.groups[name, count].measures
            assert measures["speed_up"].value == pytest.approx(speed_up)
            assert measures["efficiency"].value == pytest.approx(speed_up / count)


def test_among_serial_runs_the_most_alike_is_the_baseline(tmp_path: Path) -> None:
    which = asked(recipes="prioritized-dqn,double-dqn,dqn,hogwild", seeds="1,", workers="1")
    comparison = compared(tmp_path, which, lost=0.0)
    assert comparison.baselines["hogwild"] == ("dqn", 1)


def test_time_shares_add_the_seeds_up(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked())
    found = shares(comparison.groups["locked", 2])["worker"]
    runs = [run["time_split"]["worker"] for run in raw(tmp_path, "locked", 2)]
    whole = sum(sum(parts.values()) for parts in runs)
    for part, share in found.items():
        assert share == pytest.approx(sum(parts[part] for parts in runs) / whole)
    assert sum(found.values()) == pytest.approx(1)


def test_curves_are_means_over_seeds_of_what_was_reported(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(seeds="3"))
    figure = next(f for f in gallery.figures(comparison) if f.name == "return_by_time")
    pyplot = headless_pyplot()
    made = figure.draw(pyplot)
    panel = next(axes for axes in made.axes if axes.get_title() == "2 workers")
    line = next(line for line in panel.lines if line.get_label() == "hogwild")
    runs = sorted((tmp_path / "cells").glob("hogwild-w2-s*"))
    texts = [(run / "metrics.jsonl").read_text() for run in runs]
    curves = [[json.loads(row) for row in text.splitlines()] for text in texts]
    for at, value in zip(line.get_xdata(), line.get_ydata(), strict=True):
        newest = [
            [row["charts/return_mean_100"] for row in rows if row["wall_s"] <= at][-1]
            for rows in curves
        ]
        assert value == pytest.approx(slow.fmean(newest))
    pyplot.close(made)


# --- What is claimed ----------------------------------------------------------------------------


def test_one_seed_claims_nothing(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(seeds="1"), lost=0.0)
    told = " ".join(findings.findings(comparison))
    assert "One seed" in told
    assert "not a claim" in told
    assert all(e.low is None for g in comparison.groups.values() for e in g.measures.values())


def test_an_unsolved_recipe_is_not_ruled_out(tmp_path: Path) -> None:
    """A lost run with few episodes might have needed the fewest of all."""
    comparison = compared(tmp_path, asked(seeds="3"), lost=0.3)
    measure = "episodes_to_solve"
    whole = [g for g in comparison.have(measure) if not g.measures[measure].bound]
    best = min(whole, key=lambda group: group.measures[measure].value)
    lost = [g for g in comparison.have(measure) if g.measures[measure].bound]
    near = [g for g in lost if g.measures[measure].value <= (best.measures[measure].high or 0)]
    told = next(one for one in findings.findings(comparison) if one.startswith("Fewest"))
    assert near
    assert "not ruled out" in told


def test_no_mark_is_cut_off_at_the_edge(tmp_path: Path) -> None:
    """A value of 0 lies on it."""
    pyplot = headless_pyplot()
    comparison = compared(tmp_path, asked())
    made = next(f for f in gallery.figures(comparison) if f.name == "speed_up").draw(pyplot)
    marks = [line for line in made.axes[0].lines if line.get_marker() not in ("None", "", None)]
    pyplot.close(made)
    assert marks
    assert not any(mark.get_clip_on() for mark in marks)


# --- The page -----------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["solve", "throughput"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp(request.param)
    which = asked(metric=request.param, seeds="3")
    cells = made_up_runs.write(out, which)
    place = folder.Folder(out)
    place.clear(cells[-1])  # one that has not run yet
    reason = 'a <b>sad</b> & "long" reason (exit code 1)'
    place.write_outcome(cells[-2], folder.FAILED, reason, exit=1)
    command.write(which, cells, place)
    return out


def test_the_page_is_self_contained_and_names_the_machine(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', page)
    assert "<script" not in page
    assert "url(" not in page
    for fact in ("machine", "cores", "versions", "torch", "commit", "seeds", "command"):
        assert fact in page
    assert "a &lt;b&gt;sad&lt;/b&gt; &amp;" in page
    assert "‡" not in re.sub(r"<p>.*?</p>", "", page, flags=re.S)  # all of one commit
    assert "†" in page  # four workers on two cores
    assert page.count("<figure") == len(list((written / "figures").glob("*.svg")))
    assert all(len(alt) > 40 for alt in re.findall(r'alt="([^"]*)"', page))


def test_every_table_says_where_it_is_from(written: Path) -> None:
    page = (written / "report.html").read_text()
    captions = re.findall(r"<caption>(.*?)</caption>", page)
    assert len(captions) == page.count("<table") - 1  # the table of facts has them as rows
    for caption in captions:
        assert "Seeds: 1, 2, 3. Commit: 0000000. Machine: " in caption
        assert "Command: manyhands compare of made-up runs." in caption


def test_a_table_without_an_origin_says_so(tmp_path: Path) -> None:
    comparison = compared(tmp_path, asked(seeds="1"), lost=0.0)
    for result in comparison.results:
        result.row["commit"] = ""
    told = origin.sentence(comparison, [])
    assert told == "Seeds: 1. Commit: unknown. Machine: unknown. Command: unknown."


def test_cells_of_another_commit_are_marked(tmp_path: Path) -> None:
    which = asked(seeds="3")
    cells = made_up_runs.write(tmp_path, which)
    place = folder.Folder(tmp_path)
    changed = next(cell for cell in cells if cell.name == "hogwild-w2-s3")
    path = place.run(changed) / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "f" * 40}))
    place.clear(next(cell for cell in cells if cell.name == "locked-w4-s1"))
    comparison = groups.compared(which, results.read(place, cells), cores=2)
    page = report.page(comparison, [], folder.invocations(place))
    marked = re.findall(r'title="measured at another commit: seed (\d)">‡', page)
    assert marked == ["3"] * 3  # outcomes, numbers, bottlenecks
    assert "Commit: 0000000; ‡ fffffff." in page
    assert "1 cell(s), marked ‡" in page
    assert "Groups have different seeds" in page
    rows = {(row["name"], row["workers"]): row for row in tables.group_rows(comparison)}
    assert rows["hogwild", 2]["other_commit"]
    assert rows["hogwild", 2]["commits"] == "0" * 40 + " " + "f" * 40
    assert not rows["locked", 4]["other_commit"]
    assert rows["locked", 4]["seed_list"] == "2 3"


def test_figures_are_there_twice_and_are_not_empty(written: Path) -> None:
    pngs = sorted((written / "figures").glob("*.png"))
    assert len(pngs) >= 6
    for png in pngs:
        assert png.with_suffix(".svg").is_file()
        assert np.asarray(Image.open(png).convert("L")).std() > 5


LOOK = """<script>addEventListener("load", () => {
  const images = [...document.images];
  const seen = images.filter(i => i.complete && i.naturalWidth > 100).length;
  const wide = document.documentElement.scrollWidth <= innerWidth;
  document.title = `seen ${seen} of ${images.length}, fits ${wide}`;
});</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1280, 500])
def test_the_page_opens_in_a_browser(written: Path, width: int, tmp_path: Path) -> None:
    """No error in its console, every figure seen, and no wider than the window."""
    probe = tmp_path / "probe.html"
    probe.write_text((written / "report.html").read_text() + LOOK)
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--enable-logging=stderr", "--v=0", f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},900", "--virtual-time-budget=5000", "--dump-dom",
            f"file://{probe}",
        ],
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    assert "CONSOLE" not in done.stderr, done.stderr
    figure_count = len(list((written / "figures").glob("*.svg")))
    assert f"<title>seen {figure_count} of {figure_count}, fits true</title>" in done.stdout
