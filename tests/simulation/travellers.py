"""Clients whose commands concern several shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, ObjectDescription, Published, Refused, Repeated
from penstock.model.commands import (
    Command,
    CreateQueue,
    DescribeObject,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    ListQueues,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
)
from penstock.model.settings import QueueSettings
from tests.simulation.clients import QUEUES, Client
from tests.simulation.everywhere import LETTER, promise
from tests.simulation.guests import KEYS, THINGS, WATCH, Keeper

if TYPE_CHECKING:
    from tests.simulation.requests import Requests

ALL_QUEUES = {
    "echo": QueueSettings(topics=("letters.*",)),
    "copies": QueueSettings(),
    "letters": QueueSettings(),
    **QUEUES,
    "things": THINGS,
    "watch": WATCH,
    **dict.fromkeys(("tales", "news"), THINGS),
}
PLACES = ("strict", "slow", "short", "work")
TOLD_IN = ("tales", "news", "things")
NOWHERE = 1 << 30  # A sequence that no queue has.


class Founder(Client):
    """Creates the queues, one after the other, as soon as their owners can be reached."""

    is_careful = True

    def __init__(self, world: Requests, name: str) -> None:
        self.missing = [*ALL_QUEUES.items()]
        super().__init__(world, name)

    def choose(self) -> Command:
        return CreateQueue(*self.missing[0]) if self.missing else ListQueues()

    def heard(self, command: Command, answer: Answer | None) -> None:
        if isinstance(command, CreateQueue) and not _is_unknown(answer):
            del self.missing[0]


class Messenger(Client):
    """Publishes letters, of which `copies` and the channel `echo` get a copy each. Both are there before."""

    def choose(self) -> Command:
        if "letters" not in self.world.everywhere.queue_names.values():
            return ListQueues()
        messages = [
            NewMessage(LETTER + b"%d" % next(self.world.numbers), topics=("letters.new", "copies"))
            for _ in range(self.random.choice([1, 1, 3]))
        ]
        return PublishTopics(messages, QueueSettings())


class Teller(Keeper):
    """A keeper whose things are told in several queues, whose shards do not answer for them; sometimes with an
    idempotency key. It asks what has become of one, too."""

    def __init__(self, world: Requests, name: str) -> None:
        self.told: Counter[bytes] = Counter()  # New versions, by key.
        super().__init__(world, name)

    def choose(self) -> Command:
        if self.random.random() < 0.2:
            return DescribeObject("thing", b"%d" % self.random.randrange(KEYS), 100)
        publish = super().choose()
        assert isinstance(publish, PublishTopics)
        publish = replace(publish, queue=self.random.choice(["", "", TOLD_IN[0]]))
        if self.random.random() < 0.8:
            return publish
        key = b"told %d" % next(self.world.numbers)
        return PublishOnce(publish, key, sha256(key).digest(), 3600 * SECOND_NS, 200)

    def _version(self) -> NewMessage:
        return replace(super()._version(), topics=(self.random.choice(TOLD_IN) + ".x",))

    def heard(self, command: Command, answer: Answer | None) -> None:
        if isinstance(command, DescribeObject) and isinstance(answer, ObjectDescription):
            known = self.told[command.key]
            promise(answer.newest.versions >= known, f"{known} versions of {command.key!r}, and shown are {answer}")
        publish = command.publish if isinstance(command, PublishOnce) else command
        if isinstance(publish, PublishTopics) and isinstance(answer, Sequence):
            for message, published in zip(publish.messages, answer, strict=True):
                self.told[message.key] += isinstance(published, Published) and published.state == "Q"


class Spreader(Client):
    """Publishes to several queues at once, in turn or by topics, and finishes messages of several together."""

    def __init__(self, world: Requests, name: str) -> None:
        self.unanswered: PublishOnce | None = None
        self.answers: dict[bytes, Sequence[object]] = {}  # By key.
        self.held: list[Finish] = []
        super().__init__(world, name)

    def choose(self) -> Command:
        choices = [self._in_turn, self._by_topics, self._once, self._fetch, self._fetch, self._finish, self._pull]
        return self.random.choice(choices)()

    def _queues(self) -> list[str]:
        return self.random.choices(PLACES, k=self.random.choice([1, 2, 4]))

    def _body(self) -> bytes:
        return b"%d by %b" % (next(self.world.numbers), self.name.encode())

    def _in_turn(self) -> Command:
        return PublishInTurn([Publish(queue, [NewMessage(self._body())]) for queue in self._queues()])

    def _by_topics(self) -> Command:
        return PublishTopics([NewMessage(self._body(), topics=(queue,)) for queue in self._queues()], QueueSettings())

    def _once(self) -> Command:
        if self.unanswered is None:
            key = b"once %d" % next(self.world.numbers)
            messages = [
                NewMessage(b"%b, %d" % (key, number), topics=(queue,)) for number, queue in enumerate(self._queues())
            ]
            publish = PublishTopics(messages, QueueSettings())
            self.unanswered = PublishOnce(publish, key, sha256(key).digest(), 3600 * SECOND_NS, 200)
        return self.unanswered

    def _fetch(self) -> Command:
        wait_ns = self.random.choice([0, SECOND_NS // 10])
        return Fetch(self.random.choice(PLACES), 5, wait_ns, SECOND_NS, consumer=self.name)

    def _finish(self) -> Command:
        held, self.held = self.held, []
        return FinishMany(held or [Finish(1, NOWHERE), Finish(2, NOWHERE)])

    def _pull(self) -> Command:
        draws = [Draw(queue, most=2, retries=1, fail_ns=SECOND_NS) for queue in ("kept", *PLACES)]
        wait_ns = self.random.choice([0, SECOND_NS // 10, SECOND_NS])
        return Pull(self.name, self.random.sample(draws, 3), (), wait_ns)

    def heard(self, command: Command, answer: Answer | None) -> None:
        if isinstance(command, Fetch) and isinstance(answer, Sequence):
            self.held += [Finish(each.queue, each.sequence) for each in answer if isinstance(each, Delivery)]
        elif isinstance(command, PublishOnce):
            self._published(command, answer)

    def _published(self, command: PublishOnce, answer: Answer | None) -> None:
        if _is_unknown(answer):
            return
        assert answer is not None
        published = answer.published if isinstance(answer, Repeated) else answer
        if isinstance(published, Sequence):
            first = self.answers.setdefault(command.key, published)
            promise(list(first) == list(published), f"{command.key!r} is answered {first}, then {published}")
        if isinstance(answer, Refused) or self.random.random() < 0.7:
            self.unanswered = None


def _is_unknown(answer: Answer | None) -> bool:
    return answer is None or (isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE)
