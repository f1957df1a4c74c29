"""What each command needs."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.errors import Reason
from penstock.model import commands
from penstock.model.access import Access, scope_of
from penstock.model.commands import (
    AwaitMessage,
    Command,
    CreateQueue,
    Criteria,
    DescribeQueue,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    LookUp,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishTopics,
    Pull,
    Redrive,
    Search,
    StageRows,
    Tick,
    UpdateQueue,
)
from penstock.model.permissions import PERMISSIONS, forbidden, only_seen, told
from penstock.model.probe import Probe
from penstock.model.schedules import Schedule, SetSchedule
from penstock.model.settings import QueueSettings, RedrivePolicy

QUEUES = {1: "orders", 2: "jobs"}
HELLO = NewMessage(b"x")
DEAD = QueueSettings(redrive_policy=RedrivePolicy(3, "dead"))
CHANNEL = QueueSettings(topics=("orders.*", "jobs"))


def refused(command: Command, *scopes: str) -> str | None:
    answer = forbidden(Access("somebody", map(scope_of, scopes)), command, QUEUES.get)
    assert answer is None or answer.reason is Reason.FORBIDDEN
    return answer.detail if answer else None


def staged(*queues: str, topics: Iterable[str] = (), objects: Iterable[str] = ()) -> StageRows:
    return StageRows("q", 1, "p", 0, 1, b"", frozenset(queues), 1, 1, frozenset(topics), frozenset(objects))


def test_every_command_has_a_row() -> None:
    declared = set(Command.__subclasses__())
    assert declared == PERMISSIONS.keys()


@pytest.mark.parametrize(
    ("command", "scopes", "missing"),
    [
        (Publish("orders", [HELLO]), ("publish:orders",), None),
        (Publish("orders", [HELLO]), ("consume,read,manage:*",), "publish on orders"),
        (PublishInTurn([Publish("a", [HELLO]), Publish("b", [HELLO])]), ("publish:a",), "publish on b"),
        (PublishTopics([NewMessage(b"", topics=("a.b", "c"))], DEAD), ("publish:a.*",), "publish on c"),
        (PublishTopics([NewMessage(b"", topics=("a.b",), object="a", key=b"k")], DEAD), ("publish:a.*",), None),
        (PublishTopics([NewMessage(b"", topics=("a",), object="b", key=b"k")], DEAD), ("publish:a",), "publish on b"),
        (PublishTopics([NewMessage(b"", object="a")], DEAD), ("publish:b",), "publish on a"),
        (PublishTopics([HELLO], DEAD), ("publish:default",), None),
        (PublishTopics([HELLO], DEAD, "a"), ("publish:default",), "publish on a"),
        (Fetch("orders"), ("publish,read,manage:*",), "consume on orders"),
        (Finish(1, 1), ("consume:jobs",), "consume on orders"),
        (Finish(9, 1), ("consume:jobs",), None),
        (FinishMany([Finish(1, 1), Finish(2, 1)]), ("consume:orders",), "consume on jobs"),
        (Pull("me", [Draw("orders")], [("jobs", 1, b"")]), ("consume:orders",), "consume on jobs"),
        (AwaitMessage(1, 1), ("publish:orders",), None),
        (AwaitMessage(1, 1), ("consume:orders",), "publish or read on orders"),
        (AwaitMessage(9, 1), ("publish:orders",), "publish or read on *"),
        (LookUp(1, 1), ("consume:orders",), "read on orders"),
        (LookUp(9, 1), ("read:orders",), "read on *"),
        (LookUp(9, 1), ("read:*",), None),
        (Search(Criteria(queue="orders")), ("read:jobs",), "read on orders"),
        (Search(Criteria()), (), None),
        (DescribeQueue("orders"), ("publish:*",), "read or consume or manage on orders"),
        (CreateQueue("a", DEAD), ("manage:a", "publish:dead"), None),
        (CreateQueue("a", DEAD), ("manage:*",), "publish on dead"),
        (CreateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(3, "a.failed"))), ("manage:a",), None),
        (
            CreateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(3, "b.failed"))),
            ("manage:a",),
            "publish on b.failed",
        ),
        (CreateQueue("a.failed", QueueSettings()), ("manage:a",), None),
        (CreateQueue("a.failed", QueueSettings()), ("manage:b",), "manage on a"),
        (CreateQueue(".failed", QueueSettings()), ("manage:a",), "manage on .failed"),
        (CreateQueue("c", CHANNEL), ("manage:c", "read:orders*,jobs"), None),
        (CreateQueue("c", CHANNEL), ("manage:c", "read:orders.eu,jobs"), "read on orders.*"),
        (UpdateQueue("c", CHANNEL), ("manage:c", "read:orders.*"), "read on jobs"),
        (Redrive("dead", [1], "jobs"), ("manage:dead",), "manage on jobs"),
        (Redrive("dead", [1]), ("manage:dead",), None),
        (SetSchedule("daily", Schedule(queue="jobs")), ("manage:daily", "publish:jobs"), None),
        (SetSchedule("daily", Schedule(queue="jobs")), ("manage:*",), "publish on jobs"),
        (SetSchedule("daily", Schedule(topics=("a.b",))), ("publish:*",), "manage on daily"),
        (staged("a"), ("publish:b",), "publish on a"),
        (staged(topics={"a.b", "a.c"}), ("publish:a.*",), None),
        (staged(topics={"a.b", "a.c"}), ("publish:a", "publish:a.b"), "publish on a.c"),
        (staged("q", topics={"a.b"}, objects={"a", "q"}), ("publish:q", "publish:a.b"), None),
        (staged("q", topics={"a.b"}, objects={"a", "x"}), ("publish:q", "publish:a.b"), "publish on x"),
        (commands.CommitBatch("q", 1, ()), ("publish:b",), None),
        (commands.CommitBatch("q", 1, ()), ("read:*",), "publish on any queue"),
        (Tick(), ("admin",), "Tick"),
    ],
)
def test_a_command_needs_its_verbs_on_its_names(
    command: Command, scopes: tuple[str, ...], missing: str | None
) -> None:
    assert refused(command, *scopes) == missing


@pytest.mark.parametrize("command", [Finish(1, 1), LookUp(1, 1), AwaitMessage(1, 1), Probe(Finish(1, 1))])
@pytest.mark.parametrize(
    ("scope", "reason"), [("manage:jobs", Reason.NO_MESSAGE), ("manage:orders", Reason.FORBIDDEN)]
)
def test_of_a_message_in_a_queue_that_it_does_not_see_a_client_hears_nothing(
    command: Command, scope: str, reason: Reason
) -> None:
    access = Access("somebody", [scope_of(scope)])
    refused = forbidden(access, command, QUEUES.get)
    assert refused
    assert refused.reason is Reason.FORBIDDEN, "so it is recorded"
    assert told(access, command, refused, QUEUES.get).reason is reason


def test_what_is_claimed_of_a_queue_that_a_client_does_not_see_is_missing() -> None:
    access = Access("somebody", [scope_of("consume:orders")])
    claimed = commands.FinishClaimed([(1, 1, 5), (2, 1, 5), (9, 1, 5)], "me")
    assert only_seen(access, claimed, QUEUES.get) == commands.FinishClaimed([(1, 1, 5), (0, 1, 5), (0, 1, 5)], "me")
    assert only_seen(access, Fetch("secret"), QUEUES.get) == Fetch("secret")
