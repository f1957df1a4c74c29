"""Clients that note what was acknowledged, whichever of several brokers serves, and find out what was lost of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from urllib.parse import quote

from tests.support.broker import Broker, Site
from tests.support.http_client import Connection, Response
from tests.support.served import SECONDS_MAX, Served
from tests.support.waiting import wait_until

PUBLISHERS, FINISHERS = 3, 2
_ANSWER_SECONDS_MAX = 1.5  # Then a client tries another broker.
_FAILURES = (OSError, EOFError, AssertionError, IndexError, ValueError)


class Ledger:
    """Some threads publish, others take and finish. Every message has a body of its own and is published once."""

    def __init__(self, *brokers: Broker, queues: Sequence[str] = ("work",)) -> None:
        self._queues = queues
        self.owner = brokers[0]  # Who acknowledged last.
        self.acknowledged: set[str] = set()
        self.finished: set[str] = set()
        self.returned: set[str] = set()  # Delivered though they were finished.
        self._undecided: set[str] = set()  # They were to be finished, and the answer was an error.
        self._brokers = brokers
        self.served = Served(queues)
        self._over = threading.Event()
        works: list[Callable[[Client], None]] = [self._finisher(number) for number in range(FINISHERS)]
        works += [self._publisher(number) for number in range(PUBLISHERS)]
        self._threads = [threading.Thread(target=self._run, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def _run(self, work: Callable[[Client], None]) -> None:
        client = Client(self._brokers)
        while not self._over.is_set():
            try:
                work(client)
            except _FAILURES:
                client.turn_to_another()
        client.close()

    def _publisher(self, number: int) -> Callable[[Client], None]:
        bodies = iter(f"{number}-{count}" for count in range(1 << 40))
        queues = self._from(number)

        def publish(client: Client) -> None:
            body, queue, sent_at = next(bodies), next(queues), time.monotonic()
            assert client.request("POST", f"/messages/{queue}", body.encode()).status == 201
            self.acknowledged.add(body)
            self.owner = client.broker
            self.served.hear(queue, sent_at)

        return publish

    def _finisher(self, number: int) -> Callable[[Client], None]:
        queues = self._from(number)
        return lambda client: self._finish(client, next(queues))

    def _from(self, number: int) -> Iterator[str]:
        """All queues again and again; each thread begins with another one."""
        start = number % len(self._queues)
        return cycle((*self._queues[start:], *self._queues[:start]))

    def _finish(self, client: Client, queue: str) -> None:
        answer = client.request("GET", f"/messages/{queue}?max_messages=10")
        assert answer.status in (200, 204), answer
        for part in answer.messages():
            body = part.body.decode()
            if body in self.finished:
                self.returned.add(body)
            self._undecided.add(body)
            assert client.request("DELETE", f"/messages/{part.header('X-MQS-MESSAGE-ID')}").status == 204
            self._undecided.discard(body)
            self.finished.add(body)

    # ── For the test ────────────────────────────────────────────────────────────────────────────────────────

    def grow(self, count: int = 100) -> None:
        """Wait until more messages are acknowledged."""
        until = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= until, "more is acknowledged", SECONDS_MAX)

    def check(self) -> str:
        """Nothing acknowledged is lost, and nothing finished was returned. What was seen, in a line."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        found = [body for queue in self._queues for body in bodies_in(self.owner, queue)]
        lost = self.acknowledged - self.finished - self._undecided - set(found)
        self.returned |= self.finished & set(found)
        counts = f"{len(self.acknowledged):,} acknowledged, {len(self.finished):,} finished"
        assert (lost, self.returned) == (set(), set()), counts
        assert len(found) == len(set(found)), "something is there twice"
        return f"{counts}, 0 lost, 0 returned"


class Client:
    """A connection to one of several brokers."""

    def __init__(self, brokers: tuple[Broker, ...]) -> None:
        self._brokers = brokers
        self._turn = 0
        self._connection: Connection | None = None

    @property
    def broker(self) -> Broker:
        return self._brokers[self._turn % len(self._brokers)]

    def request(self, method: str, target: str, body: bytes | None = None) -> Response:
        if self._connection is None:
            self._connection = self.broker.connect(_ANSWER_SECONDS_MAX)
        return self._connection.request(method, target, body=body)

    def turn_to_another(self) -> None:
        self.close()
        self._turn += 1

    def close(self) -> None:
        if self._connection:
            self._connection.close()
            self._connection = None


def bodies_in(broker: Site, queue: str) -> Iterator[str]:
    """What the queue holds, in whatever state it is."""
    cursor = ""
    while True:
        page = served(broker, "GET", f"/v1/search?queue={queue}&limit=1000{cursor}").json()
        yield from (message["message"] for message in page["messages"])
        if not page["next"]:
            return
        cursor = f"&cursor={quote(page['next'])}"


def served(broker: Site, method: str, target: str, body: bytes | None = None) -> Response:
    """The answer, as soon as somebody serves the queue: it may be on its way to another node."""
    deadline = time.monotonic() + 30
    while (answer := broker.request(method, target, body=body)).status == 503:
        assert time.monotonic() < deadline, answer
    return answer
