"""The only place that opens the files of a run's folder, which may come from an untrusted source.

The user gives the path of the folder, so that path may contain symbolic links. Inside the folder,
names are looked up relative to its descriptor, links are refused, and files must be regular ones: a
read from a pipe could hang. Every reader has a limit of bytes. A refusal is an OSError, `Refused`,
with the reason in its ``strerror``.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from manyhands.types.sizes import human

LINE_LIMIT = 1 << 20  # bytes; our own lines are far shorter
JSON_LIMIT = 8 << 20  # bytes: parsed, JSON may take fifty times as much memory
TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")


class Refused(OSError):
    """The file may not be opened, or is of the wrong kind."""

    def __init__(self, number: int, why: str, name: str) -> None:
        super().__init__(number, why, name)


class Directory:
    """An open folder. Its methods take names, never paths."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path  # for messages
        self._descriptor = descriptor

    # --- Contents -------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return os.listdir(self._descriptor)

    def look(self, name: str) -> os.stat_result | None:
        """The file's status, without following a link; None if there is no such name."""
        try:
            return os.stat(_single(name), dir_fd=self._descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def has_file(self, name: str) -> bool:
        return (found := self.look(name)) is not None and stat.S_ISREG(found.st_mode)

    def has_folder(self, name: str) -> bool:
        return (found := self.look(name)) is not None and stat.S_ISDIR(found.st_mode)

    # --- Subfolders -----------------------------------------------------------------------------

    @contextmanager
    def folder(self, name: str, *, make: bool = False) -> Iterator[Directory]:
        if make:
            with suppress(FileExistsError):
                self.make_folder(name)
        descriptor = self._open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield Directory(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def make_folder(self, name: str) -> None:
        os.mkdir(_single(name), dir_fd=self._descriptor)

    # --- Reading --------------------------------------------------------------------------------

    def reading(self, name: str, limit: int | None = None) -> BufferedReader:
        """Opens a regular file of at most `limit` bytes."""
        file = os.fdopen(self._open(name, os.O_RDONLY), "rb")
        size = os.fstat(file.fileno()).st_size
        if limit is not None and size > limit:
            file.close()
            raise Refused(errno.EFBIG, f"{human(size)}, the most is {human(limit)}", name)
        return file

    def read(self, name: str, limit: int) -> bytes:
        with self.reading(name, limit) as file:
            return file.read(limit)  # it may have grown since

    def lines(self, name: str, limit: int) -> Iterator[str]:
        """Reads line by line, so that a long file does not fill the memory."""
        with self.reading(name, limit) as file:
            while line := file.readline(LINE_LIMIT + 1):
                if len(line) > LINE_LIMIT:
                    most = human(LINE_LIMIT)
                    raise Refused(errno.EFBIG, f"a line of more than {most}", name)
                yield line.decode("utf-8", "replace")

    # --- Writing --------------------------------------------------------------------------------

    def creating(self, name: str) -> BinaryIO:
        """Creates a file; fails if it exists."""
        return os.fdopen(self._open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")

    def appending(self, name: str) -> BinaryIO:
        return os.fdopen(self._open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")

    @contextmanager
    def replacing(self, name: str) -> Iterator[BinaryIO]:
        """Replaces a file atomically: readers see the old content or all of the new. A link is
        replaced, not its target.
        """
        temporary = f".{secrets.token_hex(8)}.tmp"
        file = self.creating(temporary)
        try:
            with file:
                yield file
            self._refuse_devices(name)
            self.rename(temporary, name)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=self._descriptor)
            raise

    def write(self, name: str, content: bytes) -> None:
        with self.replacing(name) as file:
            file.write(content)

    def overwrite(self, name: str, content: bytes) -> None:
        """In place, which needs no space on the disk. The file keeps its size: spaces fill it."""
        with os.fdopen(self._open(name, os.O_WRONLY), "wb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if len(content) > size:
                raise Refused(errno.EFBIG, f"{len(content)} bytes do not fit into {size}", name)
            file.write(content.ljust(size))

    @contextmanager
    def trial(self) -> Iterator[BinaryIO]:
        """A temporary file, to test whether one can be written here."""
        temporary = f".{secrets.token_hex(8)}.tmp"
        with self.creating(temporary) as file:
            try:
                yield file
            finally:
                os.unlink(temporary, dir_fd=self._descriptor)

    def _refuse_devices(self, name: str) -> None:
        """Otherwise root could rename a file over /dev/null."""
        found = self.look(name)
        if found is not None and not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
            raise Refused(errno.EINVAL, "not a regular file", name)

    # --- Names ----------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        here = self._descriptor
        os.rename(_single(old), _single(new), src_dir_fd=here, dst_dir_fd=here)

    def remove(self, name: str) -> None:
        """Removes a file, a link or a whole folder, as far as possible."""
        with suppress(OSError):
            if self.has_folder(name):
                shutil.rmtree(_single(name), ignore_errors=True, dir_fd=self._descriptor)
            else:
                os.unlink(_single(name), dir_fd=self._descriptor)

    def remove_temporaries(self) -> None:
        """Removes files of a killed `replacing`. Call it only while no other process writes."""
        for name in self.names():
            if TEMPORARY.fullmatch(name):
                self.remove(name)

    def to_disk(self) -> None:
        os.fsync(self._descriptor)

    def _open(self, name: str, flags: int) -> int:
        # O_NONBLOCK: opening a pipe without a writer would wait for ever.
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(_single(name), flags, 0o666, dir_fd=self._descriptor)
        except OSError as error:
            raise self._told(name, error) from error
        if not flags & os.O_DIRECTORY and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise Refused(errno.EINVAL, "not a regular file", name)
        return descriptor

    def _told(self, name: str, error: OSError) -> OSError:
        """The kernel reports "too many levels of symbolic links" even for one link."""
        found = self.look(name) if error.errno in (errno.ELOOP, errno.ENOTDIR) else None
        if found is not None and stat.S_ISLNK(found.st_mode):
            return Refused(errno.ELOOP, "a symbolic link, which is not followed", name)
        if error.errno in (errno.ENXIO, errno.EISDIR):
            return Refused(errno.EINVAL, "not a regular file", name)
        return error


@contextmanager
def opened(root: Path, *names: str, make: bool = False) -> Iterator[Directory]:
    """Opens `root`, following links, or a folder below it, following none."""
    if make:
        root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        here = Directory(root, descriptor)
        if not names:
            yield here
            return
        with _below(here, names, make=make) as there:
            yield there
    finally:
        os.close(descriptor)


@contextmanager
def _below(here: Directory, names: tuple[str, ...], *, make: bool) -> Iterator[Directory]:
    with here.folder(names[0], make=make) as there:
        if len(names) == 1:
            yield there
            return
        with _below(there, names[1:], make=make) as further:
            yield further


@contextmanager
def replacing(path: Path, *, within: Path | None = None) -> Iterator[BinaryIO]:
    """Replaces the file `path` atomically. Makes its folder if necessary.

    `within`: the run's folder, if the file belongs there; links below it are refused.
    """
    root = within or path.parent
    below = path.parent.relative_to(root).parts
    with opened(root, *below, make=True) as folder, folder.replacing(path.name) as file:
        yield file


def try_to_write(path: Path) -> None:
    """OSError if no file can be written where `path` would be. Its folders need not exist."""
    there = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
    with opened(there) as folder, folder.trial():
        pass


def read_json(folder: Directory, name: str, limit: int = JSON_LIMIT) -> dict[str, Any]:
    """Reads a JSON object. Raises ValueError for anything else."""
    content = folder.read(name, limit)
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError(f"{name} is nested too deeply") from None
    if type(found) is not dict:
        raise ValueError(f"{name} does not hold a JSON object")
    return found


def write_json(folder: Directory, name: str, content: Any) -> None:
    """Replaces a file by strict JSON: NaN and infinities become null."""
    folder.write(name, json_text(content))


def json_text(content: Any) -> bytes:
    return json.dumps(_strict(content), indent=1, allow_nan=False).encode() + b"\n"


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    value = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def reason(error: OSError) -> str:
    """The reason of an error; with the file's name if we refused it."""
    told = error.strerror or str(error)
    return f"{error.filename}: {told}" if isinstance(error, Refused) else told


def remedy(error: OSError, otherwise: str) -> str:
    """The remedy for an error; another one if too many files are open."""
    too_many = error.errno in (errno.EMFILE, errno.ENFILE)
    return "raise the limit of open files (ulimit -n)" if too_many else otherwise


def _single(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Refused(errno.EINVAL, "not the name of a file", name)
    return name
