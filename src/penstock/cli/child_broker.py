"""A broker as a child process: its start, and the line of its log that says where it listens."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from penstock.cli.exits import CommandError

_STOP_SECONDS = 30.0


@contextmanager
def running(data: Path) -> Iterator[str]:
    """A broker on free ports, for as long as the context lasts. Yields its URL."""
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", str(data)]
    command += ["--http", "127.0.0.1:0", "--lines", "127.0.0.1:0", "--set", "logging.format=json"]
    command += ["--tls-certificate", "", "--tls-key", ""]  # Whatever the settings of this machine say.
    broker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert broker.stderr is not None
    try:
        yield url_of(broker.stderr)
    finally:
        broker.terminate()
        try:
            broker.communicate(timeout=_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            broker.kill()
            broker.communicate()


def url_of(log: IO[str]) -> str:
    """Read the log of a broker until it listens. Raises `CommandError` if it ends before."""
    said = []
    for line in log:
        if found := listening(line):
            return f"http://{found['http']}"
        said.append(line)
    raise CommandError(f"the broker did not start:\n{''.join(said)}")


def listening(line: str) -> dict[str, str]:
    """What the log line `listening` of a broker says, in either format; nothing if it is another line."""
    try:
        event = json.loads(line)
        return event if event["event"] == "listening" else {}
    except (ValueError, KeyError, TypeError):
        match = re.search(r" listening http=(?P<http>\S+) lines=(?P<lines>\S+) data=(?P<data>\S+)", line)
        return match.groupdict() if match else {}
