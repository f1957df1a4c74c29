"""One client of glovebox: what it asks for goes on together, and is answered."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.limits import BODY_BYTES_MAX, FETCH_BYTES_MAX, GATHERED_MAX, GATHERED_RUN_MIN, SECOND_NS
from penstock.model.commands import (
    Command,
    DescribeQueue,
    Fetch,
    FinishMany,
    Publish,
    PublishRun,
)
from tests.support.glovebox import House, bounded, fetch, finish, live, notice, post, until
from tests.support.live_loop import ask

# ── What comes together goes on together ──────────────────────────────────────────────────────────────────────


@live
async def test_posts_that_come_together_are_one_command_with_a_notice_each(house: House) -> None:
    client = await house.client()
    client.say(*[post(f"body {label}", label=label) for label in range(5)], post(notify=[]))
    assert [type(command) for command in client.commands] == [Publish]
    assert await client.hear_all(5) == [notice(label, "sync") for label in range(5)]
    await house.settled()
    assert client.unheard == 0


def sizes(command: Command) -> tuple[type[Command], int]:
    if isinstance(command, PublishRun):
        return PublishRun, len(command.bodies)
    assert isinstance(command, Publish)
    return Publish, len(command.messages)


@live
async def test_many_posts_that_differ_only_in_their_bodies_cross_as_a_run(house: House) -> None:
    client, count = await house.client(), GATHERED_RUN_MIN
    client.say(*[post(f"body {label}", label=label, priority=3) for label in range(count)])
    assert [sizes(command) for command in client.commands] == [(PublishRun, count)]
    assert await client.hear_all(count) == [notice(label, "sync") for label in range(count)]
    client.say(*[fetch(label=label) for label in range(count)])
    assert [reply["body"] for reply in await client.hear_all(count)] == [f"body {label}" for label in range(count)]


@live
async def test_posts_with_different_priorities_keep_them(house: House) -> None:
    client, count = await house.client(), GATHERED_RUN_MIN
    client.say(*[post(f"body {label}", label=label, priority=label % 2) for label in range(count)])
    assert [sizes(command) for command in client.commands] == [(Publish, count)]
    assert await client.hear_all(count) == [notice(label, "sync") for label in range(count)]
    client.say(*[fetch(label=label) for label in range(count)])
    urgent, others = range(1, count, 2), range(0, count, 2)
    assert [reply["body"] for reply in await client.hear_all(count)] == [
        f"body {each}" for each in (*urgent, *others)
    ]


@live
async def test_posts_to_different_queues_and_very_many_are_several_commands(house: House) -> None:
    client = await house.client()
    client.say(post(), post(queue="none", label=7), post(), *[post() for _ in range(GATHERED_MAX)])
    assert [sizes(command) for command in client.commands] == [(PublishRun, GATHERED_MAX), (Publish, 1), (Publish, 2)]
    replies = await client.hear_all(GATHERED_MAX + 3)
    assert replies.count({"type": "error", "label": 7, "code": "NoObject", "key": "none"}) == 1
    assert replies.count(notice(0, "sync")) == GATHERED_MAX + 2


@live
async def test_a_post_without_notices_is_still_told_that_the_queue_is_not_there(house: House) -> None:
    client = await house.client()
    client.say(post(queue="none", notify=[], label=3))
    assert await client.hear() == {"type": "error", "label": 3, "code": "NoObject", "key": "none"}


@live
async def test_fetches_that_come_together_get_a_message_each_in_their_order(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch(label=label) for label in range(5)])
    assert [command.count for command in client.commands if type(command) is Fetch] == [5]
    replies = await client.hear_all(5)
    assert [(reply["label"], reply["body"]) for reply in replies[:3]] == [(0, "a"), (1, "b"), (2, "c")]
    assert replies[3:] == [{"type": "nomessage", "label": 3}, {"type": "nomessage", "label": 4}]


@live
async def test_those_of_them_that_wait_get_what_comes_later(house: House) -> None:
    await house.fill("a")
    client = await house.client()
    client.say(*[fetch(label=label, block_timeout=10) for label in range(3)])
    assert (await client.hear())["body"] == "a"
    await until(lambda: house.loop.waiting("work") == 2)
    await house.fill("b", "c")
    assert [reply["body"] for reply in await client.hear_all(2)] == ["b", "c"]


@live
async def test_fetches_of_large_messages_are_all_answered(house: House) -> None:
    large = b"x" * BODY_BYTES_MAX
    count = 2 * FETCH_BYTES_MAX // BODY_BYTES_MAX + 1
    await house.fill(*[large] * count)
    client = await house.client()
    client.say(*[fetch(label=label) for label in range(count)])
    assert [reply["label"] for reply in await client.hear_all(count)] == list(range(count))


@live
async def test_a_client_that_does_not_read_gets_no_more_of_them_until_it_does(house: House) -> None:
    each = FETCH_BYTES_MAX // BODY_BYTES_MAX
    await house.fill(*[b"x" * BODY_BYTES_MAX] * (2 * each))
    client = await house.client()
    client.choked = True
    client.say(*[fetch(label=label) for label in range(2 * each)])
    await client.hear_all(each)
    await house.settled()
    assert client.unheard == 0
    client.choked = False
    client.settle()
    assert [reply["label"] for reply in await client.hear_all(each)] == list(range(each, 2 * each))


@live
async def test_finishes_that_come_together_are_one_command(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch() for _ in range(3)])
    messages = await client.hear_all(3)
    client.commands.clear()
    client.say(*[finish(message, label=number) for number, message in enumerate(messages)])
    assert [type(command) for command in client.commands] == [FinishMany]
    assert await client.hear_all(3) == [notice(label, "finish") for label in range(3)]


@live
async def test_requests_that_nothing_answers_soon_are_acknowledged(house: House) -> None:
    """Else a client whose TCP waits for that sends its next request 40 ms later."""
    await house.fill("a", "b")
    client = await house.client()
    client.say(fetch(), fetch())
    first, second = await client.hear_all(2)
    client.say(finish(first, label=1))
    assert await client.hear() == notice(1, "finish")
    assert client.acknowledged == 0
    client.say(finish(second))
    assert client.acknowledged == 1
    client.say(fetch(block_timeout=30))
    assert client.acknowledged == 1
    client.say(fetch(block_timeout=30))
    assert client.acknowledged == 2


@live
async def test_a_finish_that_wants_its_answer_at_another_stage_takes_no_other_with_it(house: House) -> None:
    await house.fill("a", "b", "c")
    client = await house.client()
    client.say(*[fetch() for _ in range(3)])
    messages = await client.hear_all(3)
    client.say(finish(messages[0], label=1), finish(messages[1], label=2, response="ready"), finish(messages[2]))
    assert await client.hear_all(2) == [notice(2, "finish"), notice(1, "finish")]
    await house.settled()
    assert (await house.leased(), client.unheard) == (0, 0)


# ── Pops ──────────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_post_goes_straight_to_a_pop_that_waits_and_ready_is_answered_by_finish(house: House) -> None:
    consumer, producer = await house.client(), await house.client()
    for number, notify in enumerate((["ready"], ["finish"], ["ready", "finish", "assign"], ["drop"], [])):
        consumer.say({"type": "pop", "queue": "work", "timeout": 10, "label": number})
        await until(lambda: house.loop.waiting("work") > 0)
        producer.say(post(f"{number}", notify=notify, label=number))
        told = {"type": "message", "label": number, "shard": 0, "sequence": 0, "body": f"{number}", "finished": True}
        assert await consumer.hear() == told
        if "ready" in notify or "finish" in notify:
            assert await producer.hear() == notice(number, "finish")
    await house.settled()
    assert producer.unheard == 0
    assert (await ask(house.loop, DescribeQueue("work"))).last_sequence == 0, "nothing was stored"


@live
async def test_a_sender_that_asks_for_sync_has_its_message_stored_also_if_a_pop_waits(house: House) -> None:
    consumer, producer = await house.client(), await house.client()
    for number, notify in enumerate((["sync"], ["write"], ["ready", "sync", "finish"]), start=1):
        consumer.say({"type": "pop", "queue": "work", "timeout": 10})
        await until(lambda: house.loop.waiting("work") > 0)
        producer.say(post(notify=notify, label=number))
        assert (await consumer.hear())["sequence"] == number
        assert {reply["notice"] for reply in await producer.hear_all(len(notify))} == set(notify)


@live
async def test_what_a_client_asked_for_before_it_posts_goes_on_before_the_post(house: House) -> None:
    client = await house.client()
    for notify in ([], ["sync"], ["ready"]):
        client.commands.clear()
        client.say(fetch(), post(notify=notify), fetch())
        assert [type(command) for command in client.commands] == [Fetch, Publish, Fetch]


# ── Queues ────────────────────────────────────────────────────────────────────────────────────────────────────


@live
async def test_a_queue_is_made_with_its_settings(house: House) -> None:
    client = await house.client()
    wanted = {"retries": 3, "visibility_timeout": 0.5, "retention_timeout": 60, "message_delay": 1}
    client.say({"type": "create", "queue": "new", "label": 1, "message_deduplication": True} | wanted)
    assert await client.hear() == notice(1, "ready")
    made = (await ask(house.loop, DescribeQueue("new"))).settings
    assert (made.retries, made.visibility_ns, made.retention_ns) == (3, SECOND_NS // 2, 60 * SECOND_NS)
    assert (made.delay_ns, made.deduplication) == (SECOND_NS, True)
    client.say({"type": "create", "queue": "new", "label": 2})
    assert await client.hear() == {"type": "error", "label": 2, "code": "ObjectAlreadyExists", "key": "new"}


@bounded(create_queues=False)
async def test_no_queue_is_made_where_that_is_not_allowed(house: House) -> None:
    client = await house.client()
    client.say({"type": "create", "queue": "new", "label": 2})
    assert await client.hear() == {"type": "error", "label": 2, "code": "PermissionDenied", "key": "new"}


# ── Frames that are wrong ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frame", "label", "key"),
    [
        ("", 0, "truncated"),
        ("{", 0, "truncated"),
        ("nonsense", 0, "malformed"),
        ("[]", 0, "Expected `object`"),
        ('{"label":7}', 7, "missing required field `type`"),
        ('{"type":"pust","label":7}', 7, "Invalid value 'pust' - at `$.type`"),
        ('{"type":"post","queue":"work","label":7}', 7, "missing required field `message`"),
        ('{"type":"post","queue":"work","message":7,"label":7}', 7, "$.message"),
        ('{"type":"post","queue":"work","message":[256],"label":7}', 7, "$.message"),
        ('{"type":"post","queue":"work","message":"","priority":-32769,"label":7}', 7, "$.priority"),
        ('{"type":"post","queue":"work","message":"","priority":4294967296}', 0, "$.priority"),
        ('{"type":"post","queue":"work","message":"","notify":["soon"],"label":7}', 7, "$.notify"),
        ('{"type":"post","queue":"work","message":"","label":18446744073709551616}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"","label":-1}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"","label":"x"}', 0, "$.label"),
        ('{"type":"post","queue":"work","message":"\\ud800","label":7}', 0, "surrogate"),
        ('{"type":"fetch","queue":"work","block_timeout":-1,"label":7}', 7, "$.block_timeout"),
        ('{"type":"fetch","queue":"work","block_timeout":86401,"label":7}', 7, "$.block_timeout"),
        ('{"type":"fetch","queue":"work","work_timeout":"long","label":7}', 7, "$.work_timeout"),
        ('{"type":"fetch","queue":"work","sync":"finish","label":7}', 7, "$.sync"),
        ('{"type":"finish","queue":"work","label":7}', 7, "missing required field `sequence`"),
        ('{"type":"create","queue":"new","retry":3,"label":7}', 7, "unknown field `retry`"),
        ('{"type":"create","queue":"","label":7}', 7, "1 to 250 bytes"),
        ('{"type":"create","queue":"a\\u0000b","label":7}', 7, "must not have control characters"),
        ('{"type":"create","queue":"%2F","label":7}', 7, None),
    ],
)
def test_a_frame_that_cannot_be_meant_is_answered_and_the_session_goes_on(
    frame: str, label: int, key: str | None
) -> None:
    @live
    async def story(house: House) -> None:
        client = await house.client()
        client.talk.received(frame.encode())
        client.settle()
        reply = await client.hear()
        if key is None:
            assert reply == notice(label, "ready")
        else:
            assert (reply["type"], reply["code"], reply["label"]) == ("error", "BadRequest", label)
            assert key in reply["key"]
        client.say(post(label=1))
        assert await client.hear() == notice(1, "sync")

    story()


@live
async def test_a_message_that_is_too_long_is_refused(house: House) -> None:
    client = await house.client()
    client.say(post("x" * BODY_BYTES_MAX, label=1), post("x" * (BODY_BYTES_MAX + 1), label=2))
    refused = {
        "type": "error",
        "label": 2,
        "code": "BadRequest",
        "key": f"the message is over {BODY_BYTES_MAX} bytes",
    }
    heard = await client.hear_all(2)
    assert sorted(heard, key=lambda reply: reply["label"]) == [notice(1, "sync"), refused]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.binary(max_size=60), st.booleans()), max_size=20))
def test_whatever_comes_is_answered_and_raises_nothing(frames: list[tuple[bytes, bool]]) -> None:
    @live
    async def story(house: House) -> None:
        client = await house.client()
        for frame, binary in frames:
            client.talk.received(frame, binary=binary)
            client.settle()
        assert client.unheard >= len(frames) - sum(binary for _, binary in frames)
        client.lose()

    story()
