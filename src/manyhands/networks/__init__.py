"""nn.Modules and nothing else: a torso turns observations into features, a head reads them."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.types import knob


@dataclass(frozen=True)
class Config:
    torso: str = knob("auto", "mlp, nature, small, auto (by the observation), or my.py:Net")
    hidden: tuple[int, ...] = knob(
        (), "dense layers after the torso's convolutions; (): its own", low=1
    )
    channels: tuple[int, ...] = knob(
        (), "of each convolution: three for nature, two for small; (): its own", low=1
    )
    norm: str = knob(
        "none", "layer: layer norm before every ReLU of the torso", choices=("none", "layer")
    )
    precision: str = knob(
        "auto",
        "in which a torso computes; auto: one that is named nature, as Atari's is, in bfloat16 "
        "where this machine is quicker in it",
        choices=("auto", "float32", "bfloat16"),
    )
