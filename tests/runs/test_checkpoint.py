"""Checkpoints survive kills, damage, hostile files and full disks, and give back what was saved."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from manyhands.config.runfiles import JSON_LIMIT, Directory
from manyhands.runs import checkpoint, checkpoint_files, checkpoint_reading
from manyhands.types import BadRequest, Failure, machine

KILL_DRIVER = Path(__file__).parents[1] / "support" / "checkpoint_kill_driver.py"
MEMORY_DISK = Path("/dev/shm")
FILES = ["weights.safetensors", "state.safetensors", "state.json", "replay.safetensors"]
ALONE = {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}


def content(tag: int) -> dict[str, Any]:
    rng = np.random.default_rng(tag)
    return {
        "weights": {
            "q.0": rng.normal(size=(3, 2)).astype(np.float32),
            "q.1": np.array([tag], np.float32),
        },
        "state": {"rng": rng.bit_generator.state, "adam": {"m": rng.normal(size=4)}},
        "replay": {"frames": rng.integers(0, 256, (5, 4), np.uint8), "end": tag},
    }


def same(a: Any, b: Any) -> bool:
    """Equal in value and type, all the way down; NaN is NaN."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    return bool(a == b)


def assert_holds(loaded: checkpoint.Loaded, tag: int, *, replay: bool = True) -> None:
    wanted = content(tag)
    assert loaded.step == tag
    assert same(loaded.weights, wanted["weights"])
    assert same(loaded.state, wanted["state"])
    assert same(loaded.replay, wanted["replay"] if replay else None)


@pytest.fixture
def disk() -> Iterator[Path]:
    """In memory where possible: the many small saves below would wait for a disk each time."""
    where = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="manyhands-test-") as folder:
        yield Path(folder)


# --- What was saved comes back ------------------------------------------------------------------

arrays = hnp.arrays(
    dtype=st.sampled_from(sorted(checkpoint_files.DTYPE_NAMES)).map(np.dtype),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
keys = st.one_of(st.text(max_size=4), st.sampled_from(["__metadata__", "$array", "$", "a/b", "~1"]))
leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), arrays)
leaves = st.one_of(leaves, st.integers(min_value=-(2**200), max_value=2**200))
trees = st.dictionaries(
    keys,
    st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(keys, t, max_size=3)),
    max_size=4,
)


@pytest.fixture(scope="module", autouse=True)
def small_numbers_are_numbers() -> None:
    """A run that trained in this process before had torch flush them to zero."""
    torch.set_flush_denormal(False)


@settings(max_examples=150, deadline=None)
@given(state=trees, replay=st.none() | trees, weights=st.dictionaries(st.text(), arrays))
def test_any_state_comes_back_exactly(state: Any, replay: Any, weights: Any) -> None:
    weights.pop("__metadata__", None)
    where = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where) as folder:
        path = checkpoint.save(Path(folder), 7, weights=weights, state=state, replay=replay)
        loaded = checkpoint.newest(Path(folder))
        assert (loaded.step, loaded.path, loaded.problems) == (7, path, [])
        assert same(loaded.state, state)
        assert same(loaded.replay, replay)
        assert same(dict(sorted(loaded.weights.items())), dict(sorted(weights.items())))
        assert all(array.flags.writeable for array in loaded.weights.values())


def test_arrays_with_similar_paths_are_kept_apart(disk: Path) -> None:
    paths = {"a/b": np.array(1), "a": {"b": np.array(2)}, "a~1b": np.array(3), "~2": np.array(4)}
    state = {**paths, "__metadata__": np.array(5), "c": [np.array(6), {"0": np.array(7)}]}
    checkpoint.save(disk, 1, weights={}, state=state)
    assert same(checkpoint.newest(disk).state, state)


def test_a_generator_continues_where_it_was(disk: Path) -> None:
    for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox):
        rng = np.random.Generator(kind(3))
        rng.random(5)
        checkpoint.save(disk, 1, weights={}, state={"rng": rng.bit_generator.state})
        again = np.random.Generator(kind(0))
        again.bit_generator.state = checkpoint.newest(disk).state["rng"]
        assert again.random(9).tolist() == rng.random(9).tolist()


