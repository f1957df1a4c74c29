"""The process above all workers. It makes the store, starts them and those that were killed, and serves nobody.

Workers are forked: they have its settings and its program, whatever becomes of the files meanwhile. One that ends by
itself with an error takes the others with it, because it would end in the same way again; the error says why.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import selectors
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import NamedTuple, Protocol

import uvloop
from msgspec.structs import replace

from penstock.cluster.workers.board import Board
from penstock.cluster.workers.doors import Doors, make_doors
from penstock.cluster.workers.lookout import Lookout
from penstock.cluster.workers.silence import STACK_SIGNAL, Guard
from penstock.config.config import Address, Config, parse_address
from penstock.config.types import AddressText
from penstock.errors import ConfigError
from penstock.limits import ORPHANS_SECONDS, SILENCE_LOOK_SECONDS, UNIX_PATH_BYTES_MAX, WORKER_RESTART_SECONDS
from penstock.server.broker import Broker, tune
from penstock.server.logs import set_worker
from penstock.server.parent import stop_with
from penstock.server.reloading import Reloading
from penstock.server.store_lock import lock_store
from penstock.server.worker import Post, Worker
from penstock.shells.tls import Tls
from penstock.storage.shards import open_shards, read_shards

logger = logging.getLogger(__name__)

_STOPPING = frozenset((signal.SIGTERM, signal.SIGINT))
_HEEDED = (*_STOPPING, signal.SIGCHLD, signal.SIGHUP)
_READY = b"1"
_PIPE_BYTES = 64 << 10


def serve(reloading: Reloading, workers: int, shards: int | None = None, *, insecure: bool = False) -> int:
    """Serve a store with so many workers until they are stopped; the exit code. `shards`: of a store that is made
    now; otherwise it must have as many."""
    config = reloading.config
    if config.store and not config.cluster.advertise:
        raise ConfigError(
            "--workers with --store needs --advertise HOST:PORT: other brokers reach the first worker there, and each"
            " further one at the next port"
        )
    with ExitStack() as stack:
        stack.callback(os.close, lock_store(config.data, config.stop_seconds + ORPHANS_SECONDS))
        begin = _begin_node if config.store else _begin_worker(config, workers, shards, stack)
        if config.tls.certificate:
            Tls(config.tls)  # Errors of the settings are found once, not by each worker.
        doors, board = make_doors(config.http.address, config.lines.address, workers), Board(workers)
        http, lines = replace(config.http, address=doors.http), replace(config.lines, address=doors.lines)
        config = replace(config, http=http, lines=lines)
        facts = {
            "http": str(doors.http),
            "lines": str(doors.lines),
            "data": str(config.data),
            "workers": str(workers),
        }
        supervisor = Supervisor(board, doors, config.worker_silence_seconds)
        code = supervisor.run(lambda: logger.info("listening", extra=facts))
        if isinstance(code, Forked):
            stack.pop_all()  # The supervisor needs it.
            return work(partial(begin, config, Lookout(code.worker, board, doors), insecure), code, reloading)
    logger.info("stopped", extra={"workers": workers})
    return code


Begin = Callable[[Config, Lookout, bool], Broker]  # What a worker is.


def _begin_worker(config: Config, workers: int, shards: int | None, stack: ExitStack) -> Begin:
    found = read_shards(config.data)
    store = open_shards(config.data, shards or (found.shards if found else shards_for(workers)))
    if workers > store.shards:
        raise ConfigError(
            f"{config.data} has {store.shards} shards: at most as many workers can serve it, not {workers}"
        )
    folder = _folder_of(config.data, workers, stack)
    return lambda config, lookout, insecure: Worker(config, Post(lookout, workers, store, folder), insecure=insecure)


def _begin_node(config: Config, lookout: Lookout, insecure: bool) -> Broker:
    """A node of its own, with a directory and an address for links of its own."""
    from penstock.server.node import Node  # Only they need the library of the store.

    def moved(text: str) -> AddressText:
        address = parse_address(text)
        return AddressText(address._replace(port=address.port + lookout.worker))

    own = config.cluster
    cluster = replace(own, advertise=moved(own.advertise), listen=moved(own.listen) if own.listen else own.listen)
    config = replace(config, data=config.data / f"worker-{lookout.worker}", cluster=cluster)
    return Node(config, insecure=insecure, lookout=lookout)


def shards_for(workers: int) -> int:
    """How many shards a new store has: some for each worker, so that there can be more of them one day."""
    return max(4, 2 * workers)


def _folder_of(data: Path, workers: int, stack: ExitStack) -> Path:
    """Where the sockets of the links are: in the data directory, unless its path is too long for a socket."""
    folder = data.absolute() / "links"
    if len(os.fsencode(folder / f"worker-{workers}")) <= UNIX_PATH_BYTES_MAX:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder
    temporary = tempfile.mkdtemp(prefix="penstock-")
    stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


class Serving(Protocol):
    """What a worker does until it ends, with its exit code. It says when it listens."""

    reloading: Reloading | None

    async def run(self, when_listening: Callable[[Address], None]) -> int: ...


def work(begin: Callable[[], Serving], forked: Forked, reloading: Reloading | None = None) -> int:
    """The life of a worker, in its own process. It reads settings again when the supervisor is asked to."""
    set_worker(forked.worker)
    faulthandler.register(STACK_SIGNAL, forked.pipe)
    tune()

    async def run() -> int:
        serving = begin()
        serving.reloading = reloading
        return await serving.run(lambda _: forked.when_ready())

    return uvloop.run(run())


class Forked(NamedTuple):
    """This process is a worker."""

    worker: int
    pipe: int  # To the supervisor: that it is ready, and what it is doing when it is asked.

    def when_ready(self) -> None:
        os.write(self.pipe, _READY)


class Supervisor:
    """Keeps the workers running."""

    def __init__(self, board: Board, doors: Doors, silence_seconds: float) -> None:
        workers = range(board.workers)
        self._board, self._doors = board, doors
        self._guard = Guard(board, silence_seconds)
        self._due = dict.fromkeys(workers, 0.0)  # The workers to start, and when.
        self._processes: dict[int, int] = {}  # Of the workers, by their numbers.
        self._pipes: dict[int, bool] = {}  # From workers, and whether each has said that it is ready.
        self._started: dict[int, float] = {}  # When each worker was started last.
        self._missing = set(workers)  # Those that have not listened yet.
        self._code = 0
        self._is_stopping = False
        self._selector = selectors.DefaultSelector()

    def run(self, when_ready: Callable[[], None]) -> int | Forked:
        """Returns the exit code when all workers have ended; in each of them, `Forked`. `when_ready`: called when all
        listen."""
        self._when_ready = when_ready
        self._heed_signals()
        while self._due or self._processes:
            if forked := self._start_due():
                return forked
            for key, _ in self._selector.select(self._seconds_to_next()):
                key.data(key.fileobj)
            self._reap()
            self._guard.look(self._processes, time.monotonic())
        return self._code

    def _heed_signals(self) -> None:
        read, write = socket.socketpair()
        read.setblocking(False)
        write.setblocking(False)
        signal.set_wakeup_fd(write.fileno())
        self._wakeup = write  # Keeps it open.
        for number in _HEEDED:
            signal.signal(number, lambda *_: None)
        self._selector.register(read, selectors.EVENT_READ, self._signaled)

    def _signaled(self, woken: socket.socket) -> None:
        signals = woken.recv(4096)
        if _STOPPING.intersection(signals):
            self._stop()
        if signal.SIGHUP in signals:
            for process in self._processes.values():
                os.kill(process, signal.SIGHUP)

    def _stop(self) -> None:
        if not self._is_stopping:
            logger.info("stopping_workers")
        self._is_stopping = True
        self._due.clear()
        self._doors.close()  # Nobody can connect any more when the workers have closed theirs.
        for process in self._processes.values():
            os.kill(process, signal.SIGTERM)

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def _seconds_to_next(self) -> float:
        due = min(self._due.values(), default=inf) - time.monotonic()
        return max(0.0, min(due, SILENCE_LOOK_SECONDS))

    def _start_due(self) -> Forked | None:
        for worker, at in list(self._due.items()):
            if at <= time.monotonic():
                del self._due[worker]
                if forked := self._start(worker):
                    return forked
        return None

    def _start(self, worker: int) -> Forked | None:
        supervisor = os.getpid()
        read, write = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEEDED)  # The new worker must not miss that it is to stop.
        process = os.fork()
        if process == 0:
            self._leave(supervisor)
            os.close(read)
            os.set_blocking(write, False)  # Whoever says something must not wait for a supervisor that stands still.
            return Forked(worker, write)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
        os.close(write)
        self._processes[worker] = process
        self._started[worker] = time.monotonic()
        self._pipes[read] = False
        self._selector.register(read, selectors.EVENT_READ, lambda pipe: self._heard(worker, pipe))
        return None

    def _leave(self, supervisor: int) -> None:
        """Forget, in a new worker, what belongs to the supervisor."""
        signal.set_wakeup_fd(-1)
        for number in _HEEDED:
            signal.signal(number, signal.SIG_DFL if number != signal.SIGHUP else signal.SIG_IGN)  # Until it serves.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEEDED)
        self._selector.close()
        for pipe in self._pipes:
            os.close(pipe)
        stop_with(supervisor)

    def _heard(self, worker: int, pipe: int) -> None:
        said = os.read(pipe, _PIPE_BYTES)
        if not said:  # It has ended.
            self._selector.unregister(pipe)
            del self._pipes[pipe]
            os.close(pipe)
            return
        if not self._pipes[pipe]:
            self._pipes[pipe] = True
            said = said.removeprefix(_READY)
            self._listens(worker)
        self._guard.hear(worker, said, time.monotonic())

    def _listens(self, worker: int) -> None:
        if worker in self._missing:
            self._missing.remove(worker)
            if not self._missing:
                self._when_ready()

    # ── End ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        for worker, process in list(self._processes.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._processes[worker]
                self._ended(worker, os.waitstatus_to_exitcode(status))

    def _ended(self, worker: int, code: int) -> None:
        self._board.end(worker)
        self._guard.forget(worker)
        if self._is_stopping:
            self._code = self._code or max(code, 0)
        elif code < 0:
            logger.error("worker_killed", extra={"worker": worker, "signal": signal.Signals(-code).name})
            self._due[worker] = self._started[worker] + WORKER_RESTART_SECONDS
        else:
            logger.error("worker_ended", extra={"worker": worker, "code": code})
            self._code = code
            self._stop()
