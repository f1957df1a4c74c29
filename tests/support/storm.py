"""Clients that publish and take in every way at once, whatever is done to brokers meanwhile, and what they were told.

In the end every answer is compared with what the queues hold and with what was handed over. Only clients whose own
connection stayed open are counted: nobody can tell the others anything.
"""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from time import monotonic
from typing import NamedTuple

from websockets.exceptions import WebSocketException

from tests.support.broker import Site
from tests.support.ledger import bodies_in, served
from tests.support.served import Served
from tests.support.waiting import wait_until
from tests.support.ways import LEASE_SECONDS, POPPING, PUBLISHING, TAKING, Fate, Taken, Taker

WORK = tuple(f"jobs-{number}" for number in range(12))
EACH = 2  # Clients of each way.
BODIES_MAX = 20  # In one request.
BACKLOG_MAX = 5000  # Publishers pause while so much is not taken.
PAUSE_SECONDS = 0.02
LATE_SECONDS = 5.0  # What was asked over a connection that broke may be done so long after.
_BROKEN = (OSError, EOFError, WebSocketException)

Act = Callable[[random.Random], None]


class Popped:
    """What one client has taken for good out of a queue of its own: in order, and without gaps but where its
    connection broke, or nobody could say what became of a pop."""

    def __init__(self) -> None:
        self.missing = 0
        self.maybe = 0  # How many may be missing since the last one.
        self.doubted_at = 0.0
        self._last = 0

    def take(self, sequence: int, asked_at: float) -> str:
        """What is wrong with having it now."""
        gap, before, self._last = sequence - self._last - 1, self._last, sequence
        if not 0 <= gap <= self.maybe:
            return f"number {sequence} came after {before}, and {self.maybe} in between were in doubt"
        self.missing += gap
        self.maybe = self.maybe - gap if asked_at < self.doubted_at + LATE_SECONDS else 0
        return ""


class Told:
    """What clients were told."""

    def __init__(self) -> None:
        self.way_of: dict[str, str] = {}  # Of each body.
        self.stored: set[str] = set()
        self.refused: set[str] = set()
        self.taken: set[str] = set()
        self.popped: Counter[str] = Counter()
        self.finishes: Counter[str] = Counter()  # How often it was asked for.
        self.finished: dict[str, float] = {}  # When that was acknowledged first.
        self.not_finished: dict[str, str] = {}  # By what way that was refused.
        self.wrong: list[str] = []
        self.fates: dict[str, Counter[Fate]] = {}  # By way.
        self.cut_off = 0  # Messages that were not answered when the connection of their client broke.

    @property
    def answers(self) -> int:
        return sum(each.total() for each in list(self.fates.values()))

    def count(self, fate: Fate) -> int:
        return sum(each[fate] for each in self.fates.values())

    def taken_now(self, way: str, each: Taken, asked_at: float) -> None:
        if self.finished.get(each.body, asked_at) < asked_at:
            self.wrong.append(f"{way}: {each.body} is back after its finish was acknowledged")
        self.taken.add(each.body)

    def finish(self, way: str, body: str, fate: Fate) -> None:
        if fate is Fate.DONE:
            self.finished.setdefault(body, monotonic())
        elif fate is Fate.REFUSED:
            self.finishes[body] -= 1
            self.not_finished[body] = way
        elif fate is Fate.GONE and self.finishes[body] == 1:
            self.wrong.append(f"{way}: {body} was gone when it was finished, and nobody else had finished it")


class Checked(NamedTuple):
    """What a storm has shown in the end, in messages."""

    stored: int
    refused: int
    finished: int
    popped: int
    cut_off: int  # Of clients whose connection broke.
    popped_by_nobody: int  # Of the same clients.
    in_flight: int
    unknown: dict[str, int]  # Outcomes, by way.
    false: dict[str, int]  # Answers that were not true.
    examples: dict[str, str]

    def __str__(self) -> str:
        return (
            f"{self.stored:,} stored, {self.refused:,} refused, {self.finished:,} finished, {self.popped:,} popped;"
            f" of clients that were cut off {self.cut_off:,}, and {self.popped_by_nobody} popped;"
            f" {self.in_flight:,} in flight, {sum(self.unknown.values())} outcome unknown {self.unknown}"
        )


