"""Start `python -m penstock.cli …` for a tenth of the processor time: forked by a process that has imported it.

`Popen` and `run` are used like those of `subprocess`. What they start is a process like any other: a child of who
starts it, with arguments, environment, streams, process id and exit code of its own. Whatever is not
`python -m penstock.cli`, or is to have something that a fork cannot have, is started as always. A test of the start
itself uses `subprocess`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.fork_server import REQUEST_BYTES_MAX

_ROOT = Path(__file__).parents[2]
_COMMAND = [sys.executable, "-m", "penstock.cli"]
_OPTIONS = {"stdin", "stdout", "stderr", "cwd", "env", "text", "bufsize"}
_NAMES = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
_ENVIRONMENT = dict(os.environ)  # Of the server, whatever a test sets later.
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER in linux/prctl.h.


class Popen(subprocess.Popen[Any]):
    """Only the start is another: pipes, waiting and signals are those of `subprocess`."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._may_fork = list(command[:3]) == _COMMAND and set(options) <= _OPTIONS
        super().__init__(command, **options)

    def _execute_child(self, *given: Any) -> None:
        asked = dict(zip(_NAMES, given, strict=True))
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        if not self._may_fork or _of_python(environment) != _of_python(_ENVIRONMENT):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        streams = [
            asked[name] if asked[name] >= 0 else own for own, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        request = {
            "arguments": asked["args"][3:],
            "folder": str(asked["cwd"] or Path.cwd()),
            "environment": environment,
        }
        self.pid = _server().fork(request, streams)
        self._child_created = True
        self._close_pipe_fds(*(asked[name] for name in _PIPES))  # type: ignore[attr-defined]


def run(
    command: Sequence[str], timeout: float, given: str | bytes | None = None, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with what it printed. `given` is its standard input."""
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    with Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options) as process:
        try:
            printed = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, *printed)


class _Server:
    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._channel, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.support.fork_server", str(its.fileno())]
        with its:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], cwd=_ROOT, env=_ENVIRONMENT
            )
        atexit.register(self._end)

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """The process id of a new child of this process."""
        message = json.dumps(request).encode()
        assert len(message) <= REQUEST_BYTES_MAX
        with self._one_at_a_time:
            _adopt_orphans(True)
            try:
                socket.send_fds(self._channel, [message], streams)
                pid, adopted = self._channel.recv(16), self._channel.recv(16)
            finally:
                _adopt_orphans(False)
        assert adopted, "the fork server has ended"
        return int(pid)

    def _end(self) -> None:
        self._channel.close()
        self._process.wait()


@functools.cache
def _server() -> _Server:
    return _Server()


def _of_python(environment: Any) -> dict[str, str]:
    """What only a start can change: the interpreter reads it once."""
    return {name: value for name, value in environment.items() if name.startswith("PYTHON")}


def _adopt_orphans(adopt: bool) -> None:
    if ctypes.CDLL(None).prctl(_ADOPT_ORPHANS, int(adopt), 0, 0, 0):
        raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
