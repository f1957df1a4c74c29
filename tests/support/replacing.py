"""Three ways in which a broker loses what it serves to others, and comes back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from tests.support.broker import Broker
from tests.support.served import Served

ComeBack = Callable[
    [Broker], None
]  # Start it if it does not run, and wait until it has the part that it should have.
Replace = Callable[[Broker, Served, ComeBack], float]  # Returns for how many seconds a queue was not served.


def kill(broker: Broker, served: Served, come_back: ComeBack) -> float:
    began = time.monotonic()
    broker.kill()
    seconds = served.since(began)
    come_back(broker)
    return seconds


def stand_still(broker: Broker, served: Served, come_back: ComeBack) -> float:
    """SIGSTOP until others serve: longer than the lease."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        seconds = served.since(time.monotonic())
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    come_back(broker)
    return seconds


def hand_over(broker: Broker, served: Served, come_back: ComeBack) -> float:
    """SIGTERM, and a new start. A queue may be served for a while before it is handed over, so what counts is how
    long it was not served."""

    def leave_and_come_back() -> None:
        broker.ask_to_stop()
        broker.wait_until_stopped()
        come_back(broker)

    return served.longest_silence(leave_and_come_back)
