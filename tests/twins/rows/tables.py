"""All rows, and what a program begins with."""

from __future__ import annotations

from typing import Any, Final

from tests.twins.programs import ADMIN, Draw, Http, Row, Step
from tests.twins.rows.administration import ADMINISTRATION
from tests.twins.rows.conversations import ETZEL, GLOVEBOX
from tests.twins.rows.native import NATIVE
from tests.twins.rows.queue_dialects import MQS, NQ

ROWS: Final[dict[Row, int]] = MQS | NQ | ETZEL | GLOVEBOX | NATIVE | ADMINISTRATION


def beginning(draw: Draw) -> list[Step]:
    """Queues with settings of all kinds, in any shards, and a channel."""
    failed = {"max_receives": draw.one_of([1, 2, 3]), "dead_letter_queue": draw.name("d")}
    settings: dict[str, dict[str, Any]] = {
        "d": {},
        "a": draw.one_of([{}, {"redrive_policy": failed}, {"retries": 2}]),
        "b": draw.one_of([{}, {"confirmations": 2}, {"message_deduplication": True}, {"detect_unchanged": True}]),
        "c": draw.one_of([{}, {"redrive_policy": failed}, {"message_delay": draw.seconds()}]),
        "k": {"keep": "all"} | draw.any_of(confirmations=2),
    }
    steps: list[Step] = [
        Http(ADMIN, "PUT", f"/v1/queues/{draw.name(letter)}", each)
        for letter, each in settings.items()
        if draw.chance() < 0.8
    ]
    if draw.chance() < 0.6:
        patterns = [draw.name("a") + ".*", draw.name("b")]
        steps.append(Http(ADMIN, "PUT", f"/v1/channels/{draw.name('h')}", {"topics": patterns}))
    return steps
