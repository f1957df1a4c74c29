"""What the sender of a message is told about it through glovebox."""

from __future__ import annotations

from collections.abc import Callable

from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Done
from penstock.model.commands import (
    CreateQueue,
    Fetch,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.glovebox import House, bounded, fetch, finish, live, notice, post
from tests.support.live_loop import ask


@bounded(followed_max=2)
async def test_so_many_messages_are_followed_and_no_more(house: House) -> None:
    client = await house.client()
    client.say(*[post(notify=["ready", "finish"], label=label) for label in range(3)])
    replies = await client.hear_all(3)
    assert {"type": "error", "label": 2, "code": "PermissionDenied"}.items() <= replies[0].items()
    assert "follows 2 messages already" in replies[0]["key"]
    assert replies[1:] == [notice(0, "ready"), notice(1, "ready")]
    client.say({"type": "pop", "queue": "work", "label": 9})
    assert [await client.hear(), (await client.hear())["label"]] in (
        [notice(0, "finish"), 9],
        [9, notice(0, "finish")],
    )
    client.say(post(notify=["finish", "ready"], label=3), post(notify=["ready"], label=4))
    assert await client.hear_all(2) == [notice(3, "ready"), notice(4, "ready")]


@live
async def test_a_post_to_nowhere_is_not_followed(house: House) -> None:
    client = await house.client()
    for _ in range(3):
        client.say(post(queue="none", notify=["finish"], label=1))
        assert (await client.hear())["code"] == "NoObject"
    assert client.talk._session._following._soon == 0  # type: ignore[attr-defined]


@live
async def test_the_fate_of_a_message_that_moves_to_a_dead_letter_queue_is_told_as_drop(house: House) -> None:
    await ask(house.loop, CreateQueue("dead", QueueSettings()))
    await ask(house.loop, CreateQueue("risky", QueueSettings(redrive_policy=RedrivePolicy(1, "dead"))))
    client = await house.client()
    client.say(post(queue="risky", notify=["assign", "retry", "drop", "finish"], label=1))
    await ask(house.loop, Fetch("risky", wait_ns=5 * SECOND_NS))
    assert await client.hear() == notice(1, "drop")


@live
async def test_a_message_is_told_to_be_stored_before_it_is_told_to_be_finished(house: House) -> None:
    """Another process has the queue, and its answer that everything is durable comes late."""
    client, late = await house.client(), list[Callable[[Answer], None]]()
    client.reach = lambda stage, reply: late.append(reply)  # type: ignore[method-assign]
    client.say(post(notify=["write", "sync", "finish"], label=1))
    await ask(house.loop, Fetch("work", wait_ns=5 * SECOND_NS, confirm=False))
    assert await client.hear_all(3) == [notice(1, "write"), notice(1, "sync"), notice(1, "finish")]
    for reply in late:
        reply(Done())
    client.say(post(notify=["ready"], label=2))
    assert await client.hear() == notice(2, "ready"), "and not twice"


@live
async def test_a_message_is_told_to_have_failed_to_be_stored(house: House) -> None:
    client = await house.client()
    client.say(post(notify=["ready", "write", "sync"], label=1), post(label=2))
    house.loop.fail(OSError("no space left"))
    told = {
        "type": "error",
        "code": "Unavailable",
        "key": "unavailable now: the log cannot be written: no space left",
    }
    replies = await client.hear_all(2)
    assert sorted(reply["label"] for reply in replies) == [1, 2]
    assert all(told.items() <= reply.items() for reply in replies)


@bounded(errors="origin")
async def test_a_client_of_the_origin_reads_a_failure_of_the_log_as_permission_denied(house: House) -> None:
    client = await house.client()
    house.loop.commit.failure = "no space left"
    client.say(post(label=1))
    failed = {"code": "PermissionDenied", "key": "unavailable now: the log cannot be written: no space left"}
    assert await client.hear() == {"type": "error", "label": 1, **failed}


@live
async def test_what_could_not_be_finished_for_want_of_a_log_is_still_held(house: House) -> None:
    await house.fill("a", "b")
    client = await house.client()
    client.say(fetch(), fetch())
    messages = await client.hear_all(2)
    house.loop.commit.failure = "no space left"
    client.say(*[finish(message, label=1) for message in messages])
    assert [reply["code"] for reply in await client.hear_all(2)] == ["Unavailable", "Unavailable"]
    house.loop.commit.failure = None
    client.say(*[finish(message, label=1) for message in messages])
    assert await client.hear_all(2) == [notice(1, "finish"), notice(1, "finish")]
