"""The gymnasium room against a plain gymnasium loop, and its failures."""

import re
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from manyhands.envs import Config, make, solved_threshold
from manyhands.types import BadRequest, Failure


class Scripted(gymnasium.Env):
    """Counts its steps and shows the count; what it returns can be set from outside."""

    def __init__(
        self,
        observation_space: Any = None,
        action_space: Any = None,
        show: Any = None,
        length: int = 5,
    ) -> None:
        self.observation_space = observation_space or spaces.Box(-9, 9, (2,), np.float64)
        self.action_space = action_space or spaces.Discrete(2)
        self.show, self.length = show, length
        self.heard: list[Any] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        self.steps, self.seed = 0, seed
        return self._seen(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        self.heard.append(action)
        return self._seen(), 1.0, self.steps == self.length, False, {}

    def _seen(self) -> Any:
        return self.show(self) if self.show else np.full(2, self.steps, np.float64)


def made(id: str = "", *, lanes: int = 1, factory: Any = None, seed: int = 1) -> Any:
    seeds = np.random.SeedSequence(seed)
    return make(Config(id=id), lanes=lanes, seed=seeds, threads=1, factory=factory)


def begin_and_play(env: Any, steps: int) -> None:
    env.reset()
    for _ in range(steps):
        env.step(np.zeros(env.spec.lanes, np.int64))


def plain_loop(id: str, actions: Any, *, lanes: int) -> Any:
    """One environment after the other, the seeds in the order the lanes would draw them."""
    rng = np.random.default_rng(np.random.SeedSequence(1))
    envs = [gymnasium.make(id) for _ in range(lanes)]
    firsts = [
        env.reset(seed=int(seed))[0]
        for env, seed in zip(envs, rng.integers(2**31, size=lanes), strict=True)
    ]
    rows = []
    for chosen in actions:
        row = [env.step(int(action)) for env, action in zip(envs, chosen, strict=True)]
        ended = [terminated or truncated for _, _, terminated, truncated, _ in row]
        seeds = iter(rng.integers(2**31, size=sum(ended)))
        nexts = [
            envs[lane].reset(seed=int(next(seeds)))[0] if over else row[lane][0]
            for lane, over in enumerate(ended)
        ]
        rows.append((nexts, row, ended))
    return firsts, rows


@pytest.mark.parametrize("id", ["CartPole-v1", "LunarLander-v3"])
def test_equals_a_plain_loop(id: str) -> None:
    env = made(id, lanes=3)
    actions = np.random.default_rng(0).integers(env.spec.actions, size=(250, 3))
    firsts, rows = plain_loop(id, actions, lanes=3)
    assert np.array_equal(env.reset(), np.array(firsts, np.float32))
    for chosen, (nexts, row, ended) in zip(actions, rows, strict=True):
        step = env.step(chosen)
        lasts = [row[lane][0] for lane in range(3) if ended[lane]]
        assert np.array_equal(step.observation, np.array(nexts, np.float32))
        assert np.array_equal(step.reward, np.array([r for _, r, *_ in row], np.float32))
        assert step.discount.tolist() == [
            0.0 if terminated else 1.0 for _, _, terminated, *_ in row
        ]
        assert step.ended.tolist() == ended
        assert np.array_equal(step.last, np.array(lasts, np.float32).reshape(step.last.shape))
    assert any(any(ended) for _, _, ended in rows)


def test_a_time_limit_ends_the_episode_but_bootstraps() -> None:
    env = made("CartPole-v1")
    seen = env.reset()
    steps: list[Any] = []
    while not (steps and steps[-1].ended[0]):
        angle, spin = seen[0, 2], seen[0, 3]
        steps.append(env.step(np.array([int(angle + spin > 0)])))
        seen = steps[-1].observation
    assert len(steps) == 500
    assert steps[-1].discount.tolist() == [1.0]
    assert not np.array_equal(steps[-1].last[0], steps[-1].observation[0])


def test_images_come_out_with_channels_first() -> None:
    picture = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
    space = spaces.Box(0, 255, (4, 5, 3), np.uint8)
    env = made(factory=lambda: Scripted(space, show=lambda _: picture))
    assert (env.spec.frame_shape, env.spec.frame_dtype, env.spec.stack) == ((3, 4, 5), "uint8", 1)
    assert np.array_equal(env.reset()[0], np.moveaxis(picture, -1, 0))


def test_images_already_channels_first_stay_so() -> None:
    picture = np.arange(3 * 4 * 5, dtype=np.uint8).reshape(3, 4, 5)
    space = spaces.Box(0, 255, (3, 4, 5), np.uint8)
    env = made(factory=lambda: Scripted(space, show=lambda _: picture))
    assert np.array_equal(env.reset()[0], picture)


def test_flat_images_get_a_channel() -> None:
    picture = np.arange(20, dtype=np.uint8).reshape(4, 5)
    space = spaces.Box(0, 255, (4, 5), np.uint8)
    env = made(factory=lambda: Scripted(space, show=lambda _: picture))
    assert env.spec.frame_shape == (1, 4, 5)
    assert np.array_equal(env.reset(), picture[None, None])


def test_discrete_observations_are_whole_numbers() -> None:
    space = spaces.Discrete(4, start=2)
    env = made(factory=lambda: Scripted(space, show=lambda env: np.int64(2 + env.steps % 4)))
    assert env.reset().tolist() == [[0]]
    assert env.step(np.array([0])).observation.tolist() == [[1]]
    assert (env.spec.frame_dtype, env.spec.counts, env.spec.input_shape) == ("int32", (4,), (4,))


def test_actions_that_do_not_start_at_nought() -> None:
    inner = Scripted(action_space=spaces.Discrete(3, start=-1))
    env = made(factory=lambda: inner)
    env.reset()
    env.step(np.array([0])), env.step(np.array([2]))
    assert (env.spec.actions, inner.heard) == (3, [-1, 1])
    env.restore(env.state())
    assert inner.heard == [-1, 1, -1, 1]


def test_every_episode_has_a_seed_of_its_own() -> None:
    inner = [Scripted(length=1), Scripted(length=1)]
    left = iter(inner)
    env = made(lanes=2, factory=lambda: next(left))
    env.reset()
    seeds: list[list[Any]] = [[one.seed for one in inner]]
    for _ in range(5):
        env.step(np.zeros(2, np.int64))
        seeds.append([one.seed for one in inner])
    assert len(set(np.ravel(seeds).tolist())) == 12
    assert all(0 <= seed < 2**31 for seed in np.ravel(seeds))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["reward", "observation", "first observation"])
