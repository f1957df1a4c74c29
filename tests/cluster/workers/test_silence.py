"""When a silent worker is asked what it is doing, and when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from penstock.cluster.workers.board import Board
from penstock.cluster.workers.silence import Guard, Silences
from penstock.limits import SILENCE_KILL_SECONDS, SILENCE_LOOK_SECONDS, STACK_SECONDS_MAX

LIMIT = 10.0
DEAF = "import signal; signal.signal(signal.SIGUSR1, signal.SIG_IGN); print(flush=True); signal.pause()"


class Watched:
    """A board, and an attentive supervisor in its own time."""

    def __init__(self, processes: dict[int, int]) -> None:
        self.board = Board(len(processes))
        self.guard = Guard(self.board, LIMIT)
        self.now = 0.0
        for worker in processes:
            self.board.beat(worker)
        self.guard.look(processes, self.now)

    def look(self, processes: dict[int, int], seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += SILENCE_LOOK_SECONDS
            self.guard.look(processes, self.now)


def test_silence_is_the_time_since_the_last_beat() -> None:
    board = Board(3)
    silences = Silences(board)
    for worker in (0, 1):
        board.beat(worker)
    for look in range(5):
        board.beat(0)
        found = silences.look(range(3), look * SILENCE_LOOK_SECONDS)
        assert found == ({1: look * SILENCE_LOOK_SECONDS} if look else {}), "worker 2 has not begun"
    board.beat(1)
    board.leave(0)
    assert silences.look(range(3), 5 * SILENCE_LOOK_SECONDS) == {}


def test_time_in_which_the_supervisor_was_away_does_not_count() -> None:
    board = Board(1)
    silences = Silences(board)
    board.beat(0)
    for now in (0.0, SILENCE_LOOK_SECONDS):
        silences.look([0], now)
    assert silences.look([0], 3600.0)[0] <= 3 * SILENCE_LOOK_SECONDS


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Two that say nothing, whatever they are asked."""
    started = [subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) for _ in range(2)]
    for each in started:
        assert each.stdout
        each.stdout.readline()
    yield started
    for each in started:
        each.kill()
        each.communicate()


def test_a_worker_is_asked_and_then_killed_and_the_next_one_a_minute_later(
    processes: list[subprocess.Popen[bytes]],
) -> None:
    running = {worker: each.pid for worker, each in enumerate(processes)}
    watched = Watched(running)
    watched.look(running, LIMIT + STACK_SECONDS_MAX / 2)
    assert not any(map(has_ended, processes)), "it has a second to answer"
    watched.look(running, STACK_SECONDS_MAX)
    assert processes[0].wait(60) == -signal.SIGKILL
    watched.guard.forget(0)
    del running[0]
    watched.look(running, SILENCE_KILL_SECONDS - 2 * STACK_SECONDS_MAX)
    assert not has_ended(processes[1])
    watched.look(running, 4 * STACK_SECONDS_MAX)
    assert processes[1].wait(60) == -signal.SIGKILL


def test_a_worker_that_is_heard_while_it_is_asked_lives(processes: list[subprocess.Popen[bytes]]) -> None:
    running = {0: processes[0].pid}
    watched = Watched(running)
    watched.look(running, LIMIT)
    watched.guard.hear(0, b"File ...", watched.now)
    watched.board.beat(0)
    watched.look(running, LIMIT / 2)
    assert not has_ended(processes[0])


def test_a_stopped_process_is_not_waited_for(processes: list[subprocess.Popen[bytes]]) -> None:
    running = {0: processes[0].pid}
    watched = Watched(running)
    os.kill(processes[0].pid, signal.SIGSTOP)
    os.waitpid(processes[0].pid, os.WUNTRACED)
    watched.look(running, LIMIT)
    assert processes[0].wait(60) == -signal.SIGKILL


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    return process.poll() is not None
