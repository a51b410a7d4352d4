"""Observations of several parts: flattened as gymnasium does it, or one part chosen."""

import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

import manyhands as mh
from manyhands.envs import Config, make, parts
from manyhands.envs.observations import Sight
from manyhands.networks.one_hot import OneHot
from manyhands.types import BadRequest, EnvSpec

PICTURE = spaces.Box(0, 255, (6, 5, 3), np.uint8)
GRID = spaces.Dict(
    {
        "target": spaces.Discrete(5, start=1),
        "agent": spaces.Box(-1, 1, (2, 2), np.float64),
        "bag": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3)]),
        "image": PICTURE,
    }
)
MINIGRID = spaces.Dict(
    {"image": PICTURE, "direction": spaces.Discrete(4), "mission": spaces.Text(20)}
)


class Random(gymnasium.Env):
    action_space = spaces.Discrete(2)

    def __init__(self, space: Any) -> None:
        self.observation_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:  # noqa: ARG002
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:  # noqa: ARG002
        return self.observation_space.sample(), 0.0, False, False, {}


def made(space: Any, key: str = "") -> Any:
    config = Config(id="mine", obs_key=key)
    seed = np.random.SeedSequence(1)
    return make(config, lanes=1, seed=seed, threads=1, factory=lambda: Random(space))


