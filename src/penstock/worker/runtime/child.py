"""A child process of a worker: it runs one job after the other, each a frame on a socket.

python -m penstock.worker.runtime.child MODULE:APP SOCKET
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from typing import Any

import msgspec

from penstock.worker.context import Job, Progress
from penstock.worker.loading import load
from penstock.worker.outcome import Outcome, raised, returned
from penstock.worker.runtime import frames


def main(target: str, descriptor: int, level: int) -> None:
    # A signal of the terminal goes to all processes. The worker decides when its children end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = socket.socket(fileno=descriptor)
    logging.basicConfig(level=level, format="%(message)s", handlers=[_ToWorker(link)])
    app = load(target)
    with link, link.makefile("rb") as incoming:
        while head := incoming.read(frames.LENGTH_BYTES):
            order = frames.decode_order(incoming.read(int.from_bytes(head, "big")))
            link.sendall(frames.frame(frames.Ended(_perform(app.tasks[order.task], order, link))))


class _ToWorker(logging.Handler):
    """The worker writes all lines, in the form that it was given."""

    def __init__(self, link: socket.socket) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        line = frames.Line(record.name, record.levelno, self.format(record))
        self._link.sendall(frames.frame(line))


def _perform(task: Any, order: frames.Order, link: socket.socket) -> Outcome:
    def report(progress: Progress) -> None:
        link.sendall(frames.frame(frames.Report(progress)))

    Job(order.id, order.task, order.queue, order.attempt, order.created, report).enter()
    try:
        args, kwargs = task.arguments.decode(order.args, as_json=order.as_json)
    except msgspec.DecodeError as error:
        return Outcome("invalid", error=str(error))
    try:
        return returned(task.name, task.function(*args, **kwargs))
    except BaseException as error:
        return raised(error, task.no_retry)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - As `python -m` does.
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
