"""The broker as a process: start, wait until it listens, kill, stop and continue, and what it logs and needs."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from penstock.errors import PenstockError
from penstock.torture.inside import State

START_SECONDS_MAX = 120.0
LOG_LINES_MAX = 200
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class DidNotStartError(PenstockError):
    """The broker ended before it listened; the end of its log says why."""


class Process:
    """One data directory and the process that serves it, again and again."""

    def __init__(self, data: Path, settings: dict[str, Any], log: Path, trust: ssl.SSLContext | None = None) -> None:
        self.data = data
        self.trust = trust  # What clients check its certificate with, if it uses TLS.
        self.state = State()
        self.http: tuple[str, int] = ("", 0)
        self.lines: tuple[str, int] = ("", 0)
        self.log: deque[str] = deque(maxlen=LOG_LINES_MAX)
        self._log_file = log
        self._settings = [argument for name, value in settings.items() for argument in ("--set", f"{name}={value}")]
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def start(self) -> float:
        """Until it listens; the seconds that took."""
        began = time.monotonic()
        await self.spawn()
        try:
            await asyncio.wait_for(self._listening.wait(), START_SECONDS_MAX)
        except TimeoutError:
            await self.kill()
            raise DidNotStartError(f"not listening after {START_SECONDS_MAX:.0f} s\n{self.last_lines()}") from None
        if not self.http[1]:
            await self.kill()
            raise DidNotStartError(self.last_lines())
        return time.monotonic() - began

    async def spawn(self) -> None:
        command = [sys.executable, "-m", "penstock.torture.inside", msgspec.json.encode(self.state).decode()]
        command += ["serve", "--data", str(self.data), "--http", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
        command += ["--set", "logging.format=json", *self._settings]
        pipe = asyncio.subprocess.PIPE
        self.http = self.lines = ("", 0)
        self._listening = asyncio.Event()
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stderr=pipe)
        self._reader = asyncio.create_task(self._keep_log(self._process))

    async def _keep_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        with self._log_file.open("ab") as file:
            async for line in process.stderr:
                file.write(line)
                file.flush()
                self.log.append(line.decode("utf-8", "replace").rstrip())
                if b'"listening"' in line:
                    self._read_addresses(line)
        self._listening.set()

    def _read_addresses(self, line: bytes) -> None:
        said = msgspec.json.decode(line)
        self.http, self.lines = _address(said["http"]), _address(said["lines"])
        self._listening.set()

    def last_lines(self) -> str:
        return "\n".join(list(self.log)[-20:])

    # ── Faults

    async def command(self, **changes: Any) -> None:
        """Change what fails, in the process and in those that follow it."""
        self.state = msgspec.structs.replace(self.state, **changes)
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(msgspec.json.encode(self.state) + b"\n")
                await self._process.stdin.drain()
            except ConnectionError:
                pass  # It has just ended. The next one begins with the state.

    def signal(self, number: signal.Signals) -> None:
        """Not through asyncio: it would take the exit code of a process that has just ended, and lose it."""
        if self._process is not None and self._process.returncode is None:
            try:
                os.kill(self._process.pid, number)
            except ProcessLookupError:
                pass  # It has just ended.

    async def kill(self) -> None:
        self.signal(signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        if self._process is None:
            return 0
        code = await self._process.wait()
        assert self._reader is not None
        await self._reader
        self._process = None
        return code

    async def ended_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self.wait(), seconds)
        except TimeoutError:
            return False
        return True

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def rss_bytes(self) -> int:
        """What it has in memory; 0 if it is not running."""
        return rss_bytes(self._process.pid) if self.running and self._process else 0


def rss_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)
