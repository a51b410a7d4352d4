"""Loops in C++ (`kernels/`), compiled at their first use by the C++ compiler of this machine.

For small networks one call of a loop replaces tens of calls of NumPy and torch. The library lies in
the user's cache folder, named by a hash of the sources, the processor and the compiler. It is used
if it multiplies correctly and about as fast as NumPy. Otherwise, without a compiler, or with
MANYHANDS_COMPILED=0, everything runs without it. `manyhands doctor` tells which.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from manyhands.types.machine import cpuinfo, processor

if TYPE_CHECKING:
    from torch import Tensor

KERNELS = Path(__file__).parent / "kernels"
SWITCH = "MANYHANDS_COMPILED"  # 0: off
COMPILERS = ("c++", "g++", "clang++")
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fno-math-errno", "-ffp-contract=fast"),
    *("-shared", "-fPIC", "-pthread"),
)
PATIENCE_S = 120.0
OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
SLOWEST = 1.5  # times NumPy's time of a product; a chain of layers saves more than that in calls


class Unusable(Exception):
    """Why the library is not used."""


class Found(NamedTuple):
    library: ctypes.CDLL | None
    why: str  # it is used, or not


def library() -> ctypes.CDLL | None:
    """None: compute without it."""
    return found().library


@cache
def found() -> Found:
    if os.environ.get(SWITCH) == "0":
        return Found(None, f"{SWITCH} is 0")
    try:
        path = _kept()
        return Found(_loaded(path), f"compiled, in {path}")
    except (Unusable, OSError, RuntimeError, subprocess.SubprocessError) as error:
        return Found(None, str(error))


def takes(*tensors: Tensor) -> bool:
    """Whether there is a library, and these tensors are what it computes with."""
    return library() is not None and all(
        one.is_cpu and one.is_contiguous() and one.element_size() == 4 for one in tensors
    )


def function(name: str) -> Callable[..., float]:
    """A function of the library, which must be there."""
    made: Callable[..., float] = getattr(library(), name)
    return made


def pointer(array: np.ndarray) -> int:
    """The address of its numbers. The first way takes a fifth of the time of the second."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError, BufferError):  # it is read-only, empty or has gaps
        return int(array.__array_interface__["data"][0])


# --- The cache ----------------------------------------------------------------------------------


def _kept() -> Path:
    """The library, which is made if it is not there. A failure is kept as well."""
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise Unusable("there is no C++ compiler")
    folder = _folder()
    path = folder / f"{_key(Path(compiler))}.so"
    refusal = path.with_suffix(".txt")
    if not path.exists() and not refusal.exists():
        with _alone(path.with_suffix(".lock")):
            if not path.exists() and not refusal.exists():
                _make(compiler, path, refusal)
    if refusal.exists():
        raise Unusable(refusal.read_text(encoding="utf-8"))
    return path


def _folder() -> Path:
    """Only its owner may write there: what lies in it is executed."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    cache_home = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    folder = cache_home / "manyhands" / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    facts = folder.lstat()
    own = stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.getuid()
    if not own or facts.st_mode & OTHERS_MAY_WRITE:
        raise Unusable(f"others may write to {folder}: chmod 700, or remove it")
    return folder


def _key(compiler: Path) -> str:
    """What the library depends on."""
    facts = compiler.resolve().stat()
    instructions = cpuinfo("flags", "Features")
    parts = [processor(), instructions, str(compiler), str(facts.st_size), str(facts.st_mtime_ns)]
    sources = [file.read_bytes() for file in sorted(KERNELS.iterdir())]
    told = "\n".join([*FLAGS, *parts]).encode()
    return hashlib.sha256(b"\n".join([told, *sources])).hexdigest()[:24]


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process compiles; the others wait for it."""
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(compiler: str, path: Path, refusal: Path) -> None:
    """Files appear whole: a process that is killed leaves a temporary file at most."""
    made = path.with_suffix(f".{os.getpid()}")
    sources = sorted(map(str, KERNELS.glob("*.cpp")))
    done = subprocess.run(
        [compiler, *FLAGS, "-o", str(made), *sources],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    why = f"{compiler} failed: {done.stderr.strip()[:500]}" if done.returncode else _objection(made)
    if why:  # in a file of its own: the process has mapped the library, and would die without it
        reason = path.with_suffix(f".{os.getpid()}.txt")
        reason.write_text(why, encoding="utf-8")
        os.replace(reason, refusal)
        made.unlink(missing_ok=True)
    else:
        os.replace(made, path)


# --- The trial ----------------------------------------------------------------------------------


def _objection(path: Path) -> str:
    """Why this library is not to be used; empty if it is."""
    rng = np.random.default_rng(1)
    x, weight = (rng.normal(size=size).astype(np.float32) for size in ((64, 128), (128, 128)))
    bias, output, expected = (np.ones(size, np.float32) for size in (128, (64, 128), (64, 128)))
    product, arrays = _loaded(path).product, (x, weight, bias, output)

    def by_numpy() -> None:
        np.matmul(x, weight.T, out=expected)

    def by_library() -> None:
        product(*map(pointer, arrays), *x.shape, len(weight))

    ours_s, numpy_s = _seconds(by_library), _seconds(by_numpy)
    if not np.allclose(output, expected + 1, rtol=1e-4, atol=1e-4):
        return "what it computes is wrong"
    return f"NumPy is {ours_s / numpy_s:.1f} times as fast" if ours_s > SLOWEST * numpy_s else ""


def _seconds(call: Callable[[], None]) -> float:
    """Of all threads together: NumPy may have several, a training has one for small networks.

    The clock on the wall would let a busy machine decide, and the decision is kept.
    """
    taken = []
    for _ in range(200):
        begun_s = process_time()
        call()
        taken.append(process_time() - begun_s)
    return min(taken)


# --- The functions ------------------------------------------------------------------------------

ADDRESS, INT, LONG, FLOAT = ctypes.c_void_p, ctypes.c_int, ctypes.c_long, ctypes.c_float
ARGUMENTS = {
    "product": [ADDRESS] * 4 + [INT] * 3,
    "panel_rows": [],
    "chain_forward": [ADDRESS, INT],
    "chain_backward": [ADDRESS],
    "sum_of_squares": [ADDRESS, LONG],
    "candidates": [ADDRESS, ADDRESS, LONG],
    "n_step": [ADDRESS, ADDRESS, LONG, INT, FLOAT, INT] + [ADDRESS] * 4,
    "gather": [ADDRESS, ADDRESS, LONG, ADDRESS],
    "td_errors": [ADDRESS] * 4 + [LONG, LONG, INT],
    "td_gradient": [ADDRESS] * 4 + [LONG, LONG],
    "adam": [ADDRESS] * 4 + [LONG] + [FLOAT] * 6 + [INT],
}


def _loaded(path: Path) -> ctypes.CDLL:
    library = ctypes.CDLL(str(path))
    for name, arguments in ARGUMENTS.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, None
    library.sum_of_squares.restype = ctypes.c_double
    library.panel_rows.restype, library.candidates.restype = INT, LONG
    return library