def test_numbers_that_are_none_are_told_with_where(bad: float, where: str) -> None:
    class Bad(Scripted):
        def step(self, action: Any) -> Any:
            seen, reward, *rest = super().step(action)
            hit = self.steps == 3
            return (
                seen * (bad if hit and where == "observation" else 1),
                (bad if hit and where == "reward" else reward),
                *rest,
            )

        def reset(self, **kwargs: Any) -> Any:
            seen, info = super().reset(**kwargs)
            return seen + (bad if where == "first observation" else 0), info

    inner = [Scripted(), Bad(), Scripted()]
    left = iter(inner)
    env = made("mine", lanes=2, factory=lambda: next(left))
    if where == "first observation":
        with pytest.raises(Failure) as caught:
            env.reset()
        told, step = caught.value.what, 0
        assert f"seed={inner[1].seed}" in caught.value.remedy
    else:
        (told,), step = (found.cause for found in broken_at(env, 3)), 3
    what = f"the {where.split()[-1]} is NaN or infinite in lane 1, at step {step} of"
    assert told == f"mine: {what} the episode with seed {inner[1].seed}."


def broken_at(env: Any, step: Any) -> Any:
    """What broke at that step, and before it nothing."""
    env.reset()
    played = [env.step(np.zeros(env.spec.lanes, np.int64)) for _ in range(step)]
    assert not any(taken.broken for taken in played[:-1])
    return played[-1].broken


def test_large_numbers_are_no_failure() -> None:
    env = made(factory=lambda: Scripted(show=lambda _: np.full(2, 1e30)))
    env.reset()
    assert env.step(np.array([0])).observation.tolist() == [[np.float32(1e30)] * 2]


def test_a_nan_in_the_last_observation_is_noticed() -> None:
    def show(env: Any) -> Any:
        return np.full(2, np.nan if env.steps == 5 else 0.0)

    env = made(factory=lambda: Scripted(show=show))
    env.reset()
    for _ in range(5):
        step = env.step(np.array([0]))
    assert "observation" in step.broken[0].cause
    assert not step.ended.any()
    assert step.discount.tolist() == [1.0]
    assert step.observation.tolist() == [[0.0, 0.0]]


class Raising(Scripted):
    """Its third step is its last."""

    def step(self, action: Any) -> Any:
        if self.steps == 2:
            raise KeyError("gone")
        return super().step(action)


