"""The audit beside a live writer: one batch for an act and its record, bounds, and records that cannot be written."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec import Struct

from penstock.broker.services.audit import Audit
from penstock.broker.writer.loop import Loop
from penstock.config.config import AuditConfig
from penstock.errors import Reason, RequestError
from penstock.ids import MessageIds
from penstock.limits import SECOND_NS
from penstock.model.access import EVERYTHING, Access
from penstock.model.answers import QueueDescription, Refused
from penstock.model.commands import CreateQueue, Criteria, DeleteQueue, Fetch, Purge, Redrive, Search, UpdateQueue
from penstock.model.settings import Push, QueueSettings
from penstock.model.values import Stage
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask, live, settled

IDS = MessageIds(bytes(16), 1)


class Somebody(Struct):
    access: Access = EVERYTHING
    address: str = "10.0.0.7"
    dialect: str = "native"


def audit_of(loop: Loop, **settings: Any) -> Audit:
    audit = Audit(loop, IDS, AuditConfig(**settings))
    loop.gate.auditor = audit
    return audit


async def act(loop: Loop, command: Any, client: Somebody | None = None) -> Any:
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    loop.submit_as(client or Somebody(), command, answered.set_result)
    return await answered


async def records(loop: Loop) -> list[Any]:
    """In the order of the queue."""
    await settled(loop)
    found = await ask(loop, Search(Criteria(queue="_audit"), limit=1000))
    if isinstance(found, Refused):
        return []
    return [json.loads(loop.log.read(each.position, each.body_bytes)) for each in found.messages]


@live
async def test_an_act_and_its_record_are_one_commit(loop: Loop) -> None:
    audit_of(loop)
    await settled(loop)
    before = loop.commit.count
    assert isinstance(await act(loop, CreateQueue("orders", QueueSettings())), QueueDescription)
    assert loop.commit.count == before + 1
    assert {"orders", "_audit"} <= loop.engine.numbers.keys()
    assert loop.engine.queue("_audit").rows.count == 1  # type: ignore[union-attr]


@live
async def test_the_client_waits_for_the_record(loop: Loop) -> None:
    audit_of(loop)
    answers: list[Any] = []
    loop.submit_as(Somebody(), CreateQueue("orders", QueueSettings()), answers.append)
    assert loop.engine.queue("orders") is not None, "the act is decided at once"
    assert answers == []
    await settled(loop)
    assert isinstance(answers[0], QueueDescription)


@live
async def test_an_act_that_cannot_be_recorded_is_not_acknowledged(loop: Loop) -> None:
    audit = audit_of(loop)
    audit._settings = QueueSettings(confirmations=2, push=Push("http://a.example/"))  # No queue can have both.
    answer = await act(loop, CreateQueue("orders", QueueSettings()))
    assert (type(answer), answer.reason) == (Refused, Reason.NOT_TOGETHER)
    with pytest.raises(RequestError):
        await audit.begin(Somebody(), Purge("work"), {})


@live
async def test_a_log_that_fails_answers_no_act(loop: Loop) -> None:
    audit_of(loop)
    answers: list[Any] = []
    loop.submit_as(Somebody(), CreateQueue("orders", QueueSettings()), answers.append)
    loop.fail(OSError("the disk is gone"))
    loop.submit_as(Somebody(), CreateQueue("more", QueueSettings()), answers.append)
    assert [answer.reason for answer in answers] == [Reason.UNAVAILABLE, Reason.UNAVAILABLE]


@live
async def test_what_is_no_act_is_not_recorded(loop: Loop) -> None:
    audit_of(loop)
    assert not await act(loop, Fetch("work"))
    assert loop.engine.queue("_audit") is None


@live
async def test_a_broker_that_does_not_record_carries_out_everything(loop: Loop) -> None:
    audit = audit_of(loop, enabled=False)
    assert isinstance(await act(loop, CreateQueue("orders", QueueSettings())), QueueDescription)
    assert (await act(loop, DeleteQueue("none"))).reason is Reason.NO_QUEUE
    await audit.begin(Somebody(), Purge("work"), {})
    await asyncio.wait_for(audit.run(), 60)
    assert loop.engine.queue("_audit") is None


@live
async def test_long_work_does_not_begin_without_its_queues(loop: Loop) -> None:
    audit = audit_of(loop)
    for command in (Purge("none"), Redrive("work", (), "none"), Redrive("none", (), "")):
        with pytest.raises(RequestError, match="none"):
            await audit.begin(Somebody(), command, {})
    await audit.begin(Somebody(), Redrive("work", (), ""), {"to": None})
    assert [(each["act"], each["target"], each["outcome"]) for each in await records(loop)] == [
        ("queue.purge", "none", "refused"),
        ("queue.redrive", "work", "refused"),
        ("queue.redrive", "none", "refused"),
        ("queue.redrive", "work", "done"),
    ]


@live
async def test_what_an_identity_may_not_do_is_recorded_by_act_or_verb(loop: Loop) -> None:
    audit_of(loop)
    ann = Somebody(Access("ann", ()))
    assert (await act(loop, DeleteQueue("work"), ann)).reason is Reason.FORBIDDEN
    assert (await act(loop, Fetch("work"), ann)).reason is Reason.FORBIDDEN
    assert loop.refusal(ann, Purge("work")) is not None
    found = await records(loop)
    assert [(each["who"], each["identity"], each["act"], each["target"], each["code"]) for each in found] == [
        ("ann", "token", "queue.delete", "work", "forbidden"),
        ("ann", "token", "consume", "work", "forbidden"),
        ("ann", "token", "queue.purge", "work", "forbidden"),
    ]


@live
async def test_the_oldest_records_are_removed_if_there_are_too_many(loop: Loop) -> None:
    audit = audit_of(loop, records_max=1000)
    audit._records_max = 3
    for number in range(10):
        await act(loop, CreateQueue(f"queue-{number}", QueueSettings()))
    await audit._keep()
    assert [each["target"] for each in await records(loop)] == ["queue-7", "queue-8", "queue-9"]
    await audit._keep()
    assert len(await records(loop)) == 3


@live
async def test_the_queue_gets_the_settings_of_the_broker(loop: Loop) -> None:
    await ask(loop, CreateQueue("_audit", QueueSettings(retries=7)))
    await audit_of(loop, retention_seconds=60)._keep()
    queue = loop.engine.queue("_audit")
    assert queue is not None
    assert queue.settings == QueueSettings(keep="all", retention_ns=60 * SECOND_NS)


@live
async def test_a_push_url_is_shown_without_its_secrets(loop: Loop) -> None:
    audit_of(loop)
    with_secret = Push("https://ann:very-secret@a.example/hook?key=very-secret")
    await act(loop, CreateQueue("c", QueueSettings(topics=("t",), push=with_secret)))
    await act(loop, UpdateQueue("c", QueueSettings(topics=("t",), push=Push("https://a.example/hook?key=other"))))
    made, changed = await records(loop)
    assert made["after"]["push"]["url"] == "https://a.example/hook?(hidden)"
    assert "push" in changed["before"], "that it has changed can be seen"
    assert "very-secret" not in json.dumps([made, changed])


def test_an_answer_is_as_durable_as_the_client_asks() -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        audit_of(loop)
        answers: list[Any] = []
        loop.submit_as(Somebody(), CreateQueue("orders", QueueSettings()), answers.append, Stage.WRITE)
        await settled(loop)
        assert isinstance(answers[0], QueueDescription)

    asyncio.run(story())
