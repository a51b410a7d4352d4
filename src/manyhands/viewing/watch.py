"""Shows the agent playing: in the terminal, in a window, or else in a GIF."""

from __future__ import annotations

import os
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from manyhands import envs
from manyhands.runs import policies
from manyhands.runs.policies import Policy
from manyhands.viewing import record, video
from manyhands.viewing.flags import PlayFlags, RecordFlags, own_code
from manyhands.viewing.play import Stage

HOME_AND_CLEAR = "\x1b[H\x1b[2J"


def watch(run: Path, flags: PlayFlags) -> None:
    policy = policies.load(run, best=flags.best, **own_code(flags))
    modes = envs.render_modes(policy.plan.env)
    if "ansi" in modes:
        _show(policy, flags, "ansi")
    elif "human" in modes and has_screen():
        _show(policy, flags, "human")
    else:
        out = run / "videos" / "watched.gif"
        asked = RecordFlags(**asdict(flags), out=str(out))
        print("there is no screen to play on; writing a GIF", flush=True)
        print("\n".join(record.record(run, asked)))


def has_screen() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _show(policy: Policy, flags: PlayFlags, mode: str) -> None:
    own = policy.plan.evaluation.epsilon
    epsilon = own if flags.epsilon is None else flags.epsilon
    with closing(Stage(policy, seed=flags.seed, epsilon=epsilon, render_mode=mode)) as stage:
        longest = max(1, round(flags.seconds * stage.pictures_per_s))
        live = sys.stdout.isatty()
        for moment in stage.moments(episodes=flags.episodes, longest=longest):
            if mode == "ansi":
                print(f"{HOME_AND_CLEAR if live else ''}{moment.shown}", flush=True)
            if mode == "ansi" or moment.over:
                print(video.caption(moment.score), flush=True)
            if mode == "ansi" and live:  # a window has its own frame rate
                time.sleep(1 / stage.pictures_per_s)
