"""A child process of a worker: it runs one job after the other, each a frame on a socket.

python -m penstock.worker.runtime.child MODULE:APP SOCKET
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from functools import partial

import msgspec

from penstock.worker.app import App
from penstock.worker.context import Job, Progress
from penstock.worker.errors import printable
from penstock.worker.loading import load
from penstock.worker.outcome import Outcome, misfit, performed, raised
from penstock.worker.runtime import frames


def main(target: str, descriptor: int, level: int) -> None:
    # A signal of the terminal goes to all processes. The worker decides when its children end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    link = _Link(socket.socket(fileno=descriptor))
    logging.basicConfig(level=level, format="%(message)s", handlers=[_ToWorker(link)])
    app = load(target)
    while order := link.receive():
        link.send(frames.Ended(_perform(app, order, link)))


class _Link:
    """The socket to the worker. Threads that a function has started may log at the same time."""

    def __init__(self, link: socket.socket) -> None:
        self._socket = link
        self._incoming = link.makefile("rb")
        self._lock = threading.Lock()
        self._process = os.getpid()

    def receive(self) -> frames.Order | None:
        """The next job; None: there will be no more."""
        head = self._incoming.read(frames.LENGTH_BYTES)
        return frames.decode_order(self._incoming.read(int.from_bytes(head, "big"))) if head else None

    def send(self, answer: frames.Answer) -> None:
        if os.getpid() != self._process:  # The function has forked, and this is its child.
            if isinstance(answer, frames.Ended):
                os._exit(0)
            return
        data = frames.frame(answer)
        with self._lock:
            self._socket.sendall(data)


class _ToWorker(logging.Handler):
    """The worker writes all lines, in the form that it was given."""

    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._link.send(frames.Line(record.name, record.levelno, printable(self.format(record))))
        except Exception:
            self.handleError(record)


def _perform(app: App, order: frames.Order, link: _Link) -> Outcome:
    def report(progress: Progress) -> None:
        link.send(frames.Report(progress))

    Job(order.id, order.task, order.queue, order.attempt, order.created, report).enter()
    try:
        task = app.tasks[order.task]
        args, kwargs = task.arguments.decode(order.args, as_json=order.as_json)
    except msgspec.DecodeError as error:
        return misfit(order.task, error)
    except BaseException as error:
        return raised(error)
    return performed(task.name, task.no_retry, partial(task.function, *args, **kwargs))


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - As `python -m` does.
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
