"""The true models of small environments, and value iteration on them: the slow, obvious answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium
import numpy as np

from manyhands.envs.maze import Mazes


class TrueModel(NamedTuple):
    """Every outcome of every pair: (probability, next state, reward, terminated)."""

    outcomes: dict[int, dict[int, list[tuple[float, int, float, bool]]]]
    starts: list[int]


def of_gym(id: str, **kwargs: Any) -> TrueModel:
    env: Any = gymnasium.make(id, **kwargs).unwrapped
    return TrueModel(env.P, np.flatnonzero(env.initial_state_distrib).tolist())


def of_maze(resolution: int = 1) -> TrueModel:
    mazes = Mazes(1, resolution)
    outcomes = {
        cell: {
            action: [(1.0, int(to), float(mazes.goals[to]), bool(mazes.goals[to]))]
            for action, to in enumerate(mazes.after[cell])
        }
        for cell in range(len(mazes.goals))
    }
    return TrueModel(outcomes, [mazes.start])


def values(model: TrueModel, gamma: float) -> np.ndarray:
    """[states, actions] the best values, by value iteration."""
    q = np.zeros((len(model.outcomes), len(model.outcomes[0])))
    while True:
        best = q.max(1)
        new = np.array(
            [
                [sum(p * (r + gamma * best[to] * (not end)) for p, to, r, end in some)
                 for _, some in sorted(actions.items())]
                for _, actions in sorted(model.outcomes.items())
            ]
        )  # fmt: skip
        if np.abs(new - q).max() < 1e-9:
            return new
        q = new


def greedy_choices(model: TrueModel, table: np.ndarray) -> set[tuple[int, int]]:
    """The states that the greedy policy reaches from the starts, and its actions there."""
    chosen, ahead = set[tuple[int, int]](), list(model.starts)
    while ahead:
        state = ahead.pop()
        action = int(table[state].argmax())
        if (state, action) not in chosen:
            chosen.add((state, action))
            ahead += [to for p, to, _, end in model.outcomes[state][action] if p and not end]
    return chosen


def is_optimal(model: TrueModel, table: np.ndarray, gamma: float) -> bool:
    """Whether the greedy action is a best one in every state that the policy reaches.

    Judged by the policy's own returns, so that a circle of equal values is not taken for a way.
    """
    best, chosen = values(model, gamma), dict(greedy_choices(model, table))
    own = dict.fromkeys(chosen, 0.0)
    for _ in range(len(model.outcomes) + 1):
        own = {
            state: sum(
                p * (r + gamma * own[to] * (not end)) if not end else p * r
                for p, to, r, end in model.outcomes[state][action] if p
            )
            for state, action in chosen.items()
        }  # fmt: skip
    return all(np.isclose(own[state], best[state].max(), atol=1e-6) for state in model.starts)
