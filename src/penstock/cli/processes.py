"""Verbs of this command line as child processes."""

from __future__ import annotations

import os
import subprocess
import sys

_STOP_SECONDS = 60.0


def start(
    *command: str,
    variables: dict[str, str] | None = None,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[str]:
    """Start a verb of the command line. It has a session of its own, so that Ctrl-C reaches only this process, which
    stops the others in order. It stops when the thread that started it has ended."""
    return subprocess.Popen(
        [sys.executable, "-m", "penstock.cli.child", str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        text=True,
        errors="replace",
        start_new_session=True,
        env=os.environ | {name: value for name, value in (variables or {}).items() if value},
    )


def stop(child: subprocess.Popen[str] | None) -> int:
    """Ask a process to stop, and wait. Returns its exit code."""
    if child is None:
        return 0
    child.terminate()
    try:
        return child.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()
