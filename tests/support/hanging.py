"""A supervisor with one worker whose event loop stands still as soon as it listens. It ends with the worker.

stopped-at-birth      the worker is told to stop as soon as there is a process for it
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.cluster.workers.board import Board
from penstock.cluster.workers.doors import make_doors
from penstock.config.config import Address
from penstock.server import logs
from penstock.server.reloading import Reloading
from penstock.server.supervisor import Forked, Supervisor, work

ANY = Address("127.0.0.1", 0)


class Hanging:
    """In place of a broker."""

    reloading: Reloading | None = None

    def __init__(self, board: Board) -> None:
        self._board = board

    async def run(self, when_listening: Callable[[Any], None]) -> int:
        self._board.beat(0)
        when_listening(ANY)
        return stand_still()


def stand_still() -> int:
    while True:
        signal.pause()


class Ending(logging.Handler):
    """Asks the supervisor to stop when it has killed the worker, so that there is no next one."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "worker_killed":
            signal.raise_signal(signal.SIGTERM)


def main() -> int:
    logs.set_up("warning", "json")
    if "stopped-at-birth" in sys.argv:
        os.register_at_fork(after_in_child=lambda: signal.raise_signal(signal.SIGTERM))
    logging.getLogger().addHandler(Ending())
    board = Board(1)
    supervisor = Supervisor(board, make_doors(ANY, ANY, 1), silence_seconds=1)
    code = supervisor.run(lambda: logging.getLogger("tests").warning("listening"))
    if isinstance(code, Forked):
        return work(lambda: Hanging(board), code)
    return code


if __name__ == "__main__":
    sys.exit(main())
