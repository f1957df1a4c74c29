"""`python -m penstock.cli.child PARENT VERB …`: a verb that stops when the process that started it has ended.

Linux sends it SIGTERM then, also if the parent was killed. Elsewhere the child of a killed parent continues.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from penstock.cli import main

_PR_SET_PDEATHSIG = 1


def stop_with(parent: int) -> None:
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # It ended before it could be watched.
        sys.exit(1)


if __name__ == "__main__":
    stop_with(int(sys.argv.pop(1)))
    main()
