"""What commands use: how many messages they publish and receive, and which queues they may create."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from penstock.engine.routing import roots
from penstock.model.answers import Refused
from penstock.model.commands import (
    Command,
    CreateQueue,
    Fetch,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishRun,
    PublishTopics,
    Pull,
    ReadClaimed,
    Receive,
    StageRows,
)
from penstock.model.consuming import Consume

PUBLISHED: dict[type[Command], Callable[[Any], int]] = {
    Publish: lambda command: len(command.messages),
    PublishTopics: lambda command: len(command.messages),
    PublishOnce: lambda command: len(command.publish.messages),
    PublishRun: lambda command: len(command.bodies),
    PublishInTurn: lambda command: sum([PUBLISHED[type(each)](each) for each in command.publishes]),
    StageRows: lambda command: command.rows,
}
"""How many messages a command publishes."""

RECEIVED: dict[type[Command], Callable[[Any], int]] = {
    Fetch: len,
    **dict.fromkeys(
        (Receive, Consume), lambda answer: len(answer) if isinstance(answer, list | tuple) else len(answer.deliveries)
    ),
    Pull: lambda answer: sum([len(drawn.sequences) for drawn in answer.drawn]),
    ReadClaimed: lambda answer: len(answer.deliveries),
}
"""How many messages an answer to a command brings."""

CREATED: dict[type[Command], Callable[[Any], Iterable[str]]] = {
    CreateQueue: lambda command: (command.name,),
    Publish: lambda command: (command.queue,) if command.create else (),
    PublishRun: lambda command: (command.queue,) if command.create else (),
    PublishInTurn: lambda command: [name for each in command.publishes for name in CREATED[type(each)](each)],
    PublishTopics: lambda command: () if command.queue else _named_by_topics(command),
    PublishOnce: lambda command: CREATED[PublishTopics](command.publish),
}
"""The queues that a command creates if they do not exist."""

COUNTED = frozenset((*PUBLISHED, *RECEIVED, *CREATED))


def _named_by_topics(command: PublishTopics) -> set[str]:
    return {name for message in command.messages for name in roots(message.topics, message.object)}


def received(command: Command, answer: Any) -> int:
    return 0 if type(answer) is Refused else RECEIVED[type(command)](answer)
