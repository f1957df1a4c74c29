"""What clients have asked for, and so may happen."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.model.commands import (
    Command,
    Fetch,
    Finish,
    FinishMany,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
    Purge,
    Release,
    Settle,
)

Place = tuple[int, int]


def bodies_in(command: Command) -> list[bytes]:
    """What a command publishes."""
    match command:
        case Publish() | PublishTopics():
            return [message.body for message in command.messages]
        case PublishInTurn():
            return [body for publish in command.publishes for body in bodies_in(publish)]
        case PublishOnce():
            return bodies_in(command.publish)
        case _:
            return []


@dataclass
class Asked:
    finish: set[Place] = field(default_factory=set)
    release: set[Place] = field(default_factory=set)
    kick: set[str] = field(default_factory=set)
    purge: set[str] = field(default_factory=set)
    result: set[tuple[str, int]] = field(default_factory=set)
    bodies: Counter[bytes] = field(default_factory=Counter)  # How often something was published.

    def remember(self, command: Command) -> None:
        self.bodies.update(bodies_in(command))
        match command:
            case Finish():
                self.finish.add((command.queue, command.sequence))
            case FinishMany():
                self.finish.update((each.queue, each.sequence) for each in command.finishes)
            case Settle(outcome="retry") | Release():
                self.release.add((command.queue, command.sequence))
            case Settle():
                self.finish.add((command.queue, command.sequence))
            case Fetch(confirm=False):
                self.kick.add(command.queue)
            case Purge():
                self.purge.add(command.queue)
            case Pull():
                self.result.update((queue, sequence) for queue, sequence, _ in command.results)
                self.kick.update(draw.queue for draw in command.draws if not draw.retries)
            case _:
                pass