class Storm:
    def __init__(self, site: Site, seed: int) -> None:
        self.told = Told()
        self.popped = {f"popped-{number}": Popped() for number in range(EACH * len(POPPING))}
        self.queues = (*WORK, *self.popped)
        self.served = Served(self.queues)
        self.in_flight = 0  # Messages, when something was done to a broker.
        self._site, self._seed = site, seed
        self._unanswered: Counter[int] = Counter()  # Messages, by thread.
        self._numbers = count()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._errors: list[BaseException] = []
        acts = [self._publisher(way) for way in PUBLISHING] * EACH + [self._taker(way) for way in TAKING] * EACH
        acts += [self._popper(way, queue) for way, queue in zip(cycle(POPPING), self.popped, strict=False)]
        self._threads = [threading.Thread(target=self._run, args=entry) for entry in enumerate(acts)]

    @contextmanager
    def blowing(self) -> Iterator[None]:
        for queue in self.queues:
            self._site.create_queue(queue, visibility_timeout=LEASE_SECONDS, retention_timeout=86_400)
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in self._threads:
                thread.join()
        assert not self._errors, self._errors

    def grow(self, more: int) -> None:
        """Wait for so many more answers, and count what is under way then."""
        wanted = self.told.answers + more
        wait_until(lambda: self._errors or self.told.answers >= wanted, "answers", 120)
        assert not self._errors, self._errors
        self.in_flight += self._unanswered.total()

    # ── Clients ─────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self, number: int, act: Act) -> None:
        chance = random.Random(f"{self._seed} {number}")
        try:
            while not self._over.is_set():
                try:
                    act(chance)
                except _BROKEN:
                    self._over.wait(PAUSE_SECONDS)  # What it was connected to was killed.
        except BaseException as error:
            self._errors.append(error)

    @contextmanager
    def _asking(self, way: str, many: int) -> Iterator[Callable[[Fate, int], None]]:
        """Until so many messages are answered, or the connection breaks."""
        me, fates = threading.get_ident(), self.told.fates.setdefault(way, Counter())
        self._unanswered[me] = many

        def answered(fate: Fate, some: int = 1) -> None:
            fates[fate] += some
            self._unanswered[me] -= some

        try:
            yield answered
        except _BROKEN:
            self.told.cut_off += self._unanswered[me]
            raise
        finally:
            self._unanswered[me] = 0

    def _publisher(self, way: str) -> Act:
        connect, queues_max = PUBLISHING[way]

        def act(chance: random.Random) -> None:
            client = connect(self._site)
            try:
                while not self._over.is_set():
                    if self._is_behind():
                        self._over.wait(PAUSE_SECONDS)
                        continue
                    queues = chance.sample(self.queues, chance.randint(1, queues_max))
                    bodies = [f"message {next(self._numbers)}" for _ in range(chance.randint(1, BODIES_MAX))]
                    self._publish(way, queues, bodies, client.publish(queues, bodies))
            finally:
                client.close()

        return act

    def _is_behind(self) -> bool:
        told = self.told
        return len(told.stored) - len(told.taken) - len(told.popped) > BACKLOG_MAX

    def _publish(
        self, way: str, queues: Sequence[str], bodies: list[str], answers: Iterator[tuple[str, Fate]]
    ) -> None:
        told, sent_at = self.told, monotonic()
        told.way_of.update(dict.fromkeys(bodies, way))
        with self._asking(f"publish: {way}", len(bodies)) as answered:
            for body, fate in answers:
                {Fate.DONE: told.stored, Fate.REFUSED: told.refused}.get(fate, set()).add(body)
                answered(fate, 1)
                if fate is Fate.DONE and len(queues) == 1:
                    self.served.hear(queues[0], sent_at)
        if bodies[-1] in told.refused:
            self._over.wait(PAUSE_SECONDS)

    def _taker(self, way: str) -> Act:
        def act(chance: random.Random) -> None:
            client = TAKING[way](self._site)
            try:
                while not self._over.is_set():
                    self._take_and_finish(way, client, chance.choice(WORK), chance.randint(1, BODIES_MAX))
            finally:
                client.close()

        return act

    def _take_and_finish(self, way: str, client: Taker, queue: str, many: int) -> None:
        asked_at, told = monotonic(), self.told
        with self._asking(f"take: {way}", 1) as answered:
            fate, taken = client.take(queue, many)
            answered(fate, 1)
        for each in taken:
            told.taken_now(way, each, asked_at)
        if not taken:
            self._over.wait(PAUSE_SECONDS)
            return
        with self._lock:
            told.finishes.update(each.body for each in taken)
        with self._asking(f"finish: {way}", len(taken)) as answered:
            for each, fate in client.finish(queue, taken):
                answered(fate, 1)
                with self._lock:
                    told.finish(way, each.body, fate)

    def _popper(self, way: str, queue: str) -> Act:
        popped = self.popped[queue]

        def act(chance: random.Random) -> None:
            client = POPPING[way](self._site)
            try:
                while not self._over.is_set():
                    many, asked_at = chance.randint(1, BODIES_MAX), monotonic()
                    popped.maybe, before = popped.maybe + many, popped.maybe
                    try:
                        with self._asking(f"take: {way}", 1) as answered:
                            fate, taken = client.take(queue, many)
                            answered(fate, 1)
                    except _BROKEN:
                        popped.doubted_at = monotonic()
                        raise
                    if fate is Fate.UNKNOWN:
                        popped.doubted_at = monotonic()
                    else:
                        popped.maybe = before
                    self._pop(way, queue, taken, asked_at)
            finally:
                client.close()

        return act

    def _pop(self, way: str, queue: str, taken: Sequence[Taken], asked_at: float) -> None:
        for each in taken:
            with self._lock:
                self.told.popped[each.body] += 1
            if problem := self.popped[queue].take(each.handle, asked_at):
                self.told.wrong.append(f"{way}: {queue}: {problem}")

    # ── In the end ──────────────────────────────────────────────────────────────────────────────────────────

    def check(self, site: Site) -> Checked:
        """Whether every answer was true, and what was seen."""
        for queue in self.popped:
            self._pop_the_rest(site, queue)
        told, held = self.told, Counter(body for queue in WORK for body in bodies_in(site, queue))
        there = held.keys() | told.popped.keys() | told.taken
        asked = +told.finishes
        problems = {
            "refused, and stored": self._by_way(told.refused & there),
            "stored or popped twice": self._by_way(
                {body for body, times in (held + told.popped).items() if times > 1}
            ),
            "finished, and still there": told.finished.keys() & held.keys(),
            "finish refused, and done": told.not_finished.keys() - held.keys() - asked.keys(),
            "wrong": told.wrong[:20],
        }
        lost = told.stored - held.keys() - told.popped.keys() - asked.keys()
        missing = sum(each.missing for each in self.popped.values())
        if len(lost) > missing:
            problems["acknowledged, and lost"] = self._by_way(lost)
        return Checked(
            len(told.stored),
            len(told.refused),
            len(told.finished),
            told.popped.total(),
            told.cut_off,
            missing,
            self.in_flight,
            {way: each[Fate.UNKNOWN] for way, each in told.fates.items() if each[Fate.UNKNOWN]},
            {what: _count(found) for what, found in problems.items() if found},
            {what: str(found)[:2000] for what, found in problems.items() if found},
        )

    def _pop_the_rest(self, site: Site, queue: str) -> None:
        """What follows the last one that was there must be the next."""
        rest = json.dumps(
            {"receiver": "rest", "timeout": 0, "queues": {queue: {"max": 1000, "retry_num": 0}}}
        ).encode()
        while (answer := served(site, "POST", "/pull", rest)).status == 200:
            taken = [Taken(each["message"], each["id"]) for each in answer.json()["messages"][queue]]
            self._pop("the rest", queue, taken, monotonic())
        assert answer.status == 404, answer
        if problem := self.popped[queue].take(answer.json()[queue] + 1, monotonic()):
            self.told.wrong.append(f"{queue}: at its end {problem}")

    def _by_way(self, bodies: set[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for body in sorted(bodies)[:100]:
            found.setdefault(self.told.way_of[body], []).append(body)
        return found


def _count(found: Collection[str] | Mapping[str, list[str]]) -> int:
    return sum(map(len, found.values())) if isinstance(found, Mapping) else len(found)
