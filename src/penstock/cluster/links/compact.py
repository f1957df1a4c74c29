"""What crosses a link in a shorter form: many messages that differ only in their bodies.

The owner decides the same in either form. The sender checks whether the messages are alike, so the owner need not,
and neither an object for each message nor one for each receipt is encoded and decoded.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock.broker.writer.port import Reply
from penstock.engine.runs import alike
from penstock.limits import RUN_MESSAGES_MIN
from penstock.model.answers import Receipt, Receipts
from penstock.model.commands import Command, Publish, PublishRun


def compacted(command: Command, reply: Reply) -> tuple[Command, Reply]:
    """The command as it is to cross, and what its answer goes to."""
    if type(command) is not Publish or len(command.messages) < RUN_MESSAGES_MIN or command.fleeting:
        return command, reply
    messages = command.messages
    if not alike(messages):
        return command, reply
    template = replace(messages[0], body=b"")
    run = PublishRun(command.queue, template, [message.body for message in messages], command.create)
    return run, lambda answer: reply(_spread(answer))


def _spread(answer: Any) -> Any:
    if type(answer) is not Receipts:
        return answer
    sequences = range(answer.first, answer.first + answer.count)
    return [Receipt(answer.queue, sequence, True) for sequence in sequences]
