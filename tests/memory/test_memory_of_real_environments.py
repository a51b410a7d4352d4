from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from manyhands import envs
from manyhands.memory.storage.lanes import Lanes
from manyhands.types import Rows

LANES, STEPS = 2, 300


def newest(spec: Any, observation: Any) -> Any:
    return observation[:, -1] if spec.stack > 1 else observation


def record(env: Any, lanes: Lanes) -> list[list[tuple]]:
    """Plays at random, as the actor will; per lane the observations of every row, as returned."""
    rng = np.random.default_rng(0)
    seen: list[list[tuple]] = [[] for _ in range(LANES)]
    observation, first = env.reset().copy(), np.ones(LANES, bool)
    for _ in range(STEPS):
        action = rng.integers(env.spec.actions, size=LANES).astype(np.int32)
        step = env.step(action)
        lanes.extend(
            Rows(
                newest(env.spec, observation), action, step.reward, step.discount,
                first, step.ended, newest(env.spec, step.last),
                newest(env.spec, step.observation), {},
            )
        )  # fmt: skip
        last = iter(step.last)
        for lane in range(LANES):
            then = next(last).copy() if step.ended[lane] else step.observation[lane].copy()
            outcome = (float(step.reward[lane]), float(step.discount[lane]), then)
            seen[lane].append((observation[lane], int(action[lane]), *outcome))
            if step.ended[lane]:
                seen[lane].append((then, -1))
        observation, first = step.observation.copy(), step.ended.copy()
    return seen


@pytest.mark.parametrize(
    "config",
    [
        envs.Config(id="breakout", sticky=0.25, max_frames=300, life_loss=True),
        envs.Config(id="CartPole-v1"),
    ],
    ids=lambda config: config.id,
)
@pytest.mark.parametrize("rows", [1000, 150])  # 150: the lanes wrap
def test_what_is_rebuilt_is_what_the_environment_returned(config: envs.Config, rows: int) -> None:
    if config.id == "breakout":
        pytest.importorskip("ale_py")
    env = envs.make(config, lanes=LANES, seed=np.random.SeedSequence(1), threads=1)
    lanes = Lanes(env.spec, rows, columns={})
    seen = record(env, lanes)
    env.close()
    ids = lanes.drawable(1)
    now, then = (np.empty((len(ids), *env.spec.observation_shape), env.spec.frame_dtype)
                 for _ in range(2))  # fmt: skip
    ahead = lanes.n_step(ids, 1, 1.0)
    lanes.observations(ids, now)
    lanes.observations(ahead.bootstrap, then)
    assert lanes.written.tolist() == [len(lane) for lane in seen]
    for i, (lane, place) in enumerate(zip(*divmod(ids, rows), strict=True)):
        newest_first = reversed(range(len(seen[lane])))
        sequence = next(s for s in newest_first if s % rows == place)
        observation, action, reward, discount, following = seen[lane][sequence]
        np.testing.assert_array_equal(now[i], observation)
        np.testing.assert_array_equal(then[i], following)
        assert (lanes.flat["action"][ids[i]], ahead.reward[i]) == (action, np.float32(reward))
        assert ahead.discount[i] == discount
    # The newest row waits, and closing rows start nothing; where a lane wrapped, a stack's
    # worth of the oldest is not drawn either.
    if rows == 1000:
        assert len(ids) == LANES * STEPS - sum(lane[-1][1] != -1 for lane in seen)
    assert any(row[1] == -1 for lane in seen for row in lane)
