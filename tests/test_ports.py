"""Tests that run side by side never choose the same port."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from tests.support.ports import free_port, free_ports

PROCESSES, PORTS = 4, 150
CHOOSE = f"""
from tests.support.ports import free_port
print(*(free_port() for _ in range({PORTS})), flush=True)
input()
"""


def choosing(stack: ExitStack) -> IO[str]:
    """The output of a process that lives as long as the stack."""
    process = stack.enter_context(
        subprocess.Popen(
            [sys.executable, "-c", CHOOSE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
        )
    )
    assert process.stdout is not None
    return process.stdout


def test_processes_that_live_at_the_same_time_choose_different_ports() -> None:
    with ExitStack() as stack:
        outputs = [choosing(stack) for _ in range(PROCESSES)]
        chosen = [int(port) for output in outputs for port in output.readline().split()]
    assert len(chosen) == len(set(chosen)) == PROCESSES * PORTS


def test_ports_in_a_row_are_nobody_elses() -> None:
    chosen = [port for _ in range(50) for first in [free_ports(3)] for port in range(first, first + 3)]
    chosen += [free_port() for _ in range(50)]
    assert len(set(chosen)) == 200


def test_no_port_is_one_that_the_system_gives_to_connections() -> None:
    first, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(free_port() < first for _ in range(100))
