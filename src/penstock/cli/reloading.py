"""Running a command again whenever a Python file of the current directory changes. For development."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from penstock.cli.stopping import StopSignals

_LOOK_SECONDS = 0.5
_SKIPPED = ("site-packages", "node_modules", "__pycache__")

Times = dict[str, int]


def run_and_reload(arguments: list[str]) -> int:
    """Run `penstock ARGUMENTS…` until a signal comes. Its exit code."""
    with StopSignals() as signals:
        while True:
            before = modified_times(Path.cwd())
            process = subprocess.Popen([sys.executable, "-m", "penstock.cli", *arguments])
            while not signals.asked and modified_times(Path.cwd()) == before:
                time.sleep(_LOOK_SECONDS)
            process.terminate()
            code = process.wait()
            if signals.asked:
                return code


def modified_times(directory: Path) -> Times:
    """When each Python file was last changed. Hidden directories and installed packages are left out."""
    times: Times = {}
    for path in directory.rglob("*.py"):
        parts = path.relative_to(directory).parts
        if not any(part.startswith(".") or part in _SKIPPED for part in parts):
            times[str(path)] = _modified(path)
    return times


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # It was removed just now.
        return 0
