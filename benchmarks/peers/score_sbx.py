"""SBX with the values of Stable-Baselines3's RL Zoo."""

from __future__ import annotations

import sbx

from score_sb3 import train
from scoring import goal

if __name__ == "__main__":
    train(sbx, goal())
