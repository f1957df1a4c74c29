"""A question whether there is what a command names changes nothing."""

from __future__ import annotations

import pytest

from penstock.errors import Reason
from penstock.model.answers import Done, Refused
from penstock.model.commands import (
    CreateQueue,
    DeleteQueue,
    Fetch,
    Finish,
    NewMessage,
    Publish,
    PublishTopics,
    Purge,
    Settle,
    UpdateQueue,
)
from penstock.model.probe import Head, Probe
from penstock.model.schedules import DescribeSchedule
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.tokens import RotateToken
from tests.support.engine_rig import Rig, state_of

PLAIN, HELLO = QueueSettings(), NewMessage(b"x")
NO_DEAD_LETTERS = QueueSettings(redrive_policy=RedrivePolicy(1, "none"))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (CreateQueue("orders", NO_DEAD_LETTERS), Reason.QUEUE_EXISTS),
        (CreateQueue("new", NO_DEAD_LETTERS), None),
        (UpdateQueue("none", NO_DEAD_LETTERS), Reason.NO_QUEUE),
        (UpdateQueue("orders", NO_DEAD_LETTERS), None),
        (DeleteQueue("none"), Reason.NO_QUEUE),
        (DeleteQueue("orders"), None),
        (Publish("none", (HELLO,)), Reason.NO_QUEUE),
        (Publish("none", (HELLO,), PLAIN), None),
        (PublishTopics((HELLO,), PLAIN, "orders"), None),
        (PublishTopics((HELLO,), PLAIN, "feed"), Reason.IS_CHANNEL),
        (Fetch("none"), Reason.NO_QUEUE),
        (Fetch("orders"), None),
        (Purge("orders"), None),
        (Finish(1, 9), Reason.NO_MESSAGE),
        (Finish(1, 1), None),
        (Settle(1, 1, "success", "somebody else"), None),
        (DescribeSchedule("none"), Reason.NO_SCHEDULE),
        (RotateToken("none", ""), Reason.NO_TOKEN),
    ],
)
def test_it_is_refused_for_what_is_missing_or_there_and_for_nothing_else(head: Head, reason: Reason | None) -> None:
    rig = Rig()
    rig.create("orders")
    rig.create("feed", topics=("fruit",))
    rig.publish("orders", b"x")
    before = state_of(rig.engine)
    answer = rig.do(Probe(head))
    assert state_of(rig.engine) == before
    assert (answer.reason if isinstance(answer, Refused) else answer) == (reason or Done())
