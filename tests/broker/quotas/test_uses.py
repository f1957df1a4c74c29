"""Every command that publishes, receives or creates queues is counted as that."""

from __future__ import annotations

import pytest

from penstock.broker.quotas.uses import CREATED, PUBLISHED, received
from penstock.errors import Reason
from penstock.model.answers import Claimed, Drawn, Pulled, Received, Refused
from penstock.model.commands import (
    Command,
    CreateQueue,
    Fetch,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishRun,
    PublishTopics,
    Pull,
    ReadClaimed,
    Receive,
)
from penstock.model.settings import QueueSettings

MESSAGE = NewMessage(b"x", topics=("orders.new", "audit", "orders.old"))
PLAIN = NewMessage(b"x")
NEW = QueueSettings()
RUN = PublishRun("run", PLAIN, [b"x"] * 20, NEW)
TOPICS = PublishTopics([MESSAGE, NewMessage(b"y", object="car"), PLAIN], NEW)
DRAWN = Drawn("q", [1, 2, 3], [], [], [], [], [], [])


@pytest.mark.parametrize(
    ("command", "published", "created"),
    [
        (Publish("a", [PLAIN] * 3), 3, set()),
        (Publish("a", [PLAIN] * 3, NEW), 3, {"a"}),
        (RUN, 20, {"run"}),
        (PublishInTurn([RUN, Publish("a", [PLAIN], NEW)]), 21, {"run", "a"}),
        (TOPICS, 3, {"orders", "audit", "car", "default"}),
        (PublishTopics([MESSAGE], NEW, "named"), 1, set()),
        (PublishOnce(TOPICS, b"key", b"digest", 1, 1), 3, {"orders", "audit", "car", "default"}),
        (CreateQueue("new", NEW), 0, {"new"}),
    ],
)
def test_what_is_published_and_created(command: Command, published: int, created: set[str]) -> None:
    kind = type(command)
    assert PUBLISHED.get(kind, lambda _: 0)(command) == published
    assert set(CREATED[kind](command)) == created


@pytest.mark.parametrize(
    ("command", "answer", "count"),
    [
        (Fetch("q"), [], 0),
        (Fetch("q"), [1, 2], 2),
        (Receive("q", "c"), Received(), 0),
        (Receive("q", "c"), [1], 1),
        (Pull("r"), Pulled(), 0),
        (Pull("r"), Pulled([DRAWN, DRAWN]), 6),
        (ReadClaimed([], "c", 1), Claimed([], 0), 0),
        (Pull("r"), Refused(Reason.NO_QUEUE), 0),
    ],
)
def test_what_is_received(command: Command, answer: object, count: int) -> None:
    assert received(command, answer) == count
