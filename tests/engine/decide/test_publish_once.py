"""Publishes with an idempotency key: stored once, answered in the same way, forgotten by events."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import answered
from penstock.engine.answered import AnsweredRequest, AnsweredRequests
from penstock.errors import Reason
from penstock.limits import IDEMPOTENCY_FORGOTTEN_AT_ONCE, SECOND_NS
from penstock.model.answers import Answer, Done, Published, Refused, Repeated
from penstock.model.commands import NewMessage, PublishOnce, PublishTopics
from penstock.model.courier_commands import ClaimKey, ReleaseKey
from penstock.model.events import Answered
from penstock.model.settings import QueueSettings
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of

LIFETIME_NS = 600 * SECOND_NS


def once(rig: Rig, key: str, *bodies: str, queue: str = "work", keys_max: int = 100, topics: str = "") -> Answer:
    messages = [NewMessage(body.encode(), topics=tuple(topics.split())) for body in bodies]
    publish = PublishTopics(messages, QueueSettings(), "" if topics else queue)
    return rig.do(PublishOnce(publish, key.encode(), digest_of(queue, *bodies), LIFETIME_NS, keys_max))


def digest_of(queue: str, *bodies: str) -> bytes:
    return sha256(repr((queue, bodies)).encode()).digest()


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.create("work")
    return rig


def keys_of(rig: Rig) -> list[str]:
    return [key.decode() for key in rig.engine.answered.by_key]


def test_a_repeated_request_stores_nothing_and_gets_the_same_answer(rig: Rig) -> None:
    first = once(rig, "k", "a", "b")
    offset = rig.log.appended
    assert once(rig, "k", "a", "b") == Repeated(first)  # type: ignore[arg-type]
    assert rig.log.appended == offset
    assert rig.bodies("work") == [b"a", b"b"]


def test_another_request_with_the_same_key_is_refused(rig: Rig) -> None:
    once(rig, "k", "a")
    assert once(rig, "k", "b") == Refused(Reason.KEY_REUSED)
    assert rig.bodies("work") == [b"a"]


def test_a_claimed_key_is_for_one_request(rig: Rig) -> None:
    assert rig.do(ClaimKey(b"k", digest_of("work", "a"), LIFETIME_NS, 100)) == Done()
    assert once(rig, "k", "b") == Refused(Reason.KEY_REUSED)
    assert rig.do(ClaimKey(b"k", digest_of("work", "b"), LIFETIME_NS, 100)) == Refused(Reason.KEY_REUSED)
    first = once(rig, "k", "a")
    assert isinstance(first, list), "a claim is no answer"
    assert once(rig, "k", "a") == Repeated(first)
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_a_claim_can_be_taken_back_but_not_what_was_published(rig: Rig) -> None:
    rig.do(ClaimKey(b"k", digest_of("work", "a"), LIFETIME_NS, 100))
    rig.do(ReleaseKey(b"k", digest_of("work", "b")))
    assert once(rig, "k", "b") == Refused(Reason.KEY_REUSED), "it was another request that was refused"
    rig.do(ReleaseKey(b"k", digest_of("work", "a")))
    assert isinstance(once(rig, "k", "b"), list)
    rig.do(ReleaseKey(b"k", digest_of("work", "b")))
    assert once(rig, "k", "a") == Refused(Reason.KEY_REUSED)


def test_what_was_refused_is_not_remembered(rig: Rig) -> None:
    assert once(rig, "k", "a", queue="late") == Refused(Reason.NO_QUEUE, "late")
    rig.create("late")
    assert isinstance(once(rig, "k", "a", queue="late"), list)
    assert rig.bodies("late") == [b"a"]


def test_the_messages_and_the_key_are_one_decision(rig: Rig) -> None:
    once(rig, "k", "a")
    assert isinstance(rig.events[-1], Answered)
    assert rig.events[-1].time == rig.events[-2].time


def test_a_key_is_free_again_when_its_time_is_over(rig: Rig) -> None:
    once(rig, "k", "a")
    rig.wait(599)
    assert isinstance(once(rig, "k", "a"), Repeated)
    rig.wait(2)
    assert isinstance(once(rig, "k", "b"), list)
    assert keys_of(rig) == ["k"]
    assert rig.bodies("work") == [b"a", b"b"]


def test_the_oldest_key_is_forgotten_for_one_more(rig: Rig) -> None:
    for key in "abcd":
        once(rig, key, key, keys_max=3)
    assert keys_of(rig) == ["b", "c", "d"]
    once(rig, "e", "e", keys_max=1)
    assert keys_of(rig) == ["e"]


def test_keys_without_room_for_their_answers_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    once(rig, "a", "1")
    size = rig.engine.answered.bytes
    monkeypatch.setattr(answered, "IDEMPOTENCY_BYTES_MAX", 2 * size)
    for key in "bc":
        once(rig, key, key)
    assert keys_of(rig) == ["b", "c"]
    assert rig.engine.answered.bytes == 2 * size


def test_a_list_to_one_queue_takes_no_more_memory_than_one_message(rig: Rig) -> None:
    once(rig, "k", *[str(number) for number in range(1000)])
    assert rig.engine.answered.bytes < 100
    answer = once(rig, "k", *[str(number) for number in range(1000)])
    assert isinstance(answer, Repeated)
    assert [each.sequence for each in answer.published] == list(range(1, 1001))


def test_messages_of_several_queues_are_answered_as_they_were(rig: Rig) -> None:
    rig.create("mail", topics=("fruit.*",))
    first = once(rig, "k", "a", "b", topics="fruit.sweet food")
    assert isinstance(first, list)
    assert isinstance(first[0], Published)
    assert first[0].queues == ("fruit", "food")
    assert first[0].channels == ("mail",)
    assert once(rig, "k", "a", "b", topics="fruit.sweet food") == Repeated(first)


def test_a_replay_and_a_snapshot_know_the_same_keys_whatever_the_settings_are(rig: Rig) -> None:
    for number in range(30):
        once(rig, f"key {number}", "x", keys_max=20 if number < 20 else 5)
        rig.wait(30)
    assert keys_of(rig) == [f"key {number}" for number in range(25, 30)]
    assert state_of(rig.replayed()) == state_of(rig.restored()) == state_of(rig.engine)
    assert rig.restored().answered.bytes == rig.engine.answered.bytes


def test_many_keys_that_are_too_old_are_forgotten_some_at_a_time() -> None:
    requests = AnsweredRequests()
    for number in range(3 * IDEMPOTENCY_FORGOTTEN_AT_ONCE):
        requests.add(b"%d" % number, AnsweredRequest(number, b"", b""))
    assert requests.surplus(1, until=10**6, keys_max=10**6) == IDEMPOTENCY_FORGOTTEN_AT_ONCE
    assert requests.surplus(1, until=9, keys_max=10**6) == 10
    assert requests.surplus(1, until=-1, keys_max=1) == 3 * IDEMPOTENCY_FORGOTTEN_AT_ONCE


@effort(60)
@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 3), st.sampled_from([0, 250, 700])), max_size=20))
def test_a_key_is_known_for_its_time_and_no_longer(requests: list[tuple[str, int, int]]) -> None:
    rig = Rig()
    rig.create("work")
    known: dict[str, tuple[int, int]] = {}  # When it was answered, and how many messages it had.
    for key, count, seconds in requests:
        rig.wait(seconds)
        answered_at, before = known.get(key, (-LIFETIME_NS, 0))
        now = rig.now()
        answer = once(rig, key, *["x"] * count)
        if now - answered_at >= LIFETIME_NS:
            assert isinstance(answer, list)
            known[key] = (now, count)
        else:
            assert isinstance(answer, Repeated if before == count else Refused)
