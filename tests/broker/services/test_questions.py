"""Questions to one shard: what is refused, when answers are given, and what ends the work for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.broker.services.audit import Audit
from penstock.broker.services.questions import Questions
from penstock.broker.writer.loop import Loop
from penstock.config.config import AuditConfig
from penstock.dialects.wire.http import Request
from penstock.errors import Fault, ProtocolError, Reason, RequestError
from penstock.ids import ID_KEY_BYTES, MessageIds
from penstock.model.access import Access, Verb, scope_of
from penstock.model.answers import Refused
from penstock.model.commands import CreateQueue
from penstock.model.health import ReadHealth
from penstock.model.jobs import FindJob, StartPurge
from penstock.model.permissions import NotAllowedError
from penstock.model.queries import Failed, Query
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.live_loop import a_loop, ask, until

FIND, PURGE = FindJob("purges", "1"), StartPurge("work")


def client(scopes: str = "admin") -> Request:
    request = Request(b"GET", b"/", {})
    request.access = Access("ada", [scope_of(scopes)])
    return request


def questions(loop: Loop, answer: Any) -> Questions:
    audit = Audit(loop, MessageIds(bytes(ID_KEY_BYTES)), AuditConfig(enabled=False))
    return Questions(loop, audit, dict.fromkeys((FindJob, StartPurge, ReadHealth), answer), {})


async def answer_to(asked: Questions, query: Query, scopes: str = "admin") -> Any:
    given = asyncio.get_running_loop().create_future()
    asked.take(client(scopes), query, given.set_result)
    return await given


def answered(answer: Any, query: Query) -> Any:
    """By a service that answers like this."""

    async def story() -> Any:
        return await answer_to(questions(a_loop(MemoryLog()), answer), query)

    return asyncio.run(story())


async def named(who: Request, query: FindJob) -> str:
    return f"{who.access.name} {query.job}"


def test_a_service_knows_who_asks() -> None:
    assert answered(named, FIND) == "ada 1"


def test_what_a_client_may_not_ask_is_not_asked() -> None:
    async def story() -> Any:
        loop = a_loop(MemoryLog())
        await ask(loop, CreateQueue("work", QueueSettings()))
        return await answer_to(questions(loop, named), PURGE, "read:work")

    refused = asyncio.run(story())
    assert (type(refused), refused.reason) == (Refused, Reason.FORBIDDEN)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RequestError(Fault.NO_LAKE), Fault.NO_LAKE.code),
        (RequestError(Reason.NO_QUEUE, "work"), "no_queue"),
        (ProtocolError("nonsense"), "bad_request"),
        (ZeroDivisionError(), Fault.INTERNAL.code),
    ],
)
def test_an_error_is_an_answer(error: Exception, code: str) -> None:
    async def fails(*_: Any) -> None:
        raise error

    answer = answered(fails, FIND)
    assert isinstance(answer, Failed)
    assert answer.code == code
    if isinstance(error, RequestError):
        assert (answer.sentence, answer.error) == (str(error), error.error)


def test_what_a_service_does_not_allow_is_refused() -> None:
    async def refuses(*_: Any) -> None:
        raise NotAllowedError(((Verb.MANAGE,), "work"))

    answer = answered(refuses, FIND)
    assert (type(answer), answer.reason) == (Refused, Reason.FORBIDDEN)


def test_an_answer_waits_for_what_it_has_seen() -> None:
    async def story() -> None:
        loop, order = a_loop(MemoryLog()), []

        async def seen(*_: Any) -> int:
            loop.submit(CreateQueue("work", QueueSettings()), lambda _: order.append("created"))
            return len(loop.engine.queues)

        assert await answer_to(questions(loop, seen), FIND) == 1
        assert order == ["created"]

    asyncio.run(story())


def test_a_log_that_cannot_be_written_leaves_only_questions_about_the_process() -> None:
    async def story() -> None:
        loop = a_loop(MemoryLog())
        loop.fail(OSError("the disk is full"))
        asked = questions(loop, lambda *_: asyncio.sleep(0, "seen"))
        assert await answer_to(asked, ReadHealth()) == "seen"
        refused = await answer_to(asked, FIND)
        assert (refused.code, refused.error) == ("unavailable", Reason.UNAVAILABLE)

    asyncio.run(story())


def test_work_ends_when_nobody_waits_for_it_but_what_is_done_is_done() -> None:
    async def story() -> None:
        ended: list[Query] = []
        goes_on = asyncio.Event()

        async def works(_: Request, query: Query) -> None:
            try:
                await goes_on.wait()
            finally:
                ended.append(query)

        asked = questions(a_loop(MemoryLog()), works)
        pending = asked.take(client(), FIND, print)
        assert pending
        assert asked.take(client(), PURGE, lambda _: None) is None
        await asyncio.sleep(0)
        pending.cancel()
        await until(lambda: ended == [FIND])
        goes_on.set()
        await until(lambda: ended == [FIND, PURGE])

    asyncio.run(story())


def test_work_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FindJob, "seconds_max", 0.01)
    answer = answered(lambda *_: asyncio.Event().wait(), FIND)
    assert (answer.code, "takes too long" in answer.sentence) == ("unavailable", True)


def test_whoever_waits_for_a_shard_that_is_handed_over_is_told() -> None:
    async def story() -> Any:
        asked, given = questions(a_loop(MemoryLog()), lambda *_: asyncio.Event().wait()), asyncio.Future[Any]()
        asked.take(client(), FIND, given.set_result)
        await asyncio.sleep(0)
        await asked.close()
        return await given

    assert asyncio.run(story()) == Refused(Reason.UNAVAILABLE, "the shard is handed over")
