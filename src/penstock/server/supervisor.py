"""The process above all workers. It makes the store, starts them and those that were killed, and serves nobody.

Workers are forked: they have its settings and its program, whatever becomes of the files meanwhile. One that ends by
itself with an error takes the others with it, because it would end in the same way again; the error says why.
"""

from __future__ import annotations

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
from pathlib import Path
from typing import NamedTuple

import uvloop
from msgspec.structs import replace

from penstock.errors import ConfigError, InUseError
from penstock.limits import UNIX_PATH_BYTES_MAX, WORKER_RESTART_SECONDS
from penstock.server.broker import Broker, tune
from penstock.server.config import Address, Config
from penstock.server.logs import set_worker
from penstock.server.parent import stop_with
from penstock.server.servers import cannot_listen
from penstock.server.setting_types import AddressText
from penstock.server.settings import parse_address
from penstock.server.tls import Tls
from penstock.server.worker import Post, Worker
from penstock.storage.directory import lock_holder, take_lock
from penstock.storage.shards import open_shards, read_shards

logger = logging.getLogger(__name__)

_STOPPING = frozenset((signal.SIGTERM, signal.SIGINT))
_HEEDED = (*_STOPPING, signal.SIGCHLD)


def serve(config: Config, workers: int, shards: int | None = None, *, insecure: bool = False) -> int:
    """Serve a store with so many workers until they are stopped; the exit code. `shards`: of a store that is made
    now; otherwise it must have as many."""
    if config.store and not config.cluster.advertise:
        raise ConfigError(
            "--workers with --store needs --advertise HOST:PORT: other brokers reach the first worker there, and each"
            " further one at the next port"
        )
    with ExitStack() as stack:
        stack.callback(os.close, _lock(config.data))
        begin = _begin_node if config.store else _begin_worker(config, workers, shards, stack)
        if config.tls.certificate:
            Tls(config.tls)  # Errors of the settings are found once, not by each worker.
        reserved = [_reserve(config.http.address), _reserve(config.lines.address)]
        http, lines = (Address(*each.getsockname()[:2]) for each in reserved)
        config = replace(config, http=replace(config.http, address=http), lines=replace(config.lines, address=lines))
        facts = {"http": str(http), "lines": str(lines), "data": str(config.data), "workers": str(workers)}
        code = Supervisor(workers).run(lambda: logger.info("listening", extra=facts))
        if isinstance(code, Forked):
            stack.pop_all()  # The supervisor needs it.
            return _work(partial(begin, config, code.worker, insecure), code)
    logger.info("stopped", extra={"workers": workers})
    return code


Begin = Callable[[Config, int, bool], Broker]  # What a worker is, by its number.


def _begin_worker(config: Config, workers: int, shards: int | None, stack: ExitStack) -> Begin:
    found = read_shards(config.data)
    store = open_shards(config.data, shards or (found.shards if found else shards_for(workers)))
    if workers > store.shards:
        raise ConfigError(
            f"{config.data} has {store.shards} shards: at most as many workers can serve it, not {workers}"
        )
    folder = _folder_of(config.data, workers, stack)
    return lambda config, worker, insecure: Worker(config, Post(worker, workers, store, folder), insecure=insecure)


def _begin_node(config: Config, worker: int, insecure: bool) -> Broker:
    """A node of its own, with a directory and an address for links of its own."""
    from penstock.server.cluster.node import Node  # Only they need the library of the store.

    def moved(text: str) -> AddressText:
        address = parse_address(text)
        return AddressText(address._replace(port=address.port + worker))

    own = config.cluster
    cluster = replace(own, advertise=moved(own.advertise), listen=moved(own.listen) if own.listen else own.listen)
    return Node(
        replace(config, data=config.data / f"worker-{worker}", cluster=cluster), insecure=insecure, is_shared=True
    )


def shards_for(workers: int) -> int:
    """How many shards a new store has: some for each worker, so that there can be more of them one day."""
    return max(4, 2 * workers)


