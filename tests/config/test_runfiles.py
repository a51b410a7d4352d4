"""Files of a run's folder: no link is followed, no pipe waited for, no more read than allowed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from manyhands.config import runfiles
from manyhands.config.runfiles import Directory

Use = Callable[[Directory, str], object]
USES: dict[str, Use] = {
    "reading": lambda folder, name: folder.reading(name).close(),
    "read": lambda folder, name: folder.read(name, 100),
    "lines": lambda folder, name: list(folder.lines(name, 100)),
    "appending": lambda folder, name: folder.appending(name).close(),
    "creating": lambda folder, name: folder.creating(name).close(),
}


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Somebody's own file, beside the folder."""
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_link_in_the_folder_is_not_followed(run: Path, victim: Path, use: Use) -> None:
    (run / "file").symlink_to(victim)
    with runfiles.opened(run) as folder, pytest.raises(OSError, match=r"link|exists"):
        use(folder, "file")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_link_to_nothing_makes_nothing(run: Path, tmp_path: Path, use: Use) -> None:
    (run / "file").symlink_to(tmp_path / "not-there")
    with runfiles.opened(run) as folder, pytest.raises(OSError, match=r"link|exists"):
        use(folder, "file")
    assert not (tmp_path / "not-there").exists()


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_only_regular_files_are_opened(run: Path, use: Use, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(run / "file")
    elif kind == "folder":
        (run / "file").mkdir()
    else:
        os.mknod(run / "file", stat.S_IFSOCK | 0o600)
    with runfiles.opened(run) as folder, pytest.raises(OSError, match=r"regular|exists"):
        use(folder, "file")


@pytest.mark.parametrize("name", ["", ".", "..", "../victim", "/etc/passwd", "a/b", "a\0b"])
@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_name_is_no_path(run: Path, use: Use, name: str) -> None:
    with runfiles.opened(run) as folder, pytest.raises(OSError, match="not the name of a file"):
        use(folder, name)


def test_the_folder_itself_may_be_a_link_and_those_in_it_may_not(run: Path, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to(run)
    with runfiles.opened(tmp_path / "latest", "a", "b", make=True) as folder:
        folder.write("file", b"1")
    assert (run / "a" / "b" / "file").read_bytes() == b"1"
    (run / "elsewhere").symlink_to(tmp_path)
    for make in (False, True):
        with (
            pytest.raises(OSError, match=r"elsewhere|link"),
            runfiles.opened(run, "elsewhere", "made", make=make),
        ):
            pass
    assert not (tmp_path / "made").exists()


def test_a_file_is_replaced_whole_or_not_at_all(run: Path, victim: Path) -> None:
    (run / "file").symlink_to(victim)
    with runfiles.opened(run) as folder:
        folder.write("file", b"ours")
        with suppress(ZeroDivisionError), folder.replacing("file") as file:
            file.write(b"half")
            raise ZeroDivisionError
    assert (run / "file").read_bytes() == b"ours"
    assert not (run / "file").is_symlink()
    assert victim.read_text() == "mine"
    assert os.listdir(run) == ["file"]


def test_a_device_or_a_pipe_is_not_replaced(run: Path) -> None:
    os.mkfifo(run / "file")
    with runfiles.opened(run) as folder, pytest.raises(OSError, match="not a regular file"):
        folder.write("file", b"1")
    assert (run / "file").is_fifo()
    assert os.listdir(run) == ["file"]


def test_what_is_larger_than_allowed_is_not_read(run: Path) -> None:
    with (run / "file").open("wb") as file:
        file.truncate(8 << 30)  # sparse
    with runfiles.opened(run) as folder:
        for use in (folder.read, lambda *of: next(folder.lines(*of))):
            with pytest.raises(OSError, match=r"8\.6 GB, the most is 1\.0 MB"):
                use("file", 1_000_000)
        with pytest.raises(OSError, match=r"a line of more than 1\.0 MB"):
            next(folder.lines("file", 9 << 30))


def test_removing_never_leaves_the_folder(run: Path, victim: Path, tmp_path: Path) -> None:
    (run / "link").symlink_to(tmp_path)
    (run / "inner").mkdir()
    (run / "inner" / "link").symlink_to(tmp_path)
    with runfiles.opened(run) as folder:
        for name in ("link", "inner", "not there"):
            folder.remove(name)
        assert folder.names() == []
    assert victim.read_text() == "mine"


def test_what_a_kill_left_behind_is_removed_and_nothing_else(run: Path) -> None:
    with runfiles.opened(run) as folder:
        folder.write(".0123456789abcdef.tmp", b"half")
        folder.write("my.tmp", b"mine")
        folder.remove_temporaries()
        assert folder.names() == ["my.tmp"]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"[1]", "object"), (b"no", "Expecting"), (b"[" * 100_000, "deeply"), (b"\xff", "decode")],
)
def test_what_is_no_json_object_is_a_value_error(run: Path, content: bytes, why: str) -> None:
    with runfiles.opened(run) as folder:
        folder.write("file", content)
        with pytest.raises(ValueError, match=why):
            runfiles.read_json(folder, "file")
        folder.write("file", b'{"a": 1}')
        assert runfiles.read_json(folder, "file") == {"a": 1}
