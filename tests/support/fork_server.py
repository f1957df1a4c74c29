"""The process that forks what tests start as `python -m penstock.cli …`: see tests/support/starting.py.

It imports what a broker needs before it has any thread or loop of ours. A fork gets the arguments, environment,
folder and standard streams that were asked for, and runs the same main. The process between the two ends at once, so
the fork becomes a child of whoever asked, who adopts orphans at this moment.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
from typing import Any

REQUEST_BYTES_MAX = 1 << 17
_STREAMS = 3
_FILES_MAX = 1 << 16


def main() -> None:
    _import_what_brokers_import()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as channel:
        request = _serve(channel)
    if request:
        _become(request)
        runpy.run_module("penstock.cli", run_name="__main__", alter_sys=True)


def _import_what_brokers_import() -> None:
    from penstock.cli import serve, verbs
    from penstock.server import broker, settings, supervisor

    assert all((serve, verbs, broker, settings, supervisor))


def _serve(channel: socket.socket) -> dict[str, Any]:
    """What a fork is asked to be, in the fork. Nothing in the server, once nobody can ask any more."""
    while True:
        asked, streams, _, _ = socket.recv_fds(channel, REQUEST_BYTES_MAX, _STREAMS)
        if not asked:
            return {}
        if not (between := os.fork()):
            if pid := os.fork():
                channel.send(b"%d" % pid)
                os._exit(0)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            return dict(json.loads(asked))
        for stream in streams:
            os.close(stream)
        os.waitpid(between, 0)
        channel.send(b"adopted")


def _become(request: dict[str, Any]) -> None:
    os.closerange(_STREAMS, _FILES_MAX)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    sys.path[0] = request["folder"]
    sys.argv[1:] = request["arguments"]
    signal.signal(signal.SIGINT, signal.default_int_handler)


if __name__ == "__main__":
    main()
