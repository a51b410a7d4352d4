"""The section `network`: which torso, how large, in which precision."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.types import option


@dataclass(frozen=True)
class Config:
    torso: str = option("auto", "mlp, nature, small, auto (by the observation), or my.py:Net")
    hidden: tuple[int, ...] = option(
        (), "sizes of the dense layers after the convolutions; (): the torso's own", low=1
    )
    channels: tuple[int, ...] = option(
        (),
        "channels of each convolution: three for nature, two for small; (): the torso's own",
        low=1,
    )
    norm: str = option(
        "none", "layer: layer norm before every ReLU of the torso", choices=("none", "layer")
    )
    precision: str = option(
        "auto",
        "precision of the torso's arithmetic; auto: bfloat16 for nature where this machine is "
        "faster in it, otherwise float32",
        choices=("auto", "float32", "bfloat16"),
    )
