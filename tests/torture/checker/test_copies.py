"""Hand-made histories about content that may be stored once."""

from __future__ import annotations

from penstock.torture.history import Finished, Finishing, Sent, Stored, Taken
from tests.torture.checker.test_messages import LEASE, broken


def sent(at: float, promise: str, name: str = "p.1") -> Sent:
    return Sent(at, name, "p", "work", promise=promise)


def stored(at: float, message_id: str, new: bool = True, name: str = "p.1") -> Stored:
    return Stored(at, name, "p", message_id, new)


def taken(at: float, message_id: str) -> Taken:
    return Taken(at, "p.1", "c", "work", at - 0.01, LEASE, message_id)


def test_a_queue_with_deduplication_may_not_store_a_content_twice() -> None:
    first = (sent(0, "dedup"), stored(0.1, "A"))
    assert broken(*first, sent(1, "dedup"), stored(1.1, "B")) == ["one-per-dedup-key"]
    assert not broken(*first, sent(1, "dedup"), stored(1.1, "A", new=False))


def test_a_queue_with_deduplication_may_not_deliver_a_second_one() -> None:
    assert broken(sent(0, "dedup"), stored(0.1, "A"), taken(1, "B")) == ["one-per-dedup-key"]


def test_a_content_may_be_stored_again_when_its_finish_was_asked_for() -> None:
    first = (sent(0, "dedup"), stored(0.1, "A"), taken(1, "A"), Finishing(2, "p.1", "c", "A"))
    assert not broken(*first, sent(3, "dedup"), stored(3.1, "B"), taken(4, "B"))


def test_an_answer_that_names_a_message_whose_finish_is_on_the_way_proves_nothing() -> None:
    first = (sent(0, "dedup"), stored(0.1, "A"), sent(1, "dedup"), taken(1.1, "A"), Finishing(1.2, "p.1", "c", "A"))
    assert not broken(*first, stored(1.3, "A", new=False), sent(2, "dedup"), stored(2.1, "B"))


def test_each_of_several_messages_with_one_content_is_followed_by_its_id() -> None:
    ended = (Finishing(2, "p.1", "c", "A"), Finished(2.1, "p.1", "c", "A"))
    first = (sent(0, "dedup"), stored(0.1, "A"), taken(1, "A"), *ended)
    assert broken(*first, sent(3, "dedup"), stored(3.1, "B"), closed=True) == ["nothing-lost"]
    assert broken(*first, taken(9, "A")) == ["finished-stays-finished"]


def test_an_idempotency_key_may_not_publish_twice() -> None:
    first = (sent(0, "idempotency"), stored(0.1, "A"))
    assert broken(*first, sent(1, "idempotency"), stored(1.1, "B")) == ["one-per-idempotency-key"]
    assert broken(*first, taken(1, "B")) == ["one-per-idempotency-key"]
    assert not broken(*first, sent(1, "idempotency"), stored(1.1, "A"), taken(2, "A"))


def test_unchanged_content_may_not_be_queued_again() -> None:
    first = (sent(0, "change"), stored(0.1, "A"))
    assert broken(*first, sent(1, "change"), stored(1.1, "B"))[0] == "changed-only"
    assert not broken(*first, sent(1, "change"), stored(1.1, "B", new=False), taken(2, "A"))


def test_unchanged_content_may_not_be_delivered() -> None:
    again = (sent(0, "change"), stored(0.1, "A"), sent(1, "change"), stored(1.1, "B", new=False))
    assert broken(*again, taken(2, "B")) == ["changed-only"]


def test_changed_content_may_not_be_answered_as_unchanged() -> None:
    assert broken(sent(0, "change"), stored(0.1, "A", new=False)) == ["changed-only"]


def test_content_in_doubt_that_is_sent_again_may_be_either() -> None:
    assert not broken(sent(0, "change"), sent(1, "change"), stored(1.1, "B", new=False))
    assert not broken(sent(0, "change"), sent(1, "change"), stored(1.1, "B"))
