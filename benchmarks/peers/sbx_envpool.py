"""SBX (Stable-Baselines3 in JAX) with EnvPool's environments."""

from __future__ import annotations

from typing import Any

import envpool
import numpy as np
import sbx
from stable_baselines3.common.vec_env import VecEnv

import sb3
from jobs import ENVPOOL, Clock, Job, run


class EnvPool(VecEnv):  # type: ignore[misc]
    """EnvPool as SB3's vector of environments. The step after an episode's end begins the next."""

    def __init__(self, job: Job, threads: int) -> None:
        self._pool = envpool.make_gymnasium(
            ENVPOOL[job.task], num_envs=job.lanes, num_threads=threads
        )
        super().__init__(job.lanes, self._pool.observation_space, self._pool.action_space)

    def reset(self) -> Any:
        return self._pool.reset()[0]

    def step_async(self, actions: Any) -> None:
        self._actions = np.asarray(actions, np.int32)

    def step_wait(self) -> Any:
        seen, reward, terminated, truncated, _ = self._pool.step(self._actions)
        done = terminated | truncated
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for lane in np.flatnonzero(done):
            infos[lane] = {
                "terminal_observation": seen[lane],
                "TimeLimit.truncated": bool(truncated[lane]),
            }
        return seen, reward.astype(np.float32), done, infos

    def close(self) -> None:
        self._pool.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:  # noqa: ARG002
        return [getattr(self._pool, attr_name, None)] * self.num_envs

    def set_attr(self, *_: Any, **__: Any) -> None: ...

    def env_method(self, *_: Any, **__: Any) -> list[Any]:
        return [None] * self.num_envs

    def env_is_wrapped(self, *_: Any, **__: Any) -> list[bool]:
        return [False] * self.num_envs


def drive(job: Job, threads: int, clock: Clock) -> None:
    sb3.drive_with(sbx, job, EnvPool(job, threads), clock)


if __name__ == "__main__":
    run(drive)
