"""Films: what is seen is what was played, and the files can be read again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

import manyhands as mh
from manyhands import envs
from manyhands.envs.snake import SNAKE
from manyhands.runs import evaluate, policies, snapshots
from manyhands.types import EnvSpec
from manyhands.viewing import video
from manyhands.viewing.play import Stage, as_picture
from support.command_line import BLOCK, SMALL, assert_told, call, command, contents

Capture = pytest.CaptureFixture[str]
CARTPOLE_PICTURES_PER_S = 50


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("film") / "run"
    options = {**SMALL, "steps": 4000, "evaluation": {"period_steps": 2000, "episodes": 2}}
    options["dqn"] = {**options["dqn"], "steps_per_update": 10}
    return mh.train("cartpole", out=path, **options).path


@pytest.fixture
def run(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained, tmp_path / "run")


def decoded(file: Path) -> list[Image.Image]:
    with av.open(str(file)) as container:
        return [frame.to_image() for frame in container.decode(video=0)]


def gif_duration_s(file: Path) -> float:
    with Image.open(file) as picture:
        total = 0
        for number in range(getattr(picture, "n_frames", 1)):
            picture.seek(number)
            total += picture.info["duration"]
    return total / 1000


# --- What is seen is what was played ------------------------------------------------------------


@pytest.mark.parametrize("id", ["CartPole-v1", "LunarLander-v3", "breakout", SNAKE])
def test_a_filmed_environment_is_the_one_trained_in(id: str) -> None:
    config = envs.Config(id=id, sticky=0.25)
    plain: Any
    filmed: Any
    hows: list[dict[str, Any]] = [{}, {"training": False, "render_mode": "rgb_array"}]
    plain, filmed = (
        envs.make(config, lanes=1, seed=np.random.SeedSequence(7), threads=1, **how) for how in hows
    )
    rng = np.random.default_rng(1)
    assert np.array_equal(plain.reset(), filmed.reset())
    looks, ends = set(), 0
    for _ in range(400):
        action = rng.integers(plain.spec.actions, size=1)
        one, two = plain.step(action), filmed.step(action)
        for name in ("observation", "reward", "ended", "last"):
            assert np.array_equal(getattr(one, name), getattr(two, name)), name
        picture = filmed.render_lane(0)
        assert picture.dtype == np.uint8
        assert picture.ndim == 3
        looks.add(picture.tobytes())
        ends += int(one.ended[0])
    assert len(looks) > 100
    assert ends
    plain.close()
    filmed.close()


def test_the_colour_picture_is_of_the_moment_the_policy_sees() -> None:
    config = envs.Config(id="breakout", sticky=0.25)
    seed = np.random.SeedSequence(3)
    env: Any = envs.make(config, lanes=1, seed=seed, threads=1, render_mode="rgb_array")
    env.reset()
    rng = np.random.default_rng(1)
    for _ in range(200):
        step = env.step(rng.integers(4, size=1))
        grey = Image.fromarray(env.render_lane(0)).convert("L")
        small = np.asarray(grey.resize((84, 84), Image.Resampling.BOX), np.int64)
        newest = (step.last if step.ended[0] else step.observation)[0, -1]
        # The paddle and the ball are bright: out of step they would differ by a hundred and more.
        assert np.abs(small - newest).max() < 60
        assert np.abs(small - newest).mean() < 3
    env.close()


def test_the_end_of_an_episode_is_seen() -> None:
    """CartPole ends with the pole at an angle, and begins with it upright."""
    env: Any = envs.make(
        envs.Config(id="CartPole-v1"),
        lanes=1,
        seed=np.random.SeedSequence(1),
        threads=1,
        render_mode="rgb_array",
    )
    env.reset()
    first, before = env.render_lane(0).copy(), None
    while not (step := env.step(np.ones(1, np.int64))).ended[0]:
        before = env.render_lane(0).copy()
    last = env.render_lane(0)
    assert before is not None
    assert not np.array_equal(last, before)
    assert np.abs(last.astype(int) - first).sum() > np.abs(last.astype(int) - before).sum()
    assert abs(step.last[0, 2]) > 0.2
    env.close()


def test_an_observation_as_a_picture() -> None:
    stacked = EnvSpec("x", 1, (8, 8), "uint8", 4, 2)
    seen = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    shown = as_picture(seen, stacked)
    assert shown is not None
    assert shown.shape == (8, 8, 3)
    assert np.array_equal(shown[..., 1], seen[-1])
    assert as_picture(np.zeros(4, np.float32), EnvSpec("x", 1, (4,), "float32", 1, 2)) is None


def test_the_score_of_a_moment_is_the_return_so_far(run: Path) -> None:
    policy = policies.load(run)
    stage = Stage(policy, seed=5, epsilon=0.1, render_mode=None)
    moments = list(stage.moments(episodes=2, longest=10_000))
    result = evaluate.evaluate(policy.plan, policy.algorithm, episodes=1, epsilon=0.1, seed=5)
    ends = [number for number, moment in enumerate(moments) if moment.over]
    assert moments[ends[0]].score == result.scores[0] == ends[0]  # a point a step
    assert [moment.score for moment in moments[: ends[0] + 1]] == list(range(ends[0] + 1))
    assert len(ends) == 2
    assert moments[ends[0] + 1].score == 1
    stage.close()


# --- What is drawn ------------------------------------------------------------------------------


def test_the_score_drawn() -> None:
    texts = [video.caption(score) for score in (0, 12.0, -3.25, 1234.5)]
    assert texts == ["score 0", "score 12", "score -3.2", "score 1,234.5"]
    picture = np.full((40, 300, 3), 200, np.uint8)
    drawn = video.panel(picture, "best", 12.0, within=(300, 40))
    assert drawn.size == (300, 40 + video.BAND)
    strip = np.asarray(drawn)[40:]
    assert np.array_equal(strip, np.asarray(video.band(300, "best", "score 12")))
    assert not np.array_equal(strip, np.asarray(video.band(300, "best", "score 13")))
    assert np.array_equal(np.asarray(drawn)[:40], picture)


@pytest.mark.parametrize(
    ("shape", "within", "size"),
    [((210, 160), (640, 480), (320, 420)), ((400, 600), (640, 480), (600, 400)),
     ((400, 600), (320, 480), (320, 213)), ((8, 8), (640, 480), (480, 480))],
)  # fmt: skip
def test_as_large_as_fits(shape: Any, within: Any, size: Any) -> None:
    drawn = video.panel(np.zeros((*shape, 3), np.uint8), "x", 0.0, within=within)
    assert drawn.size == (size[0], size[1] + video.BAND)


def test_side_by_side_is_even() -> None:
    panels = [Image.new("RGB", (31, 21), "white"), Image.new("RGB", (31, 25), "white")]
    assert video.beside(panels).shape == (26, 66, 3)
    assert video.beside(panels[:1]).shape == (22, 32, 3)


# --- Files --------------------------------------------------------------------------------------


def test_a_film_of_one(run: Path, capsys: Capture) -> None:
    assert call("evaluate", run, "--best", "--episodes=1", "--seed=3", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert call("record", run, "--best", "--seed=3") == 0
    told = capsys.readouterr().out.splitlines()
    score, step = int(result["scores"][0]), result["agent_steps"]
    assert told[0] == f"best, step {step:,}: score {score}"
    mp4, gif = map(Path, told[1:])
    assert {mp4.name, gif.name} == {f"best-{step}.mp4", f"best-{step}.gif"}
    assert {path.name for path in (run / "videos").iterdir()} == {mp4.name, gif.name}
    pictures = decoded(mp4)
    assert len(pictures) == 1 + score + CARTPOLE_PICTURES_PER_S  # its end is shown for a second
    assert pictures[0].size == (600, 400 + video.BAND)
    seconds = len(pictures) / CARTPOLE_PICTURES_PER_S
    assert gif_duration_s(gif) == pytest.approx(seconds, abs=0.1)
    shown = np.asarray(pictures[-1], np.int64)[400:]
    wanted = np.asarray(video.band(600, f"best, step {step:,}", video.caption(score)), np.int64)
    assert np.abs(shown - wanted).mean() < 6  # the codec is not exact


def test_through_time(run: Path, capsys: Capture) -> None:
    assert snapshots.steps(run) == [0, 1000, 2000, 4000]
    assert call("record", run, "--through-time", "--out=film.gif", "--seconds=0.4") == 0
    told = capsys.readouterr().out.splitlines()
    labels = [line.rpartition(":")[0] for line in told[:-1]]
    assert labels[:3] == ["untrained", "25 %, step 1,000", "50 %, step 2,000"]
    assert labels[3].startswith("best, step ")
    assert told[-1] == "film.gif"
    with Image.open("film.gif") as picture:
        assert picture.size[0] == video.GIF_WIDTH  # four panels of 320, shrunk
    assert not (run / "videos").exists()


def test_the_untrained_one_is_the_runs_own_beginning(run: Path) -> None:
    fresh = mh.Run("cartpole", out="fresh", **SMALL)
    found = snapshots.nearest(run, 0)
    assert found is not None
    for name, weights in fresh.worker.model.named().items():
        assert np.array_equal(found.weights[name], weights), name


def test_without_snapshots_and_without_best(run: Path, capsys: Capture) -> None:
    shutil.rmtree(run / "best")
    assert call("record", run, "--through-time", "--seconds=0.1", "--out=a.gif") == 0
    assert "newest, step 4,000: " in capsys.readouterr().out
    shutil.rmtree(run / "snapshots")
    assert call("record", run, "--through-time") == 2
    assert_told(capsys.readouterr().err, "no snapshots", "without --through-time")


def test_what_has_no_picture(tmp_path: Path, capsys: Capture) -> None:
    run = mh.train("toy/identity", out=tmp_path / "run", **SMALL).path
    before = contents(run)
    assert call("record", run) == 2
    assert_told(capsys.readouterr().err, "toy/identity", "no pictures")
    assert contents(run) == before


def test_an_out_that_cannot_be_written(run: Path, capsys: Capture) -> None:
    assert call("record", run, "--seconds=0.1", "--out=run/config.json/film.mp4") == 1
    assert_told(capsys.readouterr().err, "film.mp4", "--out")


@pytest.mark.parametrize(
    ("words", "module", "extra"),
    [(["record", "run"], "av", "video"), (["record", "run"], "PIL", "video"),
     (["record", "run"], "pygame", "video"), (["plot", "run"], "matplotlib", "plots")],
)  # fmt: skip
@pytest.mark.usefixtures("run")
def test_a_missing_extra_is_named(words: list[str], module: str, extra: str) -> None:
    done = command(*words, code=BLOCK.format(name=module))
    assert done.returncode == 2
    assert_told(done.stderr, f'pip install "manyhands[{extra}]"', module)


# --- Snapshots ----------------------------------------------------------------------------------


def test_when_snapshots_are_due() -> None:
    due = [snapshots.next_due(steps) for steps in (0, 999, 1000, 1001, 2000, 5000, 1_000_000)]
    assert due == [1000, 1000, 2000, 2000, 4000, 8000, 1_024_000]


def kept(folder: Path, end: int) -> Iterator[list[int]]:
    step = 0
    while step <= end:
        state: dict[str, Any] = {"spec": {}}
        snapshots.save(folder, step, weights={"w": np.full(1, step, np.float32)}, state=state)
        yield snapshots.steps(folder)
        step = snapshots.next_due(step)


def test_few_are_kept_and_the_right_ones(tmp_path: Path) -> None:
    for steps in kept(tmp_path, 600_000):
        now = steps[-1]
        every = [0] + [1000 * 2**k for k in range(12) if 1000 * 2**k <= now]
        assert len(steps) <= 5
        for end in (now, now + 1, 2 * now - 1):  # wherever it ends before the next
            for wanted in (0, end / 4, end / 2):
                best = min(abs(there - wanted) for there in every)
                found = snapshots.nearest(tmp_path, wanted)
                assert found is not None
                assert abs(found.step - wanted) == best


def test_a_history_that_was_left_is_forgotten(tmp_path: Path) -> None:
    list(kept(tmp_path, 9000))
    snapshots.save(tmp_path, 4000, weights={"w": np.zeros(1, np.float32)}, state={"spec": {}})
    assert snapshots.steps(tmp_path) == [0, 1000, 2000, 4000]


# --- Watching -----------------------------------------------------------------------------------


def test_in_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    run = mh.train("FrozenLake-v1", out=tmp_path / "run", **SMALL).path
    assert call("watch", run, "--episodes=2", "--epsilon=1") == 0
    told = capsys.readouterr().out
    assert "SFFF" in told.replace("\x1b[41mS\x1b[0m", "S")
    assert told.count("score ") > 4
    assert not (run / "videos").exists()


def test_snake_in_the_terminal(tmp_path: Path, capsys: Capture) -> None:
    options = {name: value for name, value in SMALL.items() if name != "network"}
    run = mh.train("snake", out=tmp_path / "run", **options).path
    assert call("watch", run, "--seconds=1") == 0
    told = capsys.readouterr().out
    assert told.startswith("##########\n")
    assert "@" in told
    assert told.splitlines()[-1].startswith("score ")


def test_without_a_screen(run: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert call("watch", run, "--seconds=0.2") == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(run / "videos" / "watched.gif")
    assert gif_duration_s(run / "videos" / "watched.gif") > 1
