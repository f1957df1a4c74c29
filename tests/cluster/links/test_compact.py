"""Messages that differ only in their bodies cross a link in a short form. Nobody can tell from the answers."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cluster.links.link import compacted
from penstock.engine.engine import Engine
from penstock.limits import RUN_MESSAGES_MIN
from penstock.model.commands import Command, CreateQueue, NewMessage, Publish, PublishRun
from penstock.model.settings import QueueSettings

MANY = [NewMessage(b"body %d" % number, "text/plain", 2, "sender") for number in range(RUN_MESSAGES_MIN)]


def answers_to(command: Command, settings: QueueSettings) -> Any:
    engine = Engine()
    for event in engine.decide(CreateQueue("work", settings), 1).events:
        engine.evolve(event, 0)
    return engine.decide(command, 2).answer


@pytest.mark.parametrize("deduplication", [False, True])
@pytest.mark.parametrize("queue", ["work", "missing"])
def test_a_run_is_answered_as_its_messages_would_be(queue: str, deduplication: bool) -> None:
    settings, heard = QueueSettings(deduplication=deduplication), list[Any]()
    whole = Publish(queue, [*MANY, MANY[0]])
    short, reply = compacted(whole, heard.append)
    assert type(short) is PublishRun
    reply(answers_to(short, settings))
    assert heard == [answers_to(whole, settings)]


@pytest.mark.parametrize(
    "publish",
    [
        Publish("work", MANY[1:]),
        Publish("work", [*MANY, NewMessage(b"another priority", "text/plain", 3, "sender")]),
        Publish("work", [*MANY, NewMessage(b"a key", "text/plain", 2, "sender", key=b"key")]),
        Publish("work", [NewMessage(each.body, headers=b"headers") for each in MANY]),
        Publish("work", MANY, fleeting=True),
    ],
)
def test_other_publishes_cross_as_they_are(publish: Publish) -> None:
    assert compacted(publish, print) == (publish, print)
