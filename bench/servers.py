"""Starts a server on loopback in a scratch directory, waits until it answers, and stops it."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.cores import on_server_core
from bench.driver import HOST

START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 120.0
PROBE_SECONDS = 0.02
LOG_TAIL_BYTES = 2000


class NotStartedError(Exception):
    """The server exited, or did not answer in time."""


@contextlib.contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A directory that other users may enter (some servers refuse to be root); removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-", dir=parent))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def begin(
    command: Sequence[object],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    pinned: bool = True,
) -> subprocess.Popen[bytes]:
    """Start it with its output in a file, on the server's core if it is `pinned`."""
    with log.open("ab") as output, on_server_core() if pinned else contextlib.nullcontext():
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            user=user,
            group=user,
            extra_groups=[] if user else None,
            start_new_session=True,  # A Ctrl-C at the terminal goes to the benchmark, which then stops the server.
        )


def wait_until_ready(
    process: subprocess.Popen[bytes],
    ready: Callable[[], bool],
    log: Path,
    seconds_max: float = START_SECONDS_MAX,
) -> None:
    deadline = time.monotonic() + seconds_max
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
            raise NotStartedError(f"{process.args!r} did not start:\n{tail}")
        time.sleep(PROBE_SECONDS)


def end(process: subprocess.Popen[bytes], signal_number: int = signal.SIGTERM) -> None:
    """Ask the server to stop, and kill it if it does not."""
    if process.poll() is None:
        process.send_signal(signal_number)
    try:
        process.wait(END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def running(
    command: Sequence[object],
    directory: Path,
    ready: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    end_signal: int = signal.SIGTERM,
) -> Iterator[subprocess.Popen[bytes]]:
    log = directory / "output.log"
    process = begin(command, log, environment=environment, user=user)
    try:
        wait_until_ready(process, ready, log)
        yield process
    finally:
        end(process, end_signal)
