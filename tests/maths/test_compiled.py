"""The compiled library: what it computes, and when it is not used."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.maths import compiled
from manyhands.optim import Config
from manyhands.optim.rules import adam

needs_library = pytest.mark.skipif(compiled.library() is None, reason=compiled.found().why)
KEPT = compiled.found().why.rpartition(", in ")[2]  # the library of this machine


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty cache, and a process that has not looked for the library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(compiled.SWITCH, raising=False)
    compiled.found.cache_clear()
    yield tmp_path / "manyhands" / "compiled"
    compiled.found.cache_clear()


def fake_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Puts a compiler first in the PATH that notes each of its calls, and then runs a script."""
    folder.mkdir()
    calls, made = folder / "calls", folder / "c++"
    made.write_text(f"#!/bin/sh\necho called >> {calls}\n{script}\n")
    made.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return calls


# --- What it computes -----------------------------------------------------------------------------


@needs_library
@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40), deep=st.integers(1, 300), columns=st.integers(1, 150),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_a_product_of_any_shape(rows: int, deep: int, columns: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, weight = rng.normal(size=(rows, deep)), rng.normal(size=(columns, deep))
    bias, output = rng.normal(size=columns), np.full((rows + 1, columns), 7, np.float32)
    given = [array.astype(np.float32) for array in (x, weight, bias)]
    arguments = map(compiled.pointer, (*given, output))
    compiled.function("product")(*arguments, rows, deep, columns)
    np.testing.assert_allclose(output[:rows], x @ weight.T + bias, rtol=1e-4, atol=1e-4)
    assert (output[rows] == 7).all()  # nothing is written beyond the end


@needs_library
@pytest.mark.parametrize("numbers", [1, 15, 16, 17, 1000])
def test_adam_is_that_of_torch(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(numbers)
    config, first = Config(), torch.randn(numbers)
    found = []
    for library in (compiled.library(), None):
        monkeypatch.setattr(compiled, "library", lambda here=library: here)
        vector, slots = first.clone(), adam.new_slots(config, first)
        for step in range(1, 6):
            adam.step(vector, torch.sin(step * first), slots, 0.01, config)
        found.append((vector, slots))
    (ours, our_slots), (theirs, their_slots) = found
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(our_slots, their_slots, rtol=1e-6, atol=1e-8)


@needs_library
@pytest.mark.parametrize("numbers", [1, 63, 64, 65, 5000])
def test_sum_of_squares(numbers: int) -> None:
    some = torch.randn(numbers)
    total = compiled.function("sum_of_squares")(some.data_ptr(), numbers)
    assert total == pytest.approx(float(some.double().square().sum()), rel=1e-5)


@needs_library
def test_it_takes_only_whole_float32_vectors() -> None:
    vector = torch.zeros(8)
    assert compiled.takes(vector)
    assert not compiled.takes(vector, vector.double())
    assert not compiled.takes(vector, torch.zeros(16)[::2])


# --- When it is not used --------------------------------------------------------------------------


@pytest.mark.usefixtures("cache")
def test_a_variable_switches_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.SWITCH, "0")
    assert compiled.found() == (None, "MANYHANDS_COMPILED is 0")


def test_without_a_compiler(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILERS", ("no-such-compiler",))
    assert compiled.found() == (None, "there is no C++ compiler")
    assert not cache.exists()


def test_a_compiler_that_fails_is_asked_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake_compiler(tmp_path / "bin", monkeypatch, "echo no such option >&2; exit 1")
    for _ in range(2):
        compiled.found.cache_clear()
        library, why = compiled.found()
        assert library is None
        assert why.endswith("c++ failed: no such option")
    assert calls.read_text().count("called") == 1
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700


@needs_library
def test_a_library_that_is_wrong(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(compiled.KERNELS, wrong)
    source = wrong / "panels.h"
    source.write_text(source.read_text().replace("sums[r][v] += one", "sums[r][v] -= one"))
    monkeypatch.setattr(compiled, "KERNELS", wrong)
    assert compiled.found() == (None, "what it computes is wrong")
    assert [path.suffix for path in cache.iterdir() if path.suffix != ".lock"] == [".txt"]


def test_a_folder_that_others_may_write_to(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    library, why = compiled.found()
    assert library is None
    assert "others may write" in why


@needs_library
def test_processes_that_start_together_compile_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not cache.exists()
    calls = fake_compiler(tmp_path / "bin", monkeypatch, f'sleep 0.3; cp {KEPT} "${{10}}"')
    code = "from manyhands.maths import compiled; print(compiled.found().library is not None)"
    others = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    found = {other.communicate()[0].strip() for other in others}
    assert found in ({"True"}, {"False"})  # where NumPy is about as fast, the trial may refuse it
    assert calls.read_text().count("called") == 1
