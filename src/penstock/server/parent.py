"""Ends a process with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def stop_with(parent: int) -> None:
    """Have this process sent SIGTERM when its parent has ended, also if that was killed. Only on Linux."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # It ended before it could be watched.
        sys.exit(1)
