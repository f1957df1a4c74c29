"""More who use the simulated broker: searchers, pushers, glovebox sessions, and those who publish versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from penstock.dialects.wire.conversation import Conversation
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, Found
from penstock.model.commands import Command, Criteria, Fetch, NewMessage, PublishTopics, Search, Settle
from penstock.model.settings import QueueSettings
from penstock.model.values import Stage
from penstock.shells.peer import LoopPeer
from penstock.torture.checker.notices import AFTER, LAST
from tests.simulation.asked import Place
from tests.simulation.clients import QUEUES, Client
from tests.simulation.everywhere import BrokenPromiseError, promise
from tests.simulation.scheduler import Planned

if TYPE_CHECKING:
    from tests.simulation.world import World

THINGS = QueueSettings(detect_unchanged=True)
WATCH = QueueSettings(detect_unchanged=True, topics=("things.*",), retries=3)
KEYS = 6
CONTENTS = 3
NOTICES = ["sync", "assign", "finish", "retry", "drop"]


class Keeper(Client):
    """Publishes few contents of few keys, so that many have not changed. A channel gets the changes."""

    def choose(self) -> Command:
        messages = [self._version() for _ in range(self.random.choice([1, 1, 4]))]
        return PublishTopics(messages, THINGS)

    def _version(self) -> NewMessage:
        key, content = self.random.randrange(KEYS), self.random.randrange(CONTENTS)
        body = b"thing %d is %d" % (key, content)
        return NewMessage(body, sender=self.name, object="thing", topics=("things.x",), key=b"%d" % key)


class Pusher(Client):
    """Takes from the channel as a pusher does: it settles each message with what the endpoint answered."""

    def choose(self) -> Command:
        return Fetch(
            "watch",
            count=self.random.choice([1, 4]),
            wait_ns=self.random.choice([0, SECOND_NS]),
            lease_ns=SECOND_NS // 2,
            consumer="push",
        )

    def heard(self, command: Command, answer: Answer | None) -> None:
        if isinstance(command, Fetch) and isinstance(answer, Sequence):
            for delivery in answer:
                assert isinstance(delivery, Delivery)
                self._push(delivery)

    def _push(self, delivery: Delivery) -> None:
        if self.random.random() < 0.1:
            return  # The endpoint does not answer in time.
        settle = Settle(
            delivery.queue,
            delivery.sequence,
            self.random.choice(["success", "success", "success", "invalid", "not_interested", "retry"]),
            consumer="push",
            delivery=delivery.receives,
            delay_ns=self.random.choice([0, SECOND_NS // 10]),
        )
        delay_ns = int(self.random.expovariate(8) * SECOND_NS)
        self.world.time.after(delay_ns, lambda: self._settle(settle))

    def _settle(self, settle: Settle) -> None:
        if not self.world.winding_up:
            self.world.ask(self, settle, Stage.SYNC)


class Searcher(Client):
    """Walks through the messages of a queue page by page: what is there all the time is found once."""

    world: World

    def __init__(self, world: World, name: str) -> None:
        self.queue = ""
        self.after: Place = (0, 0)
        self.found: set[Place] = set()
        self.there: set[Place] = set()
        super().__init__(world, name)

    def choose(self) -> Command:
        if not self.queue:
            self.queue, self.after, self.found = self.random.choice([*QUEUES, "things", "watch"]), (0, 0), set()
            self.there = self.world.ledger.held_in(self.queue)
        limit, rows = self.random.choice([1, 5, 1000]), self.random.choice([256, 4096])
        return Search(Criteria(queue=self.queue), self.after, limit, rows)

    def heard(self, command: Command, answer: Answer | None) -> None:
        if not isinstance(answer, Found):
            self.queue = ""  # It does not exist, or the broker has crashed.
            return
        for held in answer.messages:
            place = (held.queue, held.sequence)
            promise(place not in self.found, f"found twice in one search: {place}")
            promise(self.world.ledger.was_logged(place), f"found before it was on the disk: {place}")
            self.found.add(place)
        if answer.after is None:
            missed = (self.there & self.world.ledger.held_in(self.queue)) - self.found
            self.world.searches += 1
            promise(not missed, f"there all the time in {self.queue}, and not found: {missed}")
            self.queue = ""
        else:
            self.after = answer.after


class Line(LoopPeer):
    """A connection between a session of the broker and its client. What is sent arrives at once."""

    choked = False

    def __init__(self, world: World, hear: Callable[[Any], None]) -> None:
        self._world = world
        self._process = world.process
        self._hear = hear
        self.open = True
        super().__init__(world.loop)

    def send(self, frame: bytes, *, binary: bool = False) -> None:
        assert self.open
        assert not binary
        self._hear(json.loads(frame))

    def send_all(self, frames: list[bytes], *, binary: bool = False) -> None:
        for frame in frames:
            self.send(frame, binary=binary)

    def acknowledge(self) -> None:
        """There is no TCP here."""

    def close(self, reason: str) -> None:
        self.open = False

    def after(self, seconds: float, callback: Callable[[], None]) -> Planned:
        return self._process.after(int(seconds * SECOND_NS), callback)

    def submit(self, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC) -> Any:
        self._world.asked.remember(command)
        return super().submit(command, reply, stage)


class SessionClient:
    """Posts and follows, fetches and finishes in a durable session; its connection breaks again and again."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.line: Line | None = None
        self.talk: Conversation | None = None
        self.session = 0
        self.heard = 0  # Notices.
        self.notices: dict[int, str] = {}  # The last one of each post, by label.
        self.held: list[tuple[str, int, int]] = []
        self.whole: set[int] = set()  # Labels whose every notice must come.
        self._think()

    def _think(self) -> None:
        self.world.time.after(int(self.world.random.expovariate(15) * SECOND_NS), self._act)

    def _act(self) -> None:
        if self.world.winding_up:
            return
        if self.line is None:
            self._connect()
        else:
            self.world.random.choices([self._post, self._fetch, self._finish, self.lose], [8, 6, 6, 1])[0]()
        self._think()

    def _connect(self) -> None:
        headers = {b"durable-session": b"true"}
        if self.session:
            headers[b"reconnect-as"] = b"%d" % self.session
        self.line = Line(self.world, self._hear)
        self.talk = self.world.glovebox.connect(self.line, headers)
        self.talk.opened()

    def lose(self) -> None:
        """The connection breaks; what is due is kept for the session."""
        talk, self.line, self.talk = self.talk, None, None
        if talk is not None:
            talk.closed()

    def crashed(self) -> None:
        """The broker is gone, and its sessions with it."""
        self.line = self.talk = None
        self._forget()

    def _forget(self) -> None:
        self.session = 0
        self.notices.clear()
        self.whole.clear()
        self.held.clear()

    def failed(self) -> None:
        """The log failed and was cut: what was not durable is gone, and has no more notices."""
        self.whole = {label for label in self.whole if self.notices[label]}

    def _say(self, **request: Any) -> None:
        assert self.talk is not None
        self.talk.received(json.dumps(request).encode())
        self.talk.settle()

    def _post(self) -> None:
        label = next(self.world.numbers)
        self.notices[label] = ""
        self.whole.add(label)
        queue = self.world.random.choice(["work", "strict", "slow", "last"])
        self._say(type="post", queue=queue, message=f"session {label}", notify=NOTICES, label=label)

    def _fetch(self) -> None:
        queue = self.world.random.choice(["work", "strict", "slow", "last", "dead"])
        wait, lease = self.world.random.choice([(0, 0.5), (0.3, 0.1), (1, 2)])
        self._say(type="fetch", queue=queue, block_timeout=wait, work_timeout=lease, label=0)
        self.asked = queue

    def _finish(self) -> None:
        if self.held:
            queue, sequence, shard = self.held.pop(self.world.random.randrange(len(self.held)))
            self._say(type="finish", queue=queue, sequence=sequence, shard=shard, label=0)

    def _hear(self, reply: dict[str, Any]) -> None:
        try:
            self._understand(reply)
        except Exception as error:  # The loop lives through errors of its clients.
            raise BrokenPromiseError(f"{self.name}: {error!r}") from error

    def _understand(self, reply: dict[str, Any]) -> None:
        self.world.note(f"{self.name} hears {reply}")
        self.world.read_disks()
        match reply["type"]:
            case "hello":
                self._greet(reply["id"])
            case "message":
                self._receive(reply)
            case "notice" if reply["label"]:
                self._notice(reply["label"], reply["notice"])
            case "error" if reply["label"]:
                self.notices[reply["label"]] = "refused"
                self.whole.discard(reply["label"])

    def _greet(self, number: int) -> None:
        if number != self.session:
            self._forget()
        self.session = number

    def _receive(self, reply: dict[str, Any]) -> None:
        body = reply["body"].encode()
        logged = self.world.ledger.was_delivered(reply["sequence"], body)
        promise(logged, f"delivered before it was on the disk: {reply}")
        self.held.append((self.asked, reply["sequence"], reply["shard"]))

    def _notice(self, label: int, notice: str) -> None:
        before = self.notices[label]
        promise(notice in AFTER[before], f"{self.name}: {notice} comes after {before or 'nothing'} for {label}")
        self.notices[label] = notice
        self.heard += 1
        if notice == "sync":
            promise(self.world.ledger.place_of(label) is not None, f"sync, and not on the disk: {label}")

    def check(self) -> None:
        """In the end, a client that is connected has heard of every finish."""
        if self.line is None:
            return
        for label in self.whole:
            place = self.world.ledger.place_of(label)
            if place in self.world.ledger.successes:
                promise(self.notices[label] in LAST, f"{self.name} never heard that {label} is finished")
