"""The torso of Mnih et al. 2015, for images of at least 36 x 36."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from manyhands.networks.config import Config
from manyhands.networks.layers import convolved, dense_layers, relus, to_float, weights, work_of
from manyhands.networks.shared_pass import in_shares
from manyhands.networks.torsos import DTYPES, Shape, channels_of

CHANNELS, HIDDEN = (32, 64, 64), (512,)
SMALLEST = 36  # pixels a side; the three convolutions need as many


def fits(shape: Shape) -> bool:
    return len(shape) == 3 and min(shape[1:]) >= SMALLEST


is_first_choice = fits


def make(config: Config, shape: Shape, *, scale: float) -> nn.Module:
    channels, hidden = channels_of(config, CHANNELS), config.hidden or HIDDEN
    norm, dtype = config.norm == "layer", DTYPES[config.precision]
    return Nature(shape, channels, hidden, scale=scale, norm=norm, dtype=dtype)


def size(config: Config, shape: Shape) -> tuple[int, int]:
    channels, hidden = config.channels or CHANNELS, config.hidden or HIDDEN
    pairs = zip(pairwise((shape[0], *channels)), (8, 4, 3), strict=False)
    convolutions = sum(a * b * kernel**2 for (a, b), kernel in pairs)
    inputs = channels[-1] * math.prod(map(_side_after, shape[1:]))
    return convolutions + weights((inputs, *hidden)), hidden[-1]


def _side_after(side: int) -> int:
    """Pixels a side after the three convolutions."""
    return max(1, ((side - 8) // 4 - 3) // 2 - 1)


class Nature(nn.Module):
    """Three convolutions and a dense layer, with ReLU.

    It differs in the order of the arithmetic, for speed on a CPU. Everything is channels-last. If
    height and width are divisible by four, the first layer (8x8, stride 4) is computed as 2x2 with
    stride 1 on blocks of 4x4 pixels.
    With `dtype` bfloat16 only the torso computes in bfloat16. Parameters, gradients and heads stay
    float32.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        channels: Sequence[int],
        hidden: Sequence[int],
        *,
        scale: float,
        norm: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        frames, height, width = shape
        self.scale, self.dtype = scale, dtype
        self.blocked = height % 4 == 0 and width % 4 == 0
        a, b, c = channels
        self.first = nn.Conv2d(frames, a, 8, stride=4)
        self.second = nn.Conv2d(a, b, 4, stride=2)
        self.third = nn.Conv2d(b, c, 3)
        h, w = ((height - 8) // 4 + 1, (width - 8) // 4 + 1)
        h2, w2 = ((h - 4) // 2 + 1, (w - 4) // 2 + 1)
        self.relus = relus(norm, (a, h, w), (b, h2, w2), (c, h2 - 2, w2 - 2))
        outputs = {self.first: h * w, self.second: h2 * w2, self.third: (h2 - 2) * (w2 - 2)}
        self._row_work = work_of(outputs)
        self.dense = dense_layers((c * (h2 - 2) * (w2 - 2), *hidden), norm=norm)

    def forward(self, observation: Tensor) -> Tensor:
        convolutions = (self.first, self.second, self.third, self.relus)
        features: Tensor = self.dense(
            in_shares(self._convolved, observation, convolutions, row_work=self._row_work)
        )
        return features.float()

    def _convolved(self, observation: Tensor) -> Tensor:
        first, second, third = self.relus
        x = first(self._first(observation))
        x = second(convolved(x, self.second.weight, self.second.bias, stride=2))
        x = third(convolved(x, self.third.weight, self.third.bias))
        flat: Tensor = x.permute(0, 2, 3, 1).flatten(1)  # no copy: channels-last
        return flat

    def _first(self, observation: Tensor) -> Tensor:
        if not self.blocked:
            image = to_float(observation, self.scale).to(self.dtype)
            image = image.contiguous(memory_format=torch.channels_last)
            return convolved(image, self.first.weight, self.first.bias, stride=4)
        # Scaling the kernel is cheaper than scaling the image.
        scale = self.scale / 255 if observation.dtype == torch.uint8 else self.scale
        kernel = blocks_of_kernel(self.first.weight) * scale
        return convolved(blocks_of_image(observation, self.dtype), kernel, self.first.bias)


def blocks_of_image(image: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """[b, c, 4h, 4w] to [b, 16c, h, w], channels-last: a 4x4 block of pixels becomes channels.

    Both precisions hold bytes exactly.
    """
    b, c, height, width = image.shape
    h, w = height // 4, width // 4
    if image.dtype == torch.uint8:  # four neighbouring bytes move as one int32
        words = image.contiguous().view(torch.int32).view(b, c, h, 4, w)
        # Whole rows first, then single words: one step for both takes three times as long.
        rows = words.permute(0, 2, 1, 3, 4).reshape(b * h, 4 * c, w)
        blocks = rows.transpose(1, 2).contiguous().view(torch.uint8)
    else:
        blocks = image.reshape(b, c, h, 4, w, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(b, h, w, 16 * c).to(dtype).permute(0, 3, 1, 2)


def blocks_of_kernel(kernel: Tensor) -> Tensor:
    """[o, c, 8, 8] to [o, 16c, 2, 2], in the channel order of `blocks_of_image`."""
    o, c, _, _ = kernel.shape
    blocks = kernel.reshape(o, c, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5)
    return blocks.reshape(o, 2, 2, 16 * c).permute(0, 3, 1, 2)