SPACES = {
    "dict": GRID,
    "tuple": spaces.Tuple([spaces.Discrete(32), spaces.Discrete(11), spaces.Discrete(2)]),
    "multidiscrete": spaces.MultiDiscrete(
        np.array([[2, 3], [4, 5]]), start=np.array([[1, 0], [0, 2]])
    ),
    "multibinary": spaces.MultiBinary((2, 3)),
    "number": spaces.Box(0, 1, (), np.float32),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_parts_are_flattened_as_gymnasium_flattens_them(space: Any) -> None:
    kept: Any
    kept, plain = parts.parts_of("mine", space)
    kept = parts.parts_from(json.loads(json.dumps(kept.state())))
    space.seed(1)
    given = [space.sample() for _ in range(20)]
    read = np.array([np.reshape(kept.reader()(one), -1) for one in given])
    assert read.shape == (20, *plain.shape)
    assert np.array_equal([kept.arrays(one) for one in given], read)
    assert np.array_equal(one_hot(read, kept.counts), flattened(space, given))


def flattened(space: Any, given: list[Any]) -> np.ndarray:
    return np.array([spaces.flatten(space, one) for one in given], np.float32)


def one_hot(frames: np.ndarray, counts: tuple[int, ...]) -> np.ndarray:
    """What a network gets."""
    if not counts:
        return frames
    network = OneHot(torch.nn.Identity(), counts)
    made = network(torch.from_numpy(frames)).numpy()
    (first,) = OneHot(torch.nn.Sequential(), counts).closed_layers()
    assert np.array_equal(first.forward(frames), made)
    return np.asarray(made)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_a_policy_sees_one_or_several_as_the_environment_does(space: Any) -> None:
    sight = Sight(made(space).spec)
    space.seed(1)
    given = [space.sample() for _ in range(4)]
    rows = []
    for one in given:
        seen, alone = sight.see(one)
        assert alone
        rows.append(seen[0])
    wanted = np.stack(rows)
    assert np.array_equal(one_hot(wanted, made(space).spec.counts), flattened(space, given))
    empty: Any = create_empty_array(space, n=4)
    together = concatenate(space, given, empty)
    for several in (given, together, wanted):
        seen, alone = sight.see(several)
        assert not alone
        assert np.array_equal(seen, wanted)


def test_a_policy_sees_the_chosen_key() -> None:
    sight = Sight(made(MINIGRID, "image").spec)
    MINIGRID.seed(1)
    given = [MINIGRID.sample() for _ in range(3)]
    wanted = np.stack([one["image"].transpose(2, 0, 1) for one in given])
    assert np.array_equal(sight.see(given)[0], wanted)
    assert np.array_equal(sight.see(given[1])[0], wanted[1:2])
    together = {"image": np.stack([one["image"] for one in given])}
    assert np.array_equal(sight.see(together)[0], wanted)


def test_blackjack_is_read_as_whole_numbers() -> None:
    env = make(Config(id="Blackjack-v1"), lanes=2, seed=np.random.SeedSequence(1), threads=1)
    spec = env.spec
    assert (spec.frame_shape, spec.frame_dtype, spec.counts) == ((3,), "int32", (32, 11, 2))
    assert (spec.input_shape, spec.states, spec.strides) == ((45,), 704, (22, 2, 1))
    seen = env.reset()
    assert (seen < np.array(spec.counts)).all()
    assert "Tuple flattened into 3 whole numbers" in spec.raw["note"]


def test_an_older_run_has_one_hot_numbers() -> None:
    """Its checkpoint says nothing of whole numbers; its network takes 45 inputs."""
    space = SPACES["tuple"]
    kept: Any = parts.parts_of("mine", space)[0]
    older = {name: value for name, value in kept.state().items() if name != "indexed"}
    space.seed(1)
    given = [space.sample() for _ in range(5)]
    read = parts.parts_from(older).arrays(given)
    assert np.array_equal(read, flattened(space, given))
    raw = {"kind": "one-hot", "given": [4], "start": 2}
    sight = Sight(EnvSpec("mine", 1, (4,), "float32", 1, 2, raw=raw))
    assert sight.see(5)[0].tolist() == [[0, 0, 0, 1]]


def test_a_discrete_key_of_a_dict_is_a_whole_number() -> None:
    env = made(MINIGRID, "direction")
    assert (env.spec.counts, env.reset().shape) == ((4,), (1, 1))
    sight = Sight(env.spec)
    MINIGRID.seed(1)
    given = [MINIGRID.sample() for _ in range(3)]
    wanted = [[int(one["direction"])] for one in given]
    assert sight.see(given)[0].tolist() == wanted
    assert sight.see(given[2])[0].tolist() == wanted[2:]
    assert sight.see(given[2]["direction"])[0].tolist() == wanted[2:]


def test_one_key_of_a_dict_is_seen_as_it_would_be_alone() -> None:
    env = made(MINIGRID, "image")
    assert (env.spec.frame_shape, env.spec.frame_dtype) == ((3, 6, 5), "uint8")
    first = env.reset()
    assert first.any()
    assert env.spec.raw["note"] == "observations: 'image' of the Dict; direction, mission unseen"


def test_what_is_flattened_is_told() -> None:
    note = made(GRID).spec.raw["note"]
    assert note.startswith("observations: Dict flattened into 107 numbers")
    assert "agent, bag, image, target" in note
    assert "note" not in made(PICTURE).spec.raw


NUMBERED: Any = {1: PICTURE}  # no text as a key


@pytest.mark.parametrize(
    ("space", "key", "mentions"),
    [
        (MINIGRID, "", ["'mission' is Text", "--env.obs-key: direction, image."]),
        (GRID, "picture", ["no such observation", "agent, bag, image, target"]),
        (PICTURE, "image", ["not a Dict", "Leave it out"]),
        (spaces.Text(5), "", ["cannot read", "FlattenObservation"]),
        (spaces.Box(0, 1, (0,)), "", ["empty observations", "at least one number"]),
        (spaces.Box(0, 1, (0, 4)), "", ["empty observations"]),
        (spaces.Dict({}), "", ["empty observations"]),
        (spaces.Dict(a=spaces.Box(0, 1, (0,))), "", ["empty observations"]),
        (spaces.Dict(NUMBERED), "", ["1 is a key of a Dict", "all keys are texts"]),
        (spaces.Dict({**NUMBERED, "a": PICTURE}), "", ["--env.obs-key: a."]),
        (spaces.Dict(deep=spaces.Dict(NUMBERED)), "", ["1 is a key"]),
        (spaces.Dict(NUMBERED), "1", ["no such observation", "one of 1"]),
        (spaces.Box(0, 1, (2, 2, 2, 2)), "", ["cannot read", "FlattenObservation"]),
    ],
)
def test_what_cannot_be_read_is_refused(space: Any, key: str, mentions: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        made(space, key)
    for mention in mentions:
        assert mention in f"{caught.value.what} {caught.value.remedy}"


@pytest.mark.parametrize("value", [-1, 4])
def test_a_number_outside_its_space_is_no_row(value: int) -> None:
    kept: Any = parts.parts_of("mine", spaces.Tuple([spaces.Discrete(4)]))[0]
    with pytest.raises(ValueError, match="is none of the 4 observations from 0 to 3"):
        kept.reader()((value,))
    several: Any = parts.parts_of("mine", spaces.MultiDiscrete([4, 4]))[0]
    with pytest.raises(ValueError, match="not in its"):
        several.reader()(np.array([0, value]))


def test_a_part_of_another_shape_is_not_stretched() -> None:
    kept: Any = parts.parts_of("mine", spaces.Dict(a=spaces.Box(0, 1, (3,))))[0]
    with pytest.raises(ValueError, match=r"a has shape \(1,\) instead of \(3,\)"):
        kept.reader()({"a": np.ones(1)})


def test_a_run_says_at_its_start_how_it_sees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = {"warmup_steps": 50, "batch_size": 16}
    mh.train("Blackjack-v1", steps=100, out=tmp_path / "run", dqn=small, threads=1)
    assert "Tuple flattened into 3 whole numbers" in capsys.readouterr().out
