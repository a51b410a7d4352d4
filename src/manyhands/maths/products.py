"""Products of float32 matrices, by the library that is faster on this processor.

torch multiplies float32 matrices with MKL, which uses AVX-512 on Intel's processors only. On others
oneDNN, which torch uses for convolutions, is up to twice as fast (``benchmarks/dense.py``). NumPy's
OpenBLAS knows which processors have AVX-512, if it is new enough and no variable forbids it.
The processor and the libraries decide alone, without a trial, so a seed repeats.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor


def times_transposed(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """``a @ b.t() + bias``, without a gradient."""
    if by_onednn(a):
        product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
        return product
    return a @ b.t() if bias is None else torch.addmm(bias, a, b.t())


def by_onednn(a: Tensor) -> bool:
    """Whether oneDNN multiplies this matrix."""
    return a.dtype == torch.float32 and a.is_cpu and _is_faster()


@cache
def _is_faster() -> bool:
    from manyhands.types.machine import cpuinfo

    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    foreign = cpuinfo("vendor_id") not in ("", "GenuineIntel")
    return wide and foreign and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@cache
def numpy_is_slower() -> bool:
    """Whether NumPy multiplies large matrices without AVX-512 where oneDNN would use it."""
    return _is_faster() and numpy_kernel() in ("Haswell", "Zen")


def numpy_kernel() -> str:
    """The kind of processor that NumPy's own OpenBLAS multiplies for; empty if it uses another."""
    for library in openblas():
        name = library.scipy_openblas_get_corename64_
        name.restype = ctypes.c_char_p
        return bytes(name()).decode()
    return ""


def openblas() -> list[ctypes.CDLL]:
    """NumPy's own OpenBLAS; none where it uses another library."""
    folder = Path(np.__file__).parents[1] / "numpy.libs"
    return [ctypes.CDLL(str(path)) for path in folder.glob("libscipy_openblas64_*")]