@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {3}, b"x", 1j, np.float32(1), np.array("text"), np.array(1, ">i4"), object()],
    ids=repr,
)
def test_what_could_not_come_back_exactly_is_not_saved(disk: Path, value: Any) -> None:
    with pytest.raises(TypeError, match="here"):
        checkpoint.save(disk, 1, weights={}, state={"is": {"here": value}})
    assert list(disk.iterdir()) == []


def test_a_state_too_deep_to_load_is_not_saved(disk: Path) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"in": deep}
    with pytest.raises(ValueError, match="nested too deeply"):
        checkpoint.save(disk, 1, weights={}, state=deep)


def test_equal_weights_are_equal_bytes_that_safetensors_reads(disk: Path) -> None:
    weights = {
        "b": np.arange(6.0).reshape(2, 3),
        "a": np.array(True),
        "c": np.zeros((1, 0), np.float32),
    }
    turned = {name: weights[name].copy(order="F") for name in reversed(weights)}
    one = checkpoint.save(disk / "one", 1, weights=weights, state={"x": 1})
    two = checkpoint.save(disk / "two", 2, weights=turned, state={"y": np.ones(3)})
    assert (one / FILES[0]).read_bytes() == (two / FILES[0]).read_bytes()
    read = safetensors.numpy.load_file(one / FILES[0])
    assert same({name: read[name] for name in weights}, weights)
    safetensors.numpy.load_file(two / FILES[1])


