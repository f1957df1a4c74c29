"""Those who use the simulated broker. Each asks, waits for its answer, thinks, and asks again."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, Published, Pulled, Refused, Repeated
from penstock.model.commands import (
    Command,
    CreateQueue,
    DeleteQueue,
    DescribeQueue,
    Draw,
    Fetch,
    Finish,
    ListQueues,
    NewMessage,
    Publish,
    PublishOnce,
    PublishTopics,
    Pull,
    Purge,
    Release,
    Search,
    UpdateQueue,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.values import Stage
from tests.simulation.everywhere import promise

if TYPE_CHECKING:
    from tests.simulation.requests import Request, Requests

QUEUES: dict[str, QueueSettings] = {
    "last": QueueSettings(),
    "dead": QueueSettings(redrive_policy=RedrivePolicy(2, "last")),
    "work": QueueSettings(redrive_policy=RedrivePolicy(2, "dead")),
    "unique": QueueSettings(redrive_policy=RedrivePolicy(3, "dead"), deduplication=True),
    "strict": QueueSettings(retries=2),
    "buried": QueueSettings(retries=1, redrive_policy=RedrivePolicy(9, "dead")),
    "short": QueueSettings(retention_ns=2 * SECOND_NS),
    "slow": QueueSettings(delay_ns=SECOND_NS // 2),
    "kept": QueueSettings(keep="all", retention_ns=5 * SECOND_NS),
}


RECEIVERS = ("first", "second")
RETRIES = 2


class Client:
    is_careful = False  # Always asks for the disk.

    def __init__(self, world: Requests, name: str) -> None:
        self.world = world
        self.name = name
        self.request: Request | None = None  # The one whose answer it waits for.
        self.think()

    @property
    def random(self) -> Random:
        return self.world.random

    def think(self) -> None:
        delay_ns = int(self.random.expovariate(20) * SECOND_NS) if self.random.random() < 0.7 else 0
        self.world.time.after(delay_ns, self._act)

    def _act(self) -> None:
        if self.world.winding_up or self.request is not None:
            return
        command = self.choose()
        # Nearly always the safe way; a client that does not ask for it is promised nothing.
        stage = self.random.choices([Stage.SYNC, Stage.WRITE, Stage.READY], [90, 5, 5])[0]
        is_careful = self.is_careful or isinstance(command, Fetch | Pull | PublishOnce | Search)
        self.request = self.world.ask(self, command, Stage.SYNC if is_careful else stage)

    def choose(self) -> Command:
        raise NotImplementedError

    def answered(self, request: Request, answer: Answer | None) -> None:
        """`None`: the connection broke, and nobody knows what became of the request."""
        if request is self.request:
            self.request = None
            self.heard(request.command, answer)
            self.think()

    def heard(self, command: Command, answer: Answer | None) -> None:
        """Most do not care."""


class Publisher(Client):
    def choose(self) -> Command:
        queue = self.random.choice([*QUEUES])
        return Publish(queue, [self._message(queue) for _ in range(self.random.choice([1, 1, 1, 2, 5]))])

    def _message(self, queue: str) -> NewMessage:
        number = self.random.randrange(20) if queue == "unique" else next(self.world.numbers)
        return NewMessage(
            b"%d" % number + b"." * self.random.choice([0, 0, 10, 500]) * (queue != "unique"),
            priority=self.random.choice([0, 0, 0, 5]),
            sender=f"{self.name} in shift {number // 7}",  # A name that is in use for a while.
            delay_ns=self.random.choice([None, None, None, 0, SECOND_NS // 3]),
            expires_ns=self.random.choice([None] * 9 + [SECOND_NS // 5]),
        )


class Retrier(Publisher):
    """Publishes with an idempotency key, and repeats a request until it is answered; sometimes also after that."""

    def __init__(self, world: Requests, name: str) -> None:
        self.unanswered: PublishOnce | None = None
        self.answers: dict[bytes, Sequence[Published]] = {}  # By key.
        super().__init__(world, name)

    def choose(self) -> Command:
        if self.unanswered is None:
            key, queue = b"once %d" % next(self.world.numbers), self.random.choice(["work", "strict", "slow"])
            messages = [
                replace(self._message(queue), body=b"%b, %d" % (key, number))
                for number in range(self.random.choice([1, 3, 20]))
            ]
            publish = PublishTopics(messages, QueueSettings(), queue)
            self.unanswered = PublishOnce(publish, key, sha256(key).digest(), 3600 * SECOND_NS, 200)
        return self.unanswered

    def heard(self, command: Command, answer: Answer | None) -> None:
        assert isinstance(command, PublishOnce)
        if answer is None or (isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE):
            return
        published = answer.published if isinstance(answer, Repeated) else answer
        if isinstance(published, Sequence):
            first = self.answers.setdefault(command.key, published)  # type: ignore[arg-type]
            promise(list(first) == list(published), f"{command.key!r} is answered {first}, then {published}")
        if isinstance(answer, Refused) or self.random.random() < 0.7:
            self.unanswered = None


class Consumer(Client):
    """Takes, and then finishes, gives back, forgets, or is too slow. Sometimes goes away while it waits."""

    def choose(self) -> Command:
        return Fetch(
            self.random.choice([*QUEUES]),
            count=self.random.choice([1, 1, 3, 10]),
            wait_ns=self.random.choice([0, SECOND_NS // 10, 2 * SECOND_NS]),
            lease_ns=self.random.choice([SECOND_NS // 20, SECOND_NS // 2, 5 * SECOND_NS]),
            consumer=self.random.choice([self.name, self.name, ""]),
            confirm=self.random.random() < 0.9,
        )

    def _act(self) -> None:
        super()._act()
        if self.request is not None and self.random.random() < 0.1:
            request = self.request
            self.world.time.after(SECOND_NS // 20, lambda: self._go_away(request))

    def _go_away(self, request: Request) -> None:
        if request is self.request and self.world.hang_up(request):
            self.request = None
            self.think()

    def heard(self, command: Command, answer: Answer | None) -> None:
        assert isinstance(command, Fetch)
        if isinstance(answer, Sequence) and command.confirm:
            for delivery in answer:
                assert isinstance(delivery, Delivery)
                self._plan(delivery, command.consumer or None)

    def _plan(self, delivery: Delivery, consumer: str | None) -> None:
        if self.random.random() < 0.2:
            return  # Forgotten.
        place = (delivery.queue, delivery.sequence)
        settle: Command = Finish(*place, consumer=self.random.choice([None, consumer]))
        if self.random.random() < 0.2:
            settle = Release(*place, consumer=consumer, delay_ns=self.random.choice([0, SECOND_NS // 4]))
        delay_ns = int(self.random.expovariate(5) * SECOND_NS)
        self.world.time.after(delay_ns, lambda: self._settle(settle))

    def _settle(self, command: Command) -> None:
        if not self.world.winding_up:
            self.world.ask(self, command, Stage.SYNC)


class Receiver(Client):
    """Pulls under a name that it shares, and sends results for some of what it gets, now or later."""

    def __init__(self, world: Requests, name: str) -> None:
        self.owed: list[tuple[str, int]] = []
        super().__init__(world, name)

    def choose(self) -> Command:
        random = self.random
        results = [(*place, b"%d" % place[1]) for place in self.owed if random.random() < 0.5]
        self.owed = self.owed[-5:]
        draws = [
            Draw(
                queue,
                start=random.choice([0, 0, 0, 0, 0, 0, -1, -2, 7]) if queue == "kept" else 0,
                most=random.choice([1, 1, 3, 20]),
                retries=random.choice([0, RETRIES, RETRIES]),
                fail_ns=random.choice([SECOND_NS // 20, SECOND_NS // 2]),
            )
            for queue in ["kept"] + ["work"] * (random.random() < 0.1)
        ]
        wait_ns = random.choice([0, SECOND_NS // 10, 2 * SECOND_NS])
        return Pull(random.choice(RECEIVERS), draws, results, wait_ns)

    def heard(self, command: Command, answer: Answer | None) -> None:
        if isinstance(answer, Pulled):
            self.owed += [(drawn.queue, sequence) for drawn in answer.drawn for sequence in drawn.sequences]


class Janitor(Client):
    """Makes the queues, looks at them, and now and then deletes or purges one."""

    def choose(self) -> Command:
        name = self.random.choice([*QUEUES])
        settings = QUEUES[name]
        match self.random.randrange(12):
            case 0:
                return DeleteQueue(name)
            case 1:
                return UpdateQueue(name, settings)
            case 2:
                return DescribeQueue(name)
            case 3:
                return ListQueues()
            case 4:
                return Purge(name)
            case _:
                return CreateQueue(name, settings)
