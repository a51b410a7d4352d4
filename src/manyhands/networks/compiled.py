"""Dense layers in closed form by the loops of `maths.compiled`: one call for a whole chain.

A chain is dense layers, each with layer norm or without, each with ReLU or without. Everything else
stays as `closed.py` has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from manyhands.maths import compiled
from manyhands.maths.compiled import pointer
from manyhands.networks.closed import FLOAT32, DenseLayer, Layer, NormLayer, ReluLayer
from manyhands.types import Array


class Stage(NamedTuple):
    dense: DenseLayer
    norm: NormLayer | None
    relu: bool


class Record(ctypes.Structure):
    """`Layer` in maths/kernels/dense.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in (
            "weight", "bias", "weight_gradient", "bias_gradient", "norm_weight", "norm_bias",
            "norm_weight_gradient", "norm_bias_gradient", "normed", "scale", "output", "back",
        )),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "relu")),
        ("eps", ctypes.c_float),
    )  # fmt: skip


class CompiledLayers:
    """A chain as one layer."""

    def __init__(self, library: ctypes.CDLL, stages: Sequence[Stage]) -> None:
        self._forward, self._backward = library.chain_forward, library.chain_backward
        self._stages = stages  # their arrays must live on
        self._records = (Record * len(stages))(*map(_record, stages))
        self._chain = ctypes.addressof(self._records), len(stages)
        self._rows = self._rows_back = 0  # that memory is there for
        self._memory: list[Array] = []
        self._memory_back: list[Array] = []
        self._x = np.zeros(0, np.float32)

    def forward(self, x: Array) -> Array:
        self._x, rows = x, len(x)
        if not x.flags.c_contiguous:
            self._x = np.ascontiguousarray(x)
        if rows > self._rows:
            self._make_room(rows)
        self._forward(*self._chain, pointer(self._x), rows)
        return self._output[:rows]

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        rows = len(gradient)
        if rows > self._rows_back:
            self._make_room_back(rows)
        gradient = np.ascontiguousarray(gradient)
        self._backward(*self._chain, pointer(self._x), pointer(gradient), rows, to_input)
        return self._memory_back[0][:rows] if to_input else gradient

    def _make_room(self, rows: int) -> None:
        self._rows, self._memory = rows, []
        for record in self._records:
            record.output = self._room(self._memory, rows, record.outputs)
            self._output = self._memory[-1]
            if record.norm_weight:
                record.normed = self._room(self._memory, rows, record.outputs)
                record.scale = self._room(self._memory, rows, 1)

    def _make_room_back(self, rows: int) -> None:
        self._rows_back, self._memory_back = rows, []
        for record in self._records:
            record.back = self._room(self._memory_back, rows, record.inputs)

    @staticmethod
    def _room(memory: list[Array], rows: int, width: int) -> int:
        memory.append(np.zeros((rows, width), np.float32))
        return pointer(memory[-1])


def _record(stage: Stage) -> Record:
    dense, norm = stage.dense, stage.norm
    outputs, inputs = dense.weight.shape
    record = Record(relu=stage.relu, inputs=inputs, outputs=outputs)
    record.weight, record.bias = pointer(dense.weight), pointer(dense.bias)
    record.weight_gradient, record.bias_gradient = map(pointer, dense.gradients)
    if norm is not None:
        record.norm_weight, record.norm_bias = norm.weight.data_ptr(), norm.bias.data_ptr()
        record.norm_weight_gradient, record.norm_bias_gradient = map(pointer, norm.gradients)
        record.eps = norm.eps
    return record


def fused(layers: Sequence[Layer]) -> Iterator[Layer]:
    """The same layers; if there is a library, dense ones that follow each other are one."""
    library = compiled.library()
    if library is None:
        yield from layers
        return
    stages: list[Stage] = []
    at = 0
    while at < len(layers):
        stage, length = _stage(layers[at : at + 3])
        if stage is not None:
            stages.append(stage)
        else:
            if stages:
                yield CompiledLayers(library, stages)
                stages = []
            yield layers[at]
        at += length
    if stages:
        yield CompiledLayers(library, stages)


def _stage(layers: Sequence[Layer]) -> tuple[Stage | None, int]:
    """The stage that these layers begin with, if any, and how many they are."""
    dense, *others = layers
    if not isinstance(dense, DenseLayer) or not _is_plain(dense.weight):
        return None, 1
    norm = others[0] if others and isinstance(others[0], NormLayer) else None
    others = others[norm is not None :]
    relu = bool(others) and isinstance(others[0], ReluLayer)
    return Stage(dense, norm, relu), 1 + (norm is not None) + relu


def _is_plain(weight: Array) -> bool:
    return weight.dtype == FLOAT32 and weight.flags.c_contiguous
