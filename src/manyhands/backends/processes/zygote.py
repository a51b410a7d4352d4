"""What the zygote runs: ``python -m manyhands.backends.processes.zygote``.

It imports the modules that it is given and runs nothing: no thread, no environment, no tensor. For
each order from main it forks a process, which finds these modules imported and shares their memory.
Main gives all descriptors that the process needs; there they have the numbers they have in main.

If an import leaves a thread or an open file behind, forking would not be safe. Then the zygote
begins again without imports, and each process imports for itself.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import importlib
import os
import pickle
import socket
import sys
import time
from contextlib import suppress
from typing import NoReturn

import numpy as np

from manyhands.backends.processes import child
from manyhands.backends.processes.spawn import HEADER, MODULE, NUMBER_BYTES, SENT_AT_ONCE

ADOPTION_LOOK_S = 0.0005


def main(parent: int, control: int, imports: list[str]) -> None:
    child.die_with(parent)
    child.leave_stopping_to_the_parent()
    gc.disable()
    before = left_open()
    for name in imports:
        with suppress(Exception):  # a process that needs it reports the error
            importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1 or left_open() != before:
        command = [sys.executable, "-P", "-m", MODULE, str(parent), str(control)]
        os.execv(sys.executable, command)
    gc.freeze()  # the collector would write to, and so copy, the pages of all these objects
    gc.enable()
    os.set_inheritable(control, False)
    with socket.socket(fileno=control) as orders:
        while received := receive(orders):
            fork(orders, received)
            close(received)


def left_open() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def receive(orders: socket.socket) -> list[int]:
    """The descriptors of the next order; none: main has closed its end."""
    files: list[int] = []
    sent = total = 0
    while not total or sent < total:
        header, some, _, _ = socket.recv_fds(orders, HEADER.size, SENT_AT_ONCE)
        if not header:
            return []
        sent, total = HEADER.unpack(header)
        files += some
    if len(files) == total:
        return files
    if files:  # the limit of open files was reached
        answer(files[0], -errno.EMFILE)
    close(files)
    return receive(orders)


def close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def answer(reply: int, number: int) -> None:
    """To main, which may have given up waiting."""
    with suppress(OSError):
        os.write(reply, number.to_bytes(NUMBER_BYTES, "little", signed=True))


def fork(orders: socket.socket, files: list[int]) -> None:
    """Forks twice: a process whose parent has ended becomes a child of main."""
    try:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            return
    except OSError as error:
        answer(files[0], -(error.errno or errno.EAGAIN))
        return
    try:
        between = os.getpid()
        if os.fork():
            os._exit(0)
    except OSError as error:
        answer(files[0], -(error.errno or errno.EAGAIN))
        os._exit(1)
    orders.close()
    become_child(between, files)


def become_child(between: int, files: list[int]) -> NoReturn:
    while os.getppid() == between:
        time.sleep(ADOPTION_LOOK_S)
    with os.fdopen(files[1], "rb", closefd=False) as file:
        file.seek(0)
        parent, incarnation, threads, environment, numbers, content = pickle.load(file)
    child.die_with(parent)
    answer(files[0], os.getpid())
    if not os.read(files[0], 1):  # main does not wait for this process any more
        os._exit(0)
    os.environ.clear()
    os.environ.update(environment)
    np.random.seed()  # noqa: NPY002  (else all would draw the same numbers)
    report = place(files, numbers)
    child.run(content, report, incarnation=incarnation, threads=threads)


def place(files: list[int], numbers: tuple[int, ...]) -> int:
    """Gives each descriptor its number; returns that of the report."""
    free = max([*files, *numbers]) + 1
    copies = [fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, free) for file in files]
    close(files)
    reply, order, out, error, report, *rest = copies
    for copy, number in zip((out, error, *rest), (1, 2, *numbers), strict=True):
        os.dup2(copy, number, inheritable=number <= 2)
    close([reply, order, out, error, *rest])
    return report


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
    os._exit(0)
