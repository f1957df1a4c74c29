"""Looking at what queues hold: everything that is meant, in order, in bounded turns, and nothing is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.errors import Reason
from penstock.limits import NEVER_NS, SEARCH_ROWS_MAX, SECOND_NS
from penstock.model.answers import Candidates, Found, Held, Refused
from penstock.model.commands import (
    Criteria,
    Finish,
    ListCandidates,
    ListHeld,
    ListScheduled,
    LookUp,
    NewMessage,
    Search,
)
from penstock.model.events import QueuedRun
from penstock.model.settings import RedrivePolicy
from tests.support.engine_rig import START_NS, Rig, state_of


def turns(rig: Rig, limit: int, **criteria: Any) -> Iterator[Found]:
    after: tuple[int, int] | None = (0, 0)
    while after is not None:
        found = rig.do(Search(Criteria(**criteria), after, limit))
        assert isinstance(found, Found), found
        assert len(found.messages) <= limit
        yield found
        after = found.after


def search(rig: Rig, limit: int = 10_000, **criteria: Any) -> list[Held]:
    return [message for found in turns(rig, limit, **criteria) for message in found.messages]


def places(messages: list[Held]) -> list[tuple[int, int]]:
    return [(message.queue, message.sequence) for message in messages]


@pytest.fixture
def rig() -> Rig:
    """Two queues, three topics, messages in every state."""
    rig = Rig()
    rig.create("one", keep="all")
    rig.create("two")
    for number in range(6):
        topics = [("fruit.sweet",), ("fruit.sour", "food"), ()][number % 3]
        about = ["", "order"][number % 2]
        for name in ("one", "two"):
            rig.publish(name, NewMessage(b"%d" % number, topics=topics, object=about, delay_ns=0))
        rig.clock += SECOND_NS
    rig.publish("two", NewMessage(b"later", delay_ns=60 * SECOND_NS, topics=("fruit.late",)))
    (first,) = rig.fetch("one", 1)
    rig.finish(first)
    (second,) = rig.fetch("two", 1, consumer="me")
    rig.release(rig.fetch("two", 1)[0])
    assert second.sequence == 1
    return rig


def test_everything_is_found_in_the_order_of_its_places(rig: Rig) -> None:
    every = [(1, each) for each in range(1, 7)] + [(2, each) for each in range(1, 8)]
    for limit in (1, 2, 5, 100):
        assert places(search(rig, limit)) == every
    assert places(search(rig, queue="two")) == every[6:]


def test_a_search_changes_nothing(rig: Rig) -> None:
    before, events = state_of(rig.engine), len(rig.events)
    search(rig, topic="fruit.*")
    rig.do(ListScheduled())
    assert state_of(rig.engine) == before
    assert len(rig.events) == events


@pytest.mark.parametrize(
    ("criteria", "expected"),
    [
        ({"topic": "fruit.sweet"}, [(1, 1), (1, 4), (2, 1), (2, 4)]),
        ({"topic": "fruit.*", "queue": "two"}, [(2, 1), (2, 2), (2, 4), (2, 5), (2, 7)]),
        ({"topic": "food"}, [(1, 2), (1, 5), (2, 2), (2, 5)]),
        ({"topic": "none.*"}, []),
        ({"object": "order", "queue": "one"}, [(1, 2), (1, 4), (1, 6)]),
        ({"object": "unheard of"}, []),
        ({"topic": "fruit.*", "object": "order"}, [(1, 2), (1, 4), (2, 2), (2, 4)]),
        ({"states": frozenset(["kept"])}, [(1, 1)]),
        ({"states": frozenset(["leased"])}, [(2, 1)]),
        ({"states": frozenset(["F"])}, [(2, 1)]),
        ({"states": frozenset(["delayed"])}, [(2, 7)]),
        ({"states": frozenset(["R"])}, [(2, 2)]),
        ({"states": frozenset(["R", "kept"])}, [(1, 1), (2, 2)]),
        ({"states": frozenset(["Q"]), "queue": "two"}, [(2, 3), (2, 4), (2, 5), (2, 6), (2, 7)]),
        ({"since": START_NS + 2 * SECOND_NS, "until": START_NS + 3 * SECOND_NS}, [(1, 3), (2, 3)]),
        ({"key": b"k"}, []),
        ({"key": b""}, [(1, each) for each in range(1, 7)] + [(2, each) for each in range(1, 8)]),
    ],
)
def test_criteria_choose(rig: Rig, criteria: dict[str, Any], expected: list[tuple[int, int]]) -> None:
    assert places(search(rig, **criteria)) == expected
    assert places(search(rig, limit=1, **criteria)) == expected


def test_what_is_found_is_as_the_queue_holds_it(rig: Rig) -> None:
    (leased,) = search(rig, states=frozenset(["leased"]))
    assert (leased.consumer, leased.receives, leased.topics, leased.id) == ("me", 1, "fruit.sweet", (2, 1))
    assert rig.log.read(leased.position, leased.body_bytes) == b"0"


def test_an_unknown_queue_is_refused(rig: Rig) -> None:
    assert rig.do(Search(Criteria(queue="none"))) == Refused(Reason.NO_QUEUE, "none")
    assert rig.do(ListScheduled("none")) == Refused(Reason.NO_QUEUE, "none")


def test_pages_stay_right_while_messages_come_and_go(rig: Rig) -> None:
    pages = turns(rig, 2, queue="two", topic="fruit.*")
    assert places(next(pages).messages) == [(2, 1), (2, 2)]
    (fourth,) = [message for message in search(rig, queue="two") if message.sequence == 4]
    rig.do(Finish(fourth.queue, fourth.sequence))
    rig.publish("two", NewMessage(b"new", topics=("fruit.new",)))
    assert [place for page in pages for place in places(page.messages)] == [(2, 5), (2, 7), (2, 8)]


def test_a_turn_is_bounded_and_says_where_to_go_on() -> None:
    rig = Rig()
    rig.create("deep")
    for start in range(0, 40_000, 1000):
        rig.publish("deep", *[NewMessage(b"", object="rare" if start + n == 39_123 else "") for n in range(1000)])
    found = list(turns(rig, 10, object="rare"))
    assert 40_000 // SEARCH_ROWS_MAX <= len(found) <= 40_000 // SEARCH_ROWS_MAX + 2
    assert places([message for turn in found for message in turn.messages]) == [(1, 39_124)]


def test_a_topic_is_looked_up_and_not_searched_for() -> None:
    rig = Rig()
    rig.create("deep")
    for start in range(0, 40_000, 1000):
        topics = (f"a.{start}",) if start < 39_000 else ("rare.one",)
        rig.publish("deep", *[NewMessage(b"", topics=topics) for _ in range(1000)])
    first = next(turns(rig, 10, topic="rare.*"))
    assert places(first.messages) == [(1, 39_001 + index) for index in range(10)]


def test_very_many_topics_are_found_all_the_same() -> None:
    rig = Rig()
    rig.create("wide")
    rig.publish("wide", *[NewMessage(b"", topics=(f"a.{number}", "b")) for number in range(1500)])
    rig.publish("wide", NewMessage(b""))
    assert places(search(rig, topic="a.*")) == [(1, each) for each in range(1, 1501)]


@pytest.mark.parametrize("made", ["replayed", "restored"])
def test_the_index_is_there_after_a_restart(rig: Rig, made: str) -> None:
    expected = places(search(rig, topic="fruit.*"))
    rig.engine = getattr(rig, made)()
    assert places(search(rig, topic="fruit.*")) == expected


def test_a_dead_letter_keeps_its_topics() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", retries=1, redrive_policy=RedrivePolicy(5, "dead"))
    rig.publish("work", NewMessage(b"", topics=("fruit.sweet",), object="order"))
    rig.release(rig.fetch("work")[0])
    (found,) = search(rig, topic="fruit.*", object="order")
    assert (found.queue, found.sequence, found.id) == (1, 1, (2, 1))


@pytest.mark.parametrize("count", [1, 3, 40])
def test_copies_are_found_by_their_topics_too(count: int) -> None:
    """In each queue, one by one and in runs."""
    rig = Rig()
    rig.create("one")
    rig.create("two")
    receipts = rig.publish("one", *[NewMessage(b"", topics=("fruit.sweet",), object="o") for _ in range(count)])
    now, number = rig.now(), rig.engine.names.known("fruit.sweet")
    about = rig.engine.names.known("o")
    sequences = [receipt.sequence for receipt in receipts]
    facts = ([now] * count, [now] * count, [NEVER_NS] * count, [0] * count, [0] * count, [0] * count)
    names = ([about] * count, [number] * count)
    run = QueuedRun(now, [2] * count, sequences, *facts, *names, [1] * count, sequences)
    rig.engine.evolve(run, rig.log.append(run))
    assert places(search(rig, topic="fruit.*", object="o")) == [(q, each) for q in (1, 2) for each in sequences]
    assert places(search(rig, topic="fruit.*", queue="two")) == [(2, each) for each in sequences]
    rig.engine = rig.restored()
    assert places(search(rig, topic="fruit.*", queue="two")) == [(2, each) for each in sequences]


def scheduled(rig: Rig, limit: int, queue: str = "") -> list[Held]:
    """All pages, as the shell makes them."""
    pages: list[Held] = []
    after = (0, 0, 0)
    while True:
        page: list[Held] = []
        place: tuple[int, int] | None = (0, 0)
        while place is not None:
            found = rig.do(ListScheduled(queue, after, place=place, limit=limit))
            assert isinstance(found, Found)
            page, place = page + found.messages, found.after
        page = sorted(page, key=lambda each: (each.visible_at, each.queue, each.sequence))[:limit]
        if not page:
            return pages
        pages += page
        after = (page[-1].visible_at, page[-1].queue, page[-1].sequence)


@pytest.mark.parametrize("count", [50, 6000])
def test_what_is_delayed_is_listed_by_time(count: int) -> None:
    rig = Rig()
    rig.create("a")
    rig.create("b")
    rig.publish("a", b"ready", b"ready")
    expected = []
    for number in range(count):
        delay = (number * 7919) % 97 * SECOND_NS + SECOND_NS
        (receipt,) = rig.publish("ab"[number % 2], NewMessage(b"", delay_ns=delay, expires_ns=NEVER_NS))
        expected.append((rig.engine.time + delay, receipt.queue, receipt.sequence))
    listed = scheduled(rig, limit=count // 3)
    assert [(each.visible_at, each.queue, each.sequence) for each in listed] == sorted(expected)
    only_b = scheduled(rig, 1000, "b")
    assert [(each.visible_at, each.queue, each.sequence) for each in only_b] == sorted(
        each for each in expected if each[1] == 2
    )


def test_pages_go_on_in_the_middle_of_one_moment() -> None:
    rig = Rig()
    rig.create("a")
    rig.create("b")
    for name in ("b", "a"):
        rig.publish(name, *[NewMessage(b"", delay_ns=60 * SECOND_NS) for _ in range(2000)])
    rig.publish("a", NewMessage(b"", delay_ns=30 * SECOND_NS))
    listed = scheduled(rig, limit=70)
    assert len(set(places(listed))) == len(listed) == 4001
    assert [(each.visible_at, each.queue, each.sequence) for each in listed] == sorted(
        (each.visible_at, each.queue, each.sequence) for each in listed
    )


def test_a_dead_letter_that_a_consumer_still_has_is_not_scheduled() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("work", b"")
    rig.fetch("work", consumer="me")
    assert scheduled(rig, 10) == []


def test_candidates_tell_where_to_read_and_their_places_who_they_are(rig: Rig) -> None:
    found = rig.do(ListCandidates(Criteria(topic="fruit.sour", key=b"")))
    assert isinstance(found, Candidates)
    listed = list(zip(found.queues, found.sequences, strict=True))
    assert (listed, found.after) == ([(1, 2), (1, 5), (2, 2), (2, 5)], None)
    read = [rig.log.read(*where) for where in zip(found.positions, found.body_bytes, strict=True)]
    assert (read, found.key_bytes) == ([b"1", b"4", b"1", b"4"], [0] * 4)
    there = rig.do(ListHeld([*listed, (1, 99), (9, 1)]))
    assert isinstance(there, Found)
    assert places(there.messages) == listed
    assert rig.do(ListCandidates(Criteria(queue="none"))) == Refused(Reason.NO_QUEUE, "none")


def test_messages_are_looked_up_by_their_ids(rig: Rig) -> None:
    found = rig.do(LookUp(2, 1))
    assert isinstance(found, Found)
    assert places(found.messages) == [(2, 1)]
    rig.do(Finish(2, 1))
    assert rig.do(LookUp(2, 1)) == Found([], None)
    for never in (LookUp(2, 99), LookUp(9, 1)):
        assert rig.do(never) == Refused(Reason.NO_MESSAGE)


def test_a_search_by_ids_finds_messages_wherever_they_were_moved(rig: Rig) -> None:
    rig.create("dead")
    rig.create("work", redrive_policy=RedrivePolicy(1, "dead"))
    rig.publish("work", b"failed")
    rig.fetch("work", consumer="me")
    (moved,) = search(rig, queue="dead")
    ids = frozenset([moved.id, (2, 1), (2, 99), (77, 1)])
    assert places(search(rig, ids=ids)) == [(2, 1), (moved.queue, moved.sequence)]
    assert places(search(rig, ids=ids, queue="dead")) == [(moved.queue, moved.sequence)]
    assert places(search(rig, ids=ids, object="order")) == []
    assert search(rig, ids=frozenset()) == []
    everything = search(rig, queue="one")
    chosen = frozenset(place for place in places(everything) if place[1] % 2)
    assert places(search(rig, limit=1, ids=chosen)) == sorted(chosen)
