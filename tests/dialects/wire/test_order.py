"""One client's commands keep their order, though those that are alike are decided together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.dialects.wire.order import CommandOrder, Gathering
from penstock.model.answers import Answer
from penstock.model.client import Client
from penstock.model.commands import Command, Fetch, Finish, NewMessage, Publish
from penstock.model.values import Stage

FETCH, FINISH, PUBLISH = Fetch("work", 1), Finish(1, 1), Publish("work", (NewMessage(b"x"),))


class Writer:
    """Notes what it is asked to do."""

    def __init__(self) -> None:
        self.asked: list[Command | str] = []

    def submit_as(
        self, client: Client, command: Command, reply: Callable[[Answer], None], stage: Stage = Stage.SYNC
    ) -> None:
        self.asked.append(command)

    def decide_collected(self) -> None:
        self.asked.append("decide")


def asked(*commands: Command) -> list[Command | str]:
    writer = Writer()
    order = CommandOrder(writer)
    for command in commands:
        order.submit(command, lambda _: None)
    return writer.asked


def test_a_fetch_is_decided_before_a_later_publish_of_the_same_client() -> None:
    assert asked(FETCH, FETCH, PUBLISH, PUBLISH) == [FETCH, FETCH, "decide", PUBLISH, PUBLISH]


def test_other_commands_are_collected_as_they_come() -> None:
    assert asked(PUBLISH, FINISH, FETCH, FINISH) == [PUBLISH, FINISH, FETCH, FINISH]


class Notebook(Gathering):
    """Gathers, and notes what it carries out."""

    def __init__(self) -> None:
        super().__init__()
        self.done: list[tuple[Any, ...]] = []

    def _finish_together(self, finishes: list[int]) -> None:
        self.done.append(("finish", finishes))

    def _publish_together(self, queue: str, messages: list[str]) -> None:
        self.done.append(("publish", queue, messages))

    def _fetch_together(self, wanted: str, fetchers: list[int]) -> None:
        self.done.append(("fetch", wanted, fetchers))


def test_what_was_gathered_is_carried_out_once_in_the_order_of_the_writer() -> None:
    gathering = Notebook()
    gathering._fetches["work"] = [1, 2]
    gathering._publishes |= {"work": ["a", "b"], "more": ["c"]}
    gathering._finishes += [7, 8]
    gathering.settle()
    gathering.settle()
    assert gathering.done == [
        ("finish", [7, 8]),
        ("publish", "work", ["a", "b"]),
        ("publish", "more", ["c"]),
        ("fetch", "work", [1, 2]),
    ]
