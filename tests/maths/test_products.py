"""Products by oneDNN equal torch's own but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from manyhands.maths import products
from manyhands.types import machine

has_onednn = hasattr(torch.ops.mkldnn, "_linear_pointwise")
only_with_onednn = pytest.mark.skipif(not has_onednn, reason="this torch has no oneDNN")


@only_with_onednn
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("rows", [1, 5, 32])
def test_onednn_multiplies_as_torch_does(
    rows: int, strided: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    a, b, bias = _matrix(rows, 70, strided), _matrix(40, 70, strided), torch.randn(40)
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    assert products.by_onednn(a)
    torch.testing.assert_close(products.times_transposed(a, b), a @ b.t(), rtol=1e-4, atol=1e-5)
    with_bias = products.times_transposed(a, b, bias)
    torch.testing.assert_close(with_bias, a @ b.t() + bias, rtol=1e-4, atol=1e-5)


def _matrix(rows: int, columns: int, strided: bool) -> Tensor:
    return torch.randn(columns, rows).t() if strided else torch.randn(rows, columns)


def test_only_float32_goes_to_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_is_faster", lambda: True)
    assert not products.by_onednn(torch.zeros(2, 2, dtype=torch.float64))
    a = torch.randn(3, 4, dtype=torch.float64)
    assert torch.equal(products.times_transposed(a, a), a @ a.t())


@pytest.mark.parametrize(("vendor", "used"), [("GenuineIntel", False), ("AuthenticAMD", True)])
def test_intel_keeps_mkl(vendor: str, used: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpuinfo", lambda *_: vendor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert products._is_faster.__wrapped__() is (used and has_onednn)
