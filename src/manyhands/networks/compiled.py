"""Dense layers in closed form by the loops of `maths.compiled`: one call for a whole chain.

A chain is dense layers, each with layer norm or without, each with ReLU or without. Everything else
stays as `closed.py` has it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from manyhands.maths import compiled, threads
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
            "norm_weight_gradient", "norm_bias_gradient", "normed", "scale", "norm_sums",
            "output", "slopes",
        )),
        *((name, ctypes.c_int32) for name in ("inputs", "outputs", "relu")),
        ("eps", ctypes.c_float),
    )  # fmt: skip


class ChainRecord(ctypes.Structure):
    """`Chain` in maths/kernels/dense.cpp."""

    _fields_ = (
        ("layers", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("count", "rows", "threads", "to_input")),
        *((name, ctypes.c_void_p) for name in (
            "x", "panels", "result", "gradient", "back", "by_input",
        )),
    )  # fmt: skip


class CompiledLayers:
    """A chain as one layer."""

    def __init__(self, library: ctypes.CDLL, stages: Sequence[Stage]) -> None:
        self._forward, self._backward = library.chain_forward, library.chain_backward
        self._panel_rows = library.panel_rows()
        self._stages = stages  # their arrays must live on
        self._records = (Record * len(stages))(*map(_record, stages))
        self._inputs = self._records[0].inputs
        self._chain = ChainRecord(layers=ctypes.addressof(self._records), count=len(stages))
        self._at = ctypes.addressof(self._chain)
        self._rows = self._rows_back = 0  # that memory is there for
        self._memory: list[Array] = []
        self._memory_back: list[Array] = []
        self._keeps = False  # whether there are backward passes
        self._x = np.zeros(0, np.float32)

    def forward(self, x: Array) -> Array:
        rows, chain = len(x), self._chain
        self._x = x if x.flags.c_contiguous else np.ascontiguousarray(x)
        if rows > self._rows:
            self._make_room(rows)
        chain.x, chain.rows, chain.threads = pointer(self._x), rows, threads.count()
        self._forward(self._at, self._keeps)
        return self._result[:rows]

    def backward(self, gradient: Array, *, to_input: bool) -> Array:
        rows, chain = len(gradient), self._chain
        if not self._keeps:
            self._keeps = True
            self._forward(self._at, self._keeps)
        if rows > self._rows_back:
            self._make_room_back(rows)
        gradient = np.ascontiguousarray(gradient)
        chain.gradient, chain.to_input = pointer(gradient), to_input
        self._backward(self._at)
        return self._by_input[:rows] if to_input else gradient

    def _make_room(self, rows: int) -> None:
        self._rows, memory = rows, list[Array]()
        panels = -(-rows // self._panel_rows)
        for record in self._records:
            record.output = self._panels(memory, panels, record.outputs)
            if record.norm_weight:
                record.normed = self._panels(memory, panels, record.outputs)
                record.scale = self._panels(memory, panels, 1)
                record.norm_sums = _room(memory, 2 * panels, record.outputs)
        self._chain.panels = self._panels(memory, panels, self._inputs)
        self._chain.result = _room(memory, rows, record.outputs)
        self._result, self._memory = memory[-1], memory

    def _make_room_back(self, rows: int) -> None:
        self._rows_back, memory = rows, list[Array]()
        panels = -(-rows // self._panel_rows)
        for record in self._records:
            record.slopes = self._panels(memory, panels, record.outputs)
        self._chain.back = self._panels(memory, panels, self._inputs)
        self._chain.by_input = _room(memory, rows, self._inputs)
        self._by_input, self._memory_back = memory[-1], memory

    def _panels(self, memory: list[Array], panels: int, width: int) -> int:
        return _room(memory, panels * width, self._panel_rows)


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
