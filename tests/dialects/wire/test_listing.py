"""Lists of queues are made part by part, and are right whatever happens between two parts."""

from __future__ import annotations

import json
from typing import Any

from penstock.dialects.wire.http import Response
from penstock.dialects.wire.listing import listing
from penstock.limits import QUEUES_PER_PART
from penstock.model.answers import Refused
from penstock.model.commands import Command, CreateQueue, DeleteQueue, ListQueues
from penstock.model.settings import QueueSettings
from tests.support.engine_rig import Rig

MANY = 3 * QUEUES_PER_PART + 7


def a_broker() -> Rig:
    rig = Rig()
    for number in range(MANY):
        rig.do(CreateQueue(f"q{number}", QueueSettings()))
    return rig


def listed(rig: Rig, asked: ListQueues, removed_meanwhile: str | None = None) -> tuple[dict[str, Any], int]:
    """The document, and in how many parts it was made."""
    steps = listing(asked, "queues", lambda queue: queue.name, _unexpected, pages=True)
    command, parts = next(steps), 0
    while True:
        parts += 1
        assert isinstance(command, Command)
        answer = rig.do(command)
        if removed_meanwhile and parts == 1:
            rig.do(DeleteQueue(removed_meanwhile))
        try:
            command = steps.send(answer)
        except StopIteration as end:
            return json.loads(end.value.body), parts


def _unexpected(refused: Refused) -> Response:
    raise AssertionError(refused)


def test_a_long_list_is_made_in_parts() -> None:
    document, parts = listed(a_broker(), ListQueues())
    assert document == {"total": MANY, "next": None, "queues": [f"q{number}" for number in range(MANY)]}
    assert parts == 4


def test_a_page_is_what_was_asked_for() -> None:
    document, _ = listed(a_broker(), ListQueues(5, QUEUES_PER_PART + 1))
    assert document["queues"] == [f"q{number}" for number in range(5, QUEUES_PER_PART + 6)]
    assert document["next"] == QUEUES_PER_PART + 6
    assert listed(a_broker(), ListQueues(0, 0))[0]["queues"] == []


def test_a_queue_that_is_removed_meanwhile_hides_no_other() -> None:
    document, _ = listed(a_broker(), ListQueues(), removed_meanwhile="q3")
    assert document["queues"] == [f"q{number}" for number in range(MANY)]