def test_an_environment_that_raises_gives_way_to_another() -> None:
    made_so_far: list[Any] = []

    def factory() -> Any:
        made_so_far.append(Raising() if len(made_so_far) == 1 else Scripted())
        return made_so_far[-1]

    env = made("mine", lanes=3, factory=factory)
    env.reset()
    seed = made_so_far[1].seed
    steps = [env.step(np.zeros(3, np.int64)) for _ in range(5)]
    assert [len(step.broken) for step in steps] == [0, 0, 1, 0, 0]
    (found,) = steps[2].broken
    assert found.lanes == (1,)
    assert "KeyError ('gone') in lane 1, at step 3" in found.cause
    assert str(seed) in found.cause
    assert 'raise KeyError("gone")' in found.detail
    assert steps[2].reward.tolist() == [1.0, 0.0, 1.0]
    assert steps[2].discount.tolist() == [1.0, 1.0, 1.0]
    assert not steps[2].ended.any()
    assert steps[2].observation[:, 0].tolist() == [3.0, 0.0, 3.0], "it begins again"
    assert len(made_so_far) == 4
    assert steps[4].ended.tolist() == [True, False, True], "the others were not disturbed"
    kept = env.state()
    again = made("mine", lanes=3, factory=Scripted)
    assert again.restore(kept).tolist() == steps[4].observation.tolist()


def test_ten_breaks_without_an_episode_between_are_too_many() -> None:
    env = made("mine", factory=Raising)
    with pytest.raises(Failure, match=r"KeyError.*the 10th break in a row") as caught:
        begin_and_play(env, 100)
    assert isinstance(caught.value.__cause__, KeyError)


def test_with_an_episode_between_they_are_not_in_a_row() -> None:
    class Tired(Scripted):
        """Plays one episode and breaks in the next."""

        episodes = 0

        def reset(self, **kwargs: Any) -> Any:
            self.episodes += 1
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            if self.episodes == 2:
                raise KeyError("tired")
            return super().step(action)

    env = made("mine", factory=Tired)
    env.reset()
    broken = [bool(env.step(np.array([0])).broken) for _ in range(120)]
    assert broken == ([False] * 5 + [True]) * 20


def test_an_episode_that_ended_before_the_break_has_ended() -> None:
    class Once(Scripted):
        def reset(self, **kwargs: Any) -> Any:
            if hasattr(self, "steps"):
                raise OSError("cannot begin again")
            return super().reset(**kwargs)

    env = made("mine", factory=Once)
    env.reset()
    for _ in range(5):
        step = env.step(np.array([0]))
    assert step.ended.all()
    assert step.last.tolist() == [[5.0, 5.0]]
    assert "OSError" in step.broken[0].cause
    assert not env.step(np.array([0])).broken


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text either")


def leaves() -> None:
    sys.exit(0)


def panics() -> None:
    raise BaseException("a panic of another language")


def cannot_say() -> None:
    raise Unprintable


def shouts() -> None:
    raise ValueError("\x1b[2J\x07" * 500_000)


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "leaves": (leaves, r"SystemExit \(0\)"),
    "panics": (panics, r"BaseException \(a panic of another language\)"),
    "cannot say": (cannot_say, r"Unprintable \(its text cannot be read\)"),
    "shouts": (shouts, r"ValueError \(\?\[2J\?\?\[2J"),
    "array ended": (lambda: (np.zeros(2), 1.0, np.array([True, False]), False, {}), "ambiguous"),
    "array cut": (lambda: (np.zeros(2), 1.0, False, np.array([True, False]), {}), "ambiguous"),
    "one number": (lambda: (np.zeros(1), 1.0, False, False, {}), r"shape \(1,\) instead of"),
    "a scalar": (lambda: (3.0, 1.0, False, False, {}), r"shape \(\) instead of \(2,\)"),
    "words": (lambda: (["1", "2"], 1.0, False, False, {}), "instead of numbers"),
    "a word": (lambda: (np.zeros(2), "much", False, False, {}), "could not convert"),
    "four things": (lambda: (np.zeros(2), 1.0, False, {}), "not enough values"),
}


