"""Adds a line of text below pictures, and writes them as MP4 (PyAV) or GIF (Pillow)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from manyhands.config import runfiles
from manyhands.types import Array, BadRequest

if TYPE_CHECKING:
    from PIL.Image import Image

BAND = 26  # height of the text below a picture, in pixels
DARK, LIGHT = (24, 24, 28), (236, 236, 236)
GIF_PICTURES_PER_S = 12.5
GIF_WIDTH = 960
GIF_COLOURS = 64
CODECS = ("libx264", "mpeg4")


def require() -> None:
    """Refuses if a library is missing. Call it before anything is played."""
    try:
        import av
        import PIL  # noqa: F401
    except ImportError as error:
        raise BadRequest(
            f"videos need {error.name}, which is not installed", 'pip install "manyhands[video]"'
        ) from error
    av.logging.set_level(av.logging.PANIC)


# --- Pictures -----------------------------------------------------------------------------------


def caption(score: float) -> str:
    return f"score {score:,.1f}".removesuffix(".0")


def panel(picture: Array, label: str, score: float, *, within: tuple[int, int]) -> Image:
    """The picture, scaled to fit, with its label and the score so far below it."""
    from PIL import Image

    shown = _fitted(Image.fromarray(picture), within)
    whole = Image.new("RGB", (shown.width, shown.height + BAND), DARK)
    whole.paste(shown, (0, 0))
    whole.paste(band(shown.width, label, caption(score)), (0, shown.height))
    return whole


def band(width: int, left: str, right: str) -> Image:
    from PIL import Image, ImageDraw

    strip = Image.new("RGB", (width, BAND), DARK)
    pen = ImageDraw.Draw(strip)
    pen.text((6, BAND // 2), left, LIGHT, font=_font(), anchor="lm")
    pen.text((width - 6, BAND // 2), right, LIGHT, font=_font(), anchor="rm")
    return strip


@cache
def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size=15)


def _fitted(picture: Image, within: tuple[int, int]) -> Image:
    """Enlarges small pictures by a whole factor; shrinks large ones."""
    from PIL import Image

    factor = min(within[0] / picture.width, within[1] / picture.height)
    factor = float(math.floor(factor)) if factor >= 1 else factor
    size = round(picture.width * factor), round(picture.height * factor)
    how = Image.Resampling.NEAREST if factor >= 1 else Image.Resampling.BOX
    return picture.resize(size, how)


def beside(panels: Sequence[Image]) -> Array:
    """Panels side by side. The codec needs an even height and width."""
    gap = 4 * (len(panels) - 1)
    width, height = sum(p.width for p in panels) + gap, max(p.height for p in panels)
    whole = np.full((height + height % 2, width + width % 2, 3), DARK, np.uint8)
    at = 0
    for one in panels:
        whole[: one.height, at : at + one.width] = np.asarray(one)
        at += one.width + 4
    return whole


# --- Files --------------------------------------------------------------------------------------


class Film:
    """Writes pictures to all files at once. The files appear only if all went well."""

    def __init__(
        self, files: Sequence[Path], pictures_per_s: float, *, within: Path | None = None
    ) -> None:
        """`within`: see `runfiles.replacing`."""
        self._files, self._rate, self._within = files, pictures_per_s, within
        self._writers: list[Mp4 | Gif] = []
        self._open_things = ExitStack()

    def _open(self) -> None:
        for path in self._files:
            file = self._open_things.enter_context(runfiles.replacing(path, within=self._within))
            kind = Gif if path.suffix == ".gif" else Mp4
            self._writers.append(kind(file, self._rate))
            self._open_things.push(self._writers[-1].end)

    def add(self, picture: Array) -> None:
        if not self._writers:  # without a picture there is no file
            self._open()
        for writer in self._writers:
            writer.add(picture)

    def __enter__(self) -> Film:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open_things.__exit__(kind, error, trace)


class Mp4:
    def __init__(self, file: BinaryIO, pictures_per_s: float) -> None:
        import av

        self._rate = Fraction(pictures_per_s).limit_denominator(1000)
        self._container = av.open(file, "w", format="mp4")
        self._stream: Any = None

    def add(self, picture: Array) -> None:
        import av

        if self._stream is None:
            self._stream = self._opened(picture.shape[1], picture.shape[0])
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))

    def _opened(self, width: int, height: int) -> Any:
        import av

        codec = next(name for name in CODECS if name in av.codecs_available)
        stream: Any = self._container.add_stream(codec, rate=self._rate)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        if codec == "libx264":
            stream.options = {"crf": "23", "preset": "veryfast"}
        else:
            stream.bit_rate = 4_000_000
        return stream

    def end(self, error: object, *_: object) -> None:
        if error is None and self._stream is not None:
            self._container.mux(self._stream.encode(None))
        self._container.close()


class Gif:
    """Fewer pictures, fewer colours and a limited width: all of it is in memory until the end."""

    def __init__(self, file: BinaryIO, pictures_per_s: float) -> None:
        self._file, self._seen = file, 0
        self._every = max(1, round(pictures_per_s / GIF_PICTURES_PER_S))
        self._duration_ms = 10 * round(100 * self._every / pictures_per_s)
        self._kept: list[Image] = []

    def add(self, picture: Array) -> None:
        from PIL import Image

        if self._seen % self._every == 0:
            whole = Image.fromarray(picture)
            if whole.width > GIF_WIDTH:
                whole = _fitted(whole, (GIF_WIDTH, GIF_WIDTH))
            self._kept.append(whole.quantize(GIF_COLOURS, dither=Image.Dither.NONE))
        self._seen += 1

    def end(self, error: object, *_: object) -> None:
        if error is not None:
            return
        first, *rest = self._kept
        how: dict[str, Any] = {"save_all": True, "append_images": rest, "loop": 0}
        first.save(self._file, "GIF", duration=self._duration_ms, **how)
