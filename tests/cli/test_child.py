"""A verb that runs as a child process: it does not outlive the process that started it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

STARTER = """
import subprocess, sys
from penstock.cli.processes import start
broker = start("serve", *sys.argv[1:], stderr=subprocess.PIPE)
assert broker.stderr is not None
next(line for line in broker.stderr if "listening" in line)
print(broker.pid, flush=True)
broker.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has ended")
def test_a_child_of_a_killed_process_stops_in_order(tmp_path: Path) -> None:
    flags = ["--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--lines", "127.0.0.1:0"]
    with subprocess.Popen([sys.executable, "-c", STARTER, *flags], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        broker = os.pidfd_open(int(starter.stdout.readline()))
        starter.kill()
    try:
        assert select.select([broker], [], [], 60)[0], "the broker goes on"
    finally:
        os.close(broker)
