"""The command line as a user runs it: a process of its own, with pipes or a terminal, and no configuration."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from penstock.cli.verbs import VERBS, load
from tests.support import starting

SECONDS_MAX = 60
_NUDGE_SECONDS = 0.2
COMMAND = [sys.executable, "-m", "penstock.cli"]


def environment(**variables: str) -> dict[str, str]:
    """What a verb sees of the environment: wide lines, no profile of whoever runs the tests."""
    return os.environ | {"COLUMNS": "200", "XDG_CONFIG_HOME": "/nonexistent"} | variables


def penstock(*arguments: str, given: str | bytes | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a verb to its end. `given` is its standard input."""
    said = given.decode() if isinstance(given, bytes) else given
    return starting.run([*COMMAND, *arguments], SECONDS_MAX, said, text=True, env=environment(**variables))


class Terminal:
    """A verb, or another program, at a terminal of its own: what it shows, and keys to press."""

    def __init__(self, *arguments: str, command: Sequence[str] = COMMAND, **variables: str) -> None:
        self._screen, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
        self.process = subprocess.Popen(
            [*command, *arguments],
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env=environment(**{"TERM": "xterm-256color"} | variables),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(terminal)
        self.shown = ""

    def wait_for(self, text: str, nudge: Callable[[], object] = lambda: None) -> None:
        """Read until this is on the screen. `nudge` is called again and again until then."""
        deadline = time.monotonic() + SECONDS_MAX
        while text not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} is not shown:\n{self.shown}"
            nudge()
            if select.select([self._screen], [], [], _NUDGE_SECONDS)[0]:
                self.shown += self._read()

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def end(self) -> int:
        """Read to the end. Returns the exit code."""
        while more := self._read():
            self.shown += more
        os.close(self._screen)
        return self.process.wait(SECONDS_MAX)

    def _read(self) -> str:
        try:
            return os.read(self._screen, 1 << 16).decode("utf-8", "replace")
        except OSError:  # The other side is closed.
            return ""


def all_verbs() -> list[tuple[str, ...]]:
    """Every verb with the verbs below it."""
    return [(), *(path for name in VERBS for path in _below((name,), load(name)))]


def _below(path: tuple[str, ...], command: Any) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from _below((*path, name), child)
