"""What tests start by a fork is what `python -m penstock.cli` starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import starting

COMMAND = [sys.executable, "-m", "penstock.cli"]
REFUSED = ["serve", "--data", "here", "--http", "127.0.0.1:0", "--set", "no.such=1"]
SERVED = ["serve", "--data", "here", "--http", "127.0.0.1:0", "--lines", "127.0.0.1:0"]


@pytest.mark.parametrize("arguments", [["--version"], ["config"], ["serve", "--no-such-flag"], REFUSED], ids=str)
def test_a_fork_prints_what_a_start_prints_and_ends_with_its_code(arguments: list[str], tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CONFIG_HOME": str(tmp_path), "COLUMNS": "60"}
    (tmp_path / "penstock").mkdir()
    started = subprocess.run([*COMMAND, *arguments], capture_output=True, cwd=tmp_path, env=environment, check=False)
    forked = starting.run([*COMMAND, *arguments], timeout=60, cwd=tmp_path, env=environment)
    assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


@pytest.mark.parametrize("kind", [subprocess.Popen, starting.Popen], ids=["started", "forked"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -9)])
def test_a_broker_is_a_child_of_its_own_that_gets_its_signals(
    kind: type[subprocess.Popen[bytes]], number: int, code: int, tmp_path: Path
) -> None:
    with kind([*COMMAND, *SERVED], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path) as broker:
        assert broker.stderr is not None
        while b"listening" not in broker.stderr.readline():
            assert broker.poll() is None
        assert (tmp_path / "here").is_dir()
        assert f"\nPPid:\t{os.getpid()}\n" in Path(f"/proc/{broker.pid}/status").read_text()
        broker.send_signal(number)
        assert broker.wait(60) == code
