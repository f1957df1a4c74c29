"""Workers of one broker are killed in turn, and every answer is compared with what the queues hold in the end.

What was refused as unavailable is not stored, what was acknowledged is, and what was popped has gone to somebody.
Only clients whose own connection stayed open are counted: nobody can tell the others anything.

    TORTURE=long      100 kills instead of 2
"""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

import pytest

from tests.support.broker import Broker
from tests.support.effort import LONG
from tests.support.http_client import Connection, Response

KILLS = 100 if LONG else 2
FLAGS = ("--workers", "3", "--shards", "6")
QUEUES = tuple(f"queue-{number}" for number in range(12))
POPPED = "popped"
BETWEEN = 150  # Answers between two kills.


Act = Callable[[Connection, random.Random], None]


class Answers:
    """What clients were told."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        self.refused: set[str] = set()
        self.doubtful: set[str] = set()  # The outcome is unknown, or the connection broke.
        self.popped: Counter[str] = Counter()
        self.pops_in_doubt = 0
        self.unknown = 0  # Answers that said so.
        self.count = 0
        self.changed = threading.Condition()

    def note(self, status: int, bodies: Iterable[str]) -> None:
        with self.changed:
            told = {200: self.stored, 201: self.stored, 503: self.refused}.get(status, self.doubtful)
            told.update(bodies)
            self.unknown += status == 504
            self.count += 1
            self.changed.notify_all()

    def wait_for(self, more: int) -> None:
        with self.changed:
            wanted = self.count + more
            assert self.changed.wait_for(lambda: self.count >= wanted, 120), "no answers"


class Storm:
    def __init__(self, broker: Broker, seed: int) -> None:
        self.broker = broker
        self.seed = seed
        self.answers = Answers()
        self.over = threading.Event()
        self.errors: list[BaseException] = []
        self._numbers = count()

    def run(self, number: int, act: Act) -> None:
        chance = random.Random(f"{self.seed} {number}")
        try:
            while not self.over.is_set():
                with self.broker.connect() as connection:
                    self._use(connection, act, chance)
        except BaseException as error:
            self.errors.append(error)

    def _use(self, connection: Connection, act: Act, chance: random.Random) -> None:
        try:
            while not self.over.is_set():
                act(connection, chance)
        except (OSError, EOFError):
            pass  # Its worker was killed.

    def fresh(self, many: int) -> list[str]:
        return [f"message {next(self._numbers)}" for _ in range(many)]

    def ask(self, connection: Connection, target: str, bodies: list[str], body: object, **headers: str) -> Response:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            response = connection.request("POST", target, headers, data)
        except (OSError, EOFError):
            self.answers.note(0, bodies)
            raise
        self.answers.note(response.status, bodies)
        return response

    # ── Ways to publish ─────────────────────────────────────────────────────────────────────────────────────

    def mqs(self, connection: Connection, chance: random.Random) -> None:
        bodies = self.fresh(1)
        self.ask(connection, f"/messages/{chance.choice(QUEUES)}", bodies, bodies[0].encode())

    def native(self, connection: Connection, chance: random.Random) -> None:
        bodies = self.fresh(chance.randint(1, 20))
        self.ask(
            connection,
            f"/v1/queues/{chance.choice(QUEUES)}/messages",
            bodies,
            [{"message": each} for each in bodies],
        )

    def over_shards(self, connection: Connection, chance: random.Random) -> None:
        bodies = self.fresh(chance.randint(2, 6))
        documents = [{"topics": [chance.choice(QUEUES)], "message": each} for each in bodies]
        self.ask(connection, "/v1/publish", bodies, documents)

    def with_key(self, connection: Connection, chance: random.Random) -> None:
        bodies = self.fresh(3)
        documents = [{"topics": [chance.choice(QUEUES)], "message": each} for each in bodies]
        self.ask(connection, "/v1/publish", bodies, documents, **{"Idempotency-Key": bodies[0]})

    def nq(self, connection: Connection, chance: random.Random) -> None:
        bodies = self.fresh(chance.randint(1, 20))
        self.ask(connection, "/post", bodies, {"sender": "storm", "messages": {chance.choice(QUEUES): bodies}})

    def fill(self, connection: Connection, _: random.Random) -> None:
        bodies = self.fresh(10)
        self.ask(connection, "/post", bodies, {"sender": "storm", "messages": {POPPED: bodies}})

    # ── A way to take that is for good ──────────────────────────────────────────────────────────────────────

    def pop(self, connection: Connection, chance: random.Random) -> None:
        most = chance.randint(1, 5)
        body = {"receiver": "all", "timeout": chance.choice([0, 1]), "queues": {POPPED: {"max": most}}}
        try:
            response = connection.request("POST", "/pull", {}, json.dumps(body).encode())
        except (OSError, EOFError):
            self.answers.pops_in_doubt += most
            raise
        if response.status == 200:
            self.answers.popped.update(each["message"] for each in response.json()["messages"][POPPED] or ())
        elif response.status == 504:
            self.answers.pops_in_doubt += most
        self.answers.note(response.status if response.status == 504 else 0, ())


def kill_one(broker: Broker, chance: random.Random) -> None:
    children = Path(f"/proc/{broker.pid}/task/{broker.pid}/children").read_text().split()
    os.kill(int(chance.choice(children)), signal.SIGKILL)
    broker.wait_until_logged("worker_killed")
    broker.wait_until_logged("worker_listening")


def held_in(broker: Broker, queue: str) -> Counter[str]:
    """Every message that a queue has, each as often as it is there."""
    found: Counter[str] = Counter()
    while True:
        answer = broker.request("GET", f"/v1/queues/{queue}/messages?max=1000&lease=600")
        assert answer.status == 200, answer
        documents = answer.json()
        if not documents:
            return found
        found.update(each["message"] for each in documents)


def pop_the_rest(broker: Broker, told: Answers) -> int:
    """The number of the last message that was ever there."""
    rest = json.dumps({"receiver": "all", "timeout": 0, "queues": {POPPED: {"max": 1000}}}).encode()
    while (answer := broker.request("POST", "/pull", {}, rest)).status == 200:
        told.popped.update(each["message"] for each in answer.json()["messages"][POPPED])
    assert answer.status == 404, answer
    last: int = answer.json()[POPPED]
    return last


@pytest.mark.torture
@pytest.mark.timeout(3600)
def test_answers_are_true_whatever_worker_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    broker = Broker(tmp_path / "data", flags=FLAGS).start()
    try:
        for queue in QUEUES:
            broker.create_queue(queue)
        storm = Storm(broker, seed)
        acts = [storm.mqs, storm.native, storm.over_shards, storm.with_key, storm.nq, storm.fill] * 2 + [
            storm.pop
        ] * 4
        threads = [threading.Thread(target=storm.run, args=(number, act)) for number, act in enumerate(acts)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(KILLS):
                storm.answers.wait_for(BETWEEN)
                kill_one(broker, chance)
            storm.answers.wait_for(BETWEEN)
        finally:
            storm.over.set()
            for thread in threads:
                thread.join()
        assert not storm.errors, storm.errors
        told = storm.answers
        held = sum((held_in(broker, queue) for queue in QUEUES), Counter[str]())
        last = pop_the_rest(broker, told)
    finally:
        broker.stop()
    everything = held + told.popped
    with capsys.disabled():
        print(
            f"\n{KILLS} kills: {len(told.stored)} stored, {len(told.refused)} refused, {len(told.doubtful)} in doubt,"
            f" {told.unknown} answers unknown, {told.popped.total()} popped, seed {seed}"
        )
    assert not told.refused & everything.keys(), "refused, and stored"
    assert len(told.stored - everything.keys()) <= told.pops_in_doubt, "acknowledged, and lost"
    assert [body for body, times in everything.items() if times > 1] == [], "stored or popped twice"
    assert last - told.popped.total() <= told.pops_in_doubt, "popped by nobody"