def _lock(data: Path) -> int:
    """Nobody else may make or serve the store."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = take_lock(data / "lock")
    if lock is None:
        raise InUseError(
            f"the data directory {data.absolute()} is in use by {lock_holder(data / 'lock')}."
            " Stop that process, or choose another directory"
        )
    return lock


def _reserve(address: Address) -> socket.socket:
    """A socket that keeps the port for the workers, who share it. It does not listen itself."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as alone:  # Another broker might share its port too.
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(where)
            where = alone.getsockname()
        reserved = socket.socket(family, kind, protocol)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind(where)
    except OSError as error:
        raise cannot_listen(address, error) from None
    return reserved


def _folder_of(data: Path, workers: int, stack: ExitStack) -> Path:
    """Where the sockets of the links are: in the data directory, unless its path is too long for a socket."""
    folder = data.absolute() / "links"
    if len(os.fsencode(folder / f"worker-{workers}")) <= UNIX_PATH_BYTES_MAX:
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder
    temporary = tempfile.mkdtemp(prefix="penstock-")
    stack.callback(shutil.rmtree, temporary, ignore_errors=True)
    return Path(temporary)


def _work(begin: Callable[[], Broker], forked: Forked) -> int:
    """The life of a worker, in its own process."""
    set_worker(forked.worker)
    tune()

    async def run() -> int:
        return await begin().run(lambda _: forked.when_ready())

    return uvloop.run(run())


class Forked(NamedTuple):
    """This process is a worker."""

    worker: int
    ready: int

    def when_ready(self) -> None:
        os.write(self.ready, b"1")
        os.close(self.ready)


class Supervisor:
    """Keeps so many workers running."""

    def __init__(self, workers: int) -> None:
        self._due = dict.fromkeys(range(workers), 0.0)  # The workers to start, and when.
        self._processes: dict[int, int] = {}  # Their workers, by process.
        self._started: dict[int, float] = {}  # When each worker was started last.
        self._missing = set(range(workers))  # Those that have not listened yet.
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
        if _STOPPING.intersection(woken.recv(4096)):
            self._stop()

    def _stop(self) -> None:
        if not self._is_stopping:
            logger.info("stopping_workers")
        self._is_stopping = True
        self._due.clear()
        for process in self._processes:
            os.kill(process, signal.SIGTERM)

    # ── Start ───────────────────────────────────────────────────────────────────────────────────────────────

    def _seconds_to_next(self) -> float | None:
        return max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None

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
        process = os.fork()
        if process == 0:
            self._leave(supervisor)
            os.close(read)
            return Forked(worker, write)
        os.close(write)
        self._processes[process] = worker
        self._started[worker] = time.monotonic()
        self._selector.register(read, selectors.EVENT_READ, lambda pipe: self._listens(worker, pipe))
        return None

    def _leave(self, supervisor: int) -> None:
        """Forget, in a new worker, what belongs to the supervisor."""
        signal.set_wakeup_fd(-1)
        for number in _HEEDED:
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        stop_with(supervisor)

    def _listens(self, worker: int, pipe: int) -> None:
        is_ready = bool(os.read(pipe, 1))  # Otherwise it has ended.
        self._selector.unregister(pipe)
        os.close(pipe)
        if is_ready and worker in self._missing:
            self._missing.remove(worker)
            if not self._missing:
                self._when_ready()

    # ── End ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _reap(self) -> None:
        for process in list(self._processes):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                self._ended(self._processes.pop(process), os.waitstatus_to_exitcode(status))

    def _ended(self, worker: int, code: int) -> None:
        if self._is_stopping:
            self._code = self._code or max(code, 0)
        elif code < 0:
            logger.error("worker_killed", extra={"worker": worker, "signal": signal.Signals(-code).name})
            self._due[worker] = self._started[worker] + WORKER_RESTART_SECONDS
        else:
            logger.error("worker_ended", extra={"worker": worker, "code": code})
            self._code = code
            self._stop()
