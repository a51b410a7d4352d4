"""The section `network`: which torso, how large, in which precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manyhands.types import folders, option

TORSOS = folders.names(Path(__file__).parent / "torsos")


@dataclass(frozen=True)
class Config:
    torso: str = option("auto", f"{', '.join(TORSOS)}, auto (by the observation), or my.py:Net")
    hidden: tuple[int, ...] = option(
        (), "sizes of the dense layers after the convolutions; (): the torso's defaults", low=1
    )
    channels: tuple[int, ...] = option(
        (),
        "channels of each convolution: three for nature, two for small; (): the torso's defaults",
        low=1,
    )
    norm: str = option(
        "none", "layer: layer norm before every ReLU of the torso", choices=("none", "layer")
    )
    precision: str = option(
        "auto",
        "precision of the torso's arithmetic; auto: bfloat16 for nature if it is faster on "
        "this machine, otherwise float32",
        choices=("auto", "float32", "bfloat16"),
    )