@pytest.mark.parametrize("chunk", [8, 24, 64, 1000])
def test_arrays_of_any_layout_are_written_in_pieces(
    disk: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(checkpoint_files, "CHUNK_BYTES", chunk)
    base = np.arange(7 * 5 * 3.0).reshape(7, 5, 3)
    views = {"turned": base.T, "back": base[::-1, ::2], "same": np.broadcast_to(base[0], (4, 5, 3))}
    views |= {
        "flat": base.reshape(-1),
        "one": base[:1, :1],
        "none": base[:0],
        "scalar": base[1, 1, 1:2],
    }
    checkpoint.save(disk, 1, weights=views, state={})
    loaded = checkpoint.newest(disk).weights
    assert all(same(loaded[name], np.ascontiguousarray(view)) for name, view in views.items())


def test_saving_and_loading_do_not_copy_a_large_replay(disk: Path) -> None:
    frames = np.ones((64, 1 << 20), np.uint8)[:, ::-1]
    tracemalloc.start()
    try:
        checkpoint.save(disk, 1, weights={}, state={}, replay={"frames": frames})
        replay = checkpoint.newest(disk).replay
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * checkpoint_files.CHUNK_BYTES
    assert replay is not None
    assert np.array_equal(replay["frames"], frames)
    assert checkpoint.newest(disk, replay=False).replay is None


def test_an_array_others_write_to_meanwhile_is_saved_good(disk: Path) -> None:
    shared, done = np.zeros(24 << 20, np.uint8), threading.Event()

    def write() -> None:
        while not done.is_set():
            shared[:] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for step in range(3):
            checkpoint.save(disk, step, weights={"shared": shared}, state={})
            assert checkpoint.newest(disk).step == step
    finally:
        done.set()
        writer.join()


# --- What is kept -------------------------------------------------------------------------------


def test_two_are_kept_and_only_the_newest_has_the_replay(disk: Path) -> None:
    for tag in (9, 10, 100):
        checkpoint.save(disk, tag, **content(tag))
    assert sorted(os.listdir(disk)) == ["10", "100"]
    assert_holds(checkpoint.newest(disk), 100)
    assert_holds(checkpoint.load(disk / "10"), 10, replay=False)


def test_refused_checkpoints_do_not_crowd_out_good_ones(disk: Path) -> None:
    for tag in (10, 20, 30):
        checkpoint.save(disk, tag, **content(tag))
    shutil.copytree(disk / "20", disk / "5")
    for tag in (20, 30):
        (disk / str(tag) / "manifest.json").unlink()
    checkpoint.save(disk, 15, **content(15))
    assert sorted(os.listdir(disk)) == ["15", "5"]
    assert_holds(checkpoint.newest(disk), 15)


def test_what_is_not_ours_is_left_alone(disk: Path) -> None:
    names = ["notes.txt", "007", "1.5", "-3", "٣", ".hidden"]
    for name in names:
        (disk / name).mkdir()
    for tag in (1, 2, 3):
        checkpoint.save(disk, tag, **content(tag))
    assert set(os.listdir(disk)) == {*names, "2", "3"}
    assert checkpoint.newest(disk).problems == []


def test_best_is_replaced_and_found_in_the_moment_between(disk: Path) -> None:
    for tag in (1, 2):
        checkpoint.save_best(
            disk, tag, weights=content(tag)["weights"], state=content(tag)["state"]
        )
    assert_holds(checkpoint.load_best(disk), 2, replay=False)
    os.rename(disk / "best", disk / ".best-old")
    assert_holds(checkpoint.load_best(disk), 2, replay=False)


def test_nothing_there_is_a_bad_request(disk: Path) -> None:
    (disk / ".tmp-3-77").mkdir()
    for look in (
        lambda: checkpoint.newest(disk),
        lambda: checkpoint.newest(disk / "absent"),
        lambda: checkpoint.load_best(disk),
    ):
        with pytest.raises(BadRequest, match=r"no (best )?checkpoint"):
            look()


def test_one_replaced_while_it_is_read_is_read_again(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(disk, 1, **content(1))
    read = checkpoint_reading._read

    def replaced_first(
        there: Directory, name: str, problems: list[str], *, replay: bool
    ) -> checkpoint.Loaded:
        monkeypatch.setattr(checkpoint_reading, "_read", read)
        for tag in (2, 3):
            checkpoint.save(disk, tag, **content(tag))
        return read(there, name, problems, replay=replay)

    monkeypatch.setattr(checkpoint_reading, "_read", replaced_first)
    assert_holds(checkpoint.newest(disk), 3)


# --- Kills --------------------------------------------------------------------------------------


@pytest.mark.timeout(900)  # it writes thousands of files; a busy disk is slow
def test_a_kill_at_any_line_leaves_a_good_checkpoint(disk: Path) -> None:
    command = [sys.executable, str(KILL_DRIVER), str(disk)]
    ran = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    counts = json.loads(ran.stdout)
    assert set(counts) == {"next", "again", "third", "recovering", "best"}
    assert all(count["old"] > 100 and count["new"] > 10 for count in counts.values()), counts


# --- Damage and malice --------------------------------------------------------------------------


def seal(folder: Path, change: Callable[[dict[str, Any]], object] = lambda _: None) -> None:
    """Makes the manifest true again of the files, as an attacker would; then changes it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (folder / name).read_bytes()
        entry |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def sealed(name: str, data: bytes) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        (folder / name).write_bytes(data)
        seal(folder)

    return harm


def manifest(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    return lambda folder: seal(folder, change)


def tensors(header: Any, body: bytes = bytes(16)) -> Callable[[Path], None]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return sealed("weights.safetensors", len(text).to_bytes(8, "little") + text + body)


def entry(dtype: Any = "F32", shape: Any = (4,), offsets: Any = (0, 16)) -> Callable[[Path], None]:
    return tensors({"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}})


class Malice:
    def __reduce__(self) -> Any:
        return os._exit, (66,)


def linked(name: str) -> Callable[[Path], None]:
    def harm(folder: Path) -> None:
        outside = folder.parent.parent / f"outside-{name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return harm


def linked_whole(folder: Path) -> None:
    shutil.move(folder, folder.parent.parent / "outside")
    folder.symlink_to(folder.parent.parent / "outside")


def piped(folder: Path) -> None:
    (folder / "weights.safetensors").unlink()
    os.mkfifo(folder / "weights.safetensors")


def folder_for_file(folder: Path) -> None:
    (folder / "state.json").unlink()
    (folder / "state.json").mkdir()


def file_for_folder(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def listed(name: str) -> Callable[[Path], None]:
    """Lists a file elsewhere that is there and is what the manifest says, but for its name."""

    def harm(folder: Path) -> None:
        target = name.format(outside=folder.parent / "outside.bin")
        (folder / target).write_bytes((folder / "weights.safetensors").read_bytes())
        weights = json.loads((folder / "manifest.json").read_text())["files"]["weights.safetensors"]
        seal(folder, lambda m: m["files"].update({target: weights}))

    return harm


def without(name: str, folder: Path) -> None:
    (folder / name).unlink()


BOMB = b"[" * 200_000
DEEP = b'{"state":' * 700 + b"1" + b"}" * 700
MALICE = pickle.dumps(Malice())
HARM: dict[str, Callable[[Path], object]] = {
    "pickle": lambda folder: (folder / "weights.safetensors").write_bytes(MALICE),
    "sealed pickle": sealed("weights.safetensors", MALICE),
    "sealed pickle for json": sealed("state.json", MALICE),
    "huge header": sealed("weights.safetensors", (2**63 - 1).to_bytes(8, "little") + b"{}"),
    "no header": sealed("weights.safetensors", b"abc"),
    "empty": sealed("weights.safetensors", b""),
    "header bomb": tensors(BOMB),
    "header no object": tensors([1]),
    "entry no object": tensors({"w": 3}),
    "entry null": tensors({"w": None}),
    "entry empty": tensors({"w": {}}),
    "strange dtype": entry(dtype="O"),
    "dtype list": entry(dtype=["F32"]),
    "beyond the end": entry(shape=[400], offsets=[0, 1600]),
    "before the start": entry(offsets=[-16, 0]),
    "backwards": entry(offsets=[16, 0]),
    "shape too large": entry(shape=[5]),
    "negative shape": entry(shape=[-2, -2]),
    "endless shape": entry(shape=[0, 2**70], offsets=[0, 0]),
    "many dimensions": entry(shape=[1] * 99 + [4]),
    "float shape": entry(shape=[4.0]),
    "text shape": entry(shape="4"),
    "number shape": entry(shape=4),
    "three offsets": entry(offsets=[0, 8, 16]),
    "overlapping arrays": tensors(
        {name: {"dtype": "U8", "shape": [16], "data_offsets": [0, 16]} for name in "ab"}
    ),
    "a gap between arrays": entry(shape=[3], offsets=[4, 16]),
    "more data than arrays": entry(shape=[3], offsets=[0, 12]),
    "much json": sealed("state.json", b'{"state": {"a": [' + b"[]," * (JSON_LIMIT // 3) + b"1]}}"),
    "much json for header": tensors(b'{"a": [' + b"[]," * (JSON_LIMIT // 3) + b"1]}"),
    "manifest sparse": lambda folder: os.truncate(folder / "manifest.json", 8 << 30),
    "json bomb": sealed("state.json", BOMB),
    "deep json": sealed("state.json", DEEP),
    "json no object": sealed("state.json", b"[]"),
    "json no state": sealed("state.json", b'{"state": 3}'),
    "json replay no object": sealed("state.json", b'{"state": {}, "replay": 3}'),
    "json absent array": sealed("state.json", b'{"state": {"a": {"$array": "no"}}}'),
    "json strange array": sealed("state.json", b'{"state": {"a": {"$array": {}}}}'),
    "json strange float": sealed("state.json", b'{"state": {"a": {"$float": []}}}'),
    "json endless number": sealed("state.json", b'{"state": {"a": ' + b"9" * 5000 + b"}}"),
    "json not text": sealed("state.json", b"\xff\xfe\x00\x80"),
    "manifest bomb": lambda folder: (folder / "manifest.json").write_bytes(BOMB) and None,
    "manifest list": lambda folder: (folder / "manifest.json").write_bytes(b"[1]") and None,
    "manifest missing": lambda folder: (folder / "manifest.json").unlink(),
    "format text": manifest(lambda m: m.update(format="1")),
    "format true": manifest(lambda m: m.update(format=True)),
    "format null": manifest(lambda m: m.update(format=None)),
    "format before the first": manifest(lambda m: m.update(format=0)),
    "step text": manifest(lambda m: m.update(step="2")),
    "step of another": manifest(lambda m: m.update(step=1)),
    "files list": manifest(lambda m: m.update(files=list(m["files"]))),
    "file missing from manifest": manifest(lambda m: m["files"].pop("state.json")),
    "entry text": manifest(lambda m: m["files"].update({"state.json": "x"})),
    "size text": manifest(lambda m: m["files"]["state.json"].update(bytes="9")),
    "hash list": manifest(lambda m: m["files"]["state.json"].update(sha256=[])),
    "weights optional": manifest(lambda m: m["files"]["weights.safetensors"].update(optional=True)),
    "name upwards": listed("../../outside.bin"),
    "name absolute": listed("{outside}"),
    "name of a secret": manifest(lambda m: m["files"].update({"../../etc/passwd": {}})),
    "name unknown": listed("extra.bin"),
    "link": linked("weights.safetensors"),
    "link for manifest": linked("manifest.json"),
    "link for replay": linked("replay.safetensors"),
    "link for folder": linked_whole,
    "pipe": piped,
    "folder for file": folder_for_file,
    "file for folder": file_for_folder,
    **{f"{name} missing": partial(without, name) for name in FILES[:3]},
}


@pytest.mark.parametrize("name", HARM)
def test_harm_is_refused_in_a_sentence_and_the_older_one_used(disk: Path, name: str) -> None:
    folder = disk / "run" / "checkpoints"
    for tag in (1, 2):
        checkpoint.save(folder, tag, **content(tag))
    HARM[name](folder / "2")
    loaded = checkpoint.newest(folder)
    assert_holds(loaded, 1, replay=False)
    (sentence,) = loaded.problems
    assert "checkpoint 2 was refused: " in sentence
    assert "\n" not in sentence
    shutil.rmtree(folder / "1")
    for look in (lambda: checkpoint.newest(folder), lambda: checkpoint.load(folder / "2")):
        with pytest.raises(Failure, match=r"no usable checkpoint in .*: checkpoint 2 ") as caught:
            look()
        assert caught.value.remedy


def test_what_exceeds_the_memory_is_refused_before_it_is_read(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(disk, 2, **content(2))
    monkeypatch.setattr(machine, "free_bytes", lambda: 100)
    with pytest.raises(Failure, match=r"its weights and state take .* are free"):
        checkpoint.newest(disk)


@pytest.mark.parametrize("name", ["checkpoints", "best", "snapshots"])
def test_a_link_in_place_of_a_folder_is_neither_read_nor_written(disk: Path, name: str) -> None:
    run, mine = disk / "run", disk / "mine"
    checkpoint.save(mine, 1, **content(1))
    shutil.copytree(mine / "1", mine / "7")  # of another kind; pruning would remove it
    run.mkdir()
    (run / name).symlink_to(mine)
    before = sorted(mine.rglob("*"))
    kept = {key: content(9)[key] for key in ("weights", "state")}
    save: dict[str, Callable[[], object]] = {
        "checkpoints": lambda: checkpoint.save(run / name, 9, **kept),
        "best": lambda: checkpoint.save_best(run, 9, **kept),
        "snapshots": lambda: checkpoint.save_snapshot(run, 9, **kept),
    }
    look: dict[str, Callable[[], object]] = {
        "checkpoints": lambda: checkpoint.newest(run / name),
        "best": lambda: checkpoint.load_best(run),
        "snapshots": lambda: checkpoint.load_snapshot(run, 1),
    }
    with pytest.raises(Failure, match="symbolic link"):
        look[name]()
    if name == "best":  # it is put in the link's place
        save[name]()
    else:
        with pytest.raises(Failure, match="symbolic link"):
            save[name]()
    assert sorted(mine.rglob("*")) == before


def test_a_format_from_the_future_names_both(disk: Path) -> None:
    checkpoint.save(disk, 2, **content(2))
    seal(disk / "2", lambda m: m.update(format=7))
    with pytest.raises(Failure, match="format 7, this manyhands reads format 2: a newer"):
        checkpoint.newest(disk)


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_truncated_and_flipped_files_are_refused(disk: Path, name: str) -> None:
    for tag in (1, 2):
        checkpoint.save(disk, tag, **content(tag))
    good, rng = (disk / "2" / name).read_bytes(), random.Random(name)
    lengths = {0, 1, 7, 8, 9, len(good) // 2, len(good) - 1}
    damaged = [good[:length] for length in sorted(lengths)] + [good + b" "] * (name in FILES)
    for _ in range(40):
        at, bit = rng.randrange(len(good)), 1 << rng.randrange(8)
        damaged.append(good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :])
    for data in damaged:
        (disk / "2" / name).write_bytes(data)
        loaded = checkpoint.newest(disk)
        assert_holds(loaded, 1, replay=False)
        assert len(loaded.problems) == 1


# --- Disks --------------------------------------------------------------------------------------

TOO_LARGE = """
import resource, sys
from pathlib import Path
import numpy as np
from manyhands.runs import checkpoint, checkpoint_files
from manyhands.types import Failure

folder = Path(sys.argv[1])
checkpoint.save(folder, 1, weights={"w": np.ones(3)}, state={"n": 1})
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for limit in (0, 100, 9000, 70_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        checkpoint.save(folder, 2, weights={"w": np.ones(300_000)}, state={})
    except Failure as error:
        print(error.what, "|", error.remedy)
    assert [path.name for path in folder.iterdir()] == ["1"]
    assert checkpoint.newest(folder).weights["w"].tolist() == [1, 1, 1]
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
checkpoint.save(folder, 2, weights={"w": np.ones(300_000)}, state={})
assert checkpoint.newest(folder).step == 2
"""


def test_a_file_that_may_not_grow_leaves_the_one_before(disk: Path) -> None:
    command = [sys.executable, "-c", TOO_LARGE, str(disk)]
    ran = subprocess.run(command, env=ALONE, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert line.startswith("could not write checkpoint 2: File too large | Free some space")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs root and leave to mount a disk of 1 MB")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_leaves_the_one_before(tiny_disk: Path) -> None:
    checkpoint.save(tiny_disk, 1, **content(1))
    for size in (900_000, 2_000_000):
        weights = {"w": np.ones(size, np.uint8), "v": np.ones(150_000, np.uint8)}
        with pytest.raises(Failure, match="checkpoint 2: No space left on device"):
            checkpoint.save(tiny_disk, 2, weights=weights, state={})
        assert os.listdir(tiny_disk) == ["1"]
        assert_holds(checkpoint.newest(tiny_disk), 1)
    checkpoint.save(tiny_disk, 2, **content(2))
    assert_holds(checkpoint.newest(tiny_disk), 2)


CALLS = [
    ("mkdir", 2),
    ("mkdir", 3),
    ("rename", 1),
    ("rename", 2),
    *(("fsync", nth) for nth in range(1, 8)),
]


@pytest.mark.parametrize(("call", "nth"), CALLS)
def test_an_error_of_the_system_leaves_a_good_one(
    disk: Path, monkeypatch: pytest.MonkeyPatch, call: str, nth: int
) -> None:
    checkpoint.save(disk, 1, **content(1))
    real, calls = getattr(os, call), []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == nth:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(*arguments, **options)

    monkeypatch.setattr(os, call, fail_once)
    with pytest.raises(Failure, match="could not write checkpoint 1: Input/output error"):
        checkpoint.save(disk, 1, **content(1))
    assert_holds(checkpoint.newest(disk), 1)
    checkpoint.save(disk, 2, **content(2))
    assert sorted(os.listdir(disk)) == ["1", "2"]


def test_a_disk_too_small_is_refused_before_the_start(disk: Path) -> None:
    checkpoint.check_disk(disk / "not" / "yet", 1000)
    with pytest.raises(BadRequest, match=r"1,000,000\.0 GB needed, [0-9.,]+ [GM]B free"):
        checkpoint.check_disk(disk / "not" / "yet", 10**15)


def test_json_is_replaced_whole_and_strict(disk: Path) -> None:
    path = disk / "status.json"
    checkpoint.write_json_atomically(path, {"old": 1})
    checkpoint.write_json_atomically(path, {"a": math.nan, "b": [np.float32(0.5), (math.inf,)]})
    assert json.loads(path.read_text()) == {"a": None, "b": [0.5, [None]]}
    assert os.listdir(disk) == ["status.json"]
    with pytest.raises(Failure, match=r"could not write status\.json: No such file"):
        checkpoint.write_json_atomically(disk / "absent" / "status.json", {})
    with pytest.raises(TypeError):
        checkpoint.write_json_atomically(path, {"a": object()})
    assert json.loads(path.read_text())["b"] == [0.5, [None]]