@pytest.mark.parametrize("how", WRONG)
def test_whatever_a_step_does_it_is_a_broken_environment(how: str) -> None:
    act, told = WRONG[how]

    class Wrong(Scripted):
        def step(self, action: Any) -> Any:
            return act() if self.steps == 2 else super().step(action)

    inner = iter([Wrong(), Scripted()])
    env = made("mine", factory=lambda: next(inner))
    (found,) = broken_at(env, 3)
    assert re.search(told, found.cause), found.cause
    assert "in lane 0, at step 3" in found.cause
    assert len(found.cause) < 600
    assert len(found.detail) <= 2000
    assert "\x1b" not in found.cause + found.detail
    assert "in step" in found.detail, "where it was, whatever it says"
    assert env.step(np.array([0])).observation.tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("shown", [np.full((4, 5), 300), np.full((4, 5), -1.0)])
def test_pixels_beyond_a_byte_are_not_wrapped(shown: Any) -> None:
    space = spaces.Box(0, 255, (4, 5), np.uint8)
    inner = iter([Scripted(space, show=lambda env: shown * (env.steps == 2)) for _ in range(2)])
    env = made("mine", factory=lambda: next(inner))
    assert "outside 0 to 255" in broken_at(env, 2)[0].cause


@pytest.mark.parametrize("where", ["make", "reset"])
def test_an_environment_that_exits_before_it_begins_fails(where: str) -> None:
    class Leaving(Scripted):
        def __init__(self) -> None:
            super().__init__()
            if where == "make":
                sys.exit(0)

        def reset(self, **_: Any) -> Any:
            sys.exit(0)

    with pytest.raises(Failure, match="mine: the environment raised SystemExit"):
        made("mine", factory=Leaving).reset()


class Stubborn(Scripted):
    """Cannot be closed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.closed = how, threading.Event()

    def close(self) -> None:
        if self.how == "raises":
            raise Unprintable
        if self.how == "leaves":
            sys.exit(1)
        if self.how == "hangs":
            self.closed.wait(100)
        self.closed.set()


@pytest.mark.parametrize("how", ["raises", "leaves", "hangs"])
def test_an_environment_that_cannot_be_closed_keeps_nobody(
    how: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("manyhands.envs.closing.CLOSE_S", 0.1)
    inner = [Stubborn(how), Stubborn("well")]
    left = iter(inner)
    env = made("mine", lanes=2, factory=lambda: next(left))
    env.close()  # warnings are errors in tests: it raises none
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(r"manyhands: mine: close\(\) (raised|did not return)", line)
    assert inner[1].closed.is_set(), "the others are closed"
    inner[0].closed.set()


def test_an_environment_that_cannot_be_replayed_says_so() -> None:
    chance = np.random.default_rng(0)
    env = made("mine", factory=lambda: Scripted(show=lambda _: chance.random(2)))
    env.reset()
    env.step(np.array([0]))
    with pytest.warns(RuntimeWarning, match="mine.*lane 0"):
        env.restore(env.state())


def test_a_replay_that_ends_early_begins_an_episode() -> None:
    inner = Scripted(length=5)
    env = made("mine", factory=lambda: inner)
    env.reset()
    for _ in range(4):
        env.step(np.array([0]))
    state, inner.length = env.state(), 2
    with pytest.warns(RuntimeWarning):
        assert env.restore(state).tolist() == [[0, 0]]
    assert env.state()["lengths"].tolist() == [0]


def test_the_name_of_a_factory_without_one() -> None:
    assert made(factory=Scripted).spec.id == "Scripted"
    assert made(factory=lambda: gymnasium.make("CartPole-v1")).spec.id == "CartPole-v1"
    assert made("toy/mine", factory=Scripted).spec.id == "toy/mine"


def test_solved() -> None:
    assert solved_threshold("CartPole-v1") == 475.0
    assert solved_threshold("toy/identity") is None
    assert solved_threshold("breakout") is None
    assert solved_threshold("ALE/Breakout-v5") is None


@pytest.mark.parametrize("space", [spaces.MultiDiscrete([2, 2]), spaces.MultiBinary(2)])
def test_other_actions_are_refused(space: Any) -> None:
    with pytest.raises(BadRequest, match="needs discrete actions"):
        made("mine", factory=lambda: Scripted(action_space=space))


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(BadRequest) as caught:
        made("Pendulum-v1")
    assert caught.value.what == (
        "Pendulum-v1 has continuous actions (Box); manyhands needs discrete actions."
    )
    assert caught.value.remedy


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Box(0, 1, (1, 2, 3, 4)),
    ],
)
def test_other_observations_are_refused(space: Any) -> None:
    with pytest.raises(BadRequest, match="cannot read") as caught:
        made("mine", factory=lambda: Scripted(space))
    assert caught.value.remedy
