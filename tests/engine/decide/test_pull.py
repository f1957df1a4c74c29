"""What receivers pull, and the results they send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.decide import pull as pull_module
from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import FETCH_BYTES_MAX, RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Answer, Pulled, Refused, StoredResult, WrongResult
from penstock.model.commands import (
    FROM_NEWEST,
    FROM_NEXT,
    AwaitResult,
    Carry,
    CreateQueue,
    Draw,
    NewMessage,
    Publish,
    PublishRun,
    Pull,
    UpdateQueue,
)
from penstock.model.events import (
    Delivered,
    DeliveredRun,
    Event,
    HandedToReceiver,
    HandedToReceiverRun,
    ReceiverMoved,
    ResultStored,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.storage.log.batch import HEADER_BYTES, read_header
from penstock.storage.log.decode import events_of
from penstock.storage.log.encode import Batch
from tests.support.effort import effort
from tests.support.engine_rig import Rig, state_of

KEEPS = QueueSettings(keep="all")
QUEUES = ("a", "b")


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.do(CreateQueue("q", KEEPS))
    return made


def pulled(rig: Rig, receiver: str = "r", queue: str = "q", **options: Any) -> list[int]:
    answer = pull(rig, receiver, queue, **options)
    return [sequence for drawn in answer.drawn for sequence in drawn.sequences]


def pull(rig: Rig, receiver: str = "r", queue: str = "q", **options: Any) -> Pulled:
    options = {"most": 100} | options
    answer = rig.do(Pull(receiver, [Draw(queue, **options)]))
    assert isinstance(answer, Pulled), answer
    return answer


def send_result(rig: Rig, sequence: int, result: bytes = b"done", receiver: str = "r", queue: str = "q") -> Answer:
    return rig.do(Pull(receiver, results=[(queue, sequence, result)]))


def test_each_receiver_has_every_message_once_and_in_order(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig, "one", most=2) == [1, 2]
    assert pulled(rig, "other") == [1, 2, 3]
    assert pulled(rig, "one") == [3]
    assert pulled(rig, "one") == pulled(rig, "other") == []


def test_priority_does_not_change_the_order_for_receivers(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"low"), NewMessage(b"high", priority=9))
    assert pulled(rig) == [1, 2]
    assert rig.bodies("q") == [b"high", b"low"]


def test_workers_and_receivers_do_not_notice_each_other(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    [first] = rig.fetch("q")
    rig.finish(first)
    [handed_over] = rig.fetch("q", confirm=False)
    assert (handed_over.sequence, rig.describe("q").kept) == (2, 2)
    assert pulled(rig) == [1, 2, 3]
    assert rig.bodies("q") == [b"3"]


def test_what_workers_are_done_with_cannot_be_finished_or_released_again(rig: Rig) -> None:
    rig.publish("q", b"1")
    [delivery] = rig.fetch("q")
    rig.finish(delivery)
    assert rig.finish(delivery) == rig.release(delivery) == Refused(Reason.NO_MESSAGE)
    seen = rig.describe("q")
    assert (seen.messages, seen.ready, seen.leased, seen.kept) == (1, 0, 0, 1)


def test_a_dropped_message_stays_for_receivers(rig: Rig) -> None:
    rig.do(UpdateQueue("q", QueueSettings(keep="all", retries=1, visibility_ns=SECOND_NS)))
    rig.publish("q", b"1")
    rig.fetch("q")
    rig.wait(2)
    assert rig.describe("q").kept == 1
    assert pulled(rig) == [1]


def test_kept_messages_expire_and_a_snapshot_knows_them(rig: Rig) -> None:
    rig.do(UpdateQueue("q", QueueSettings(keep="all", retention_ns=10 * SECOND_NS)))
    rig.publish("q", b"1", b"2")
    rig.finish(rig.fetch("q")[0])
    for engine in (rig.replayed(), rig.restored()):
        assert (engine.queues[1].kept, engine.queues[1].ready) == (1, 1)
        assert state_of(engine) == state_of(rig.engine)
    rig.wait(11)
    assert rig.describe("q").messages == rig.describe("q").kept == 0


def test_a_receiver_stops_before_a_message_that_is_not_visible_yet(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1"), NewMessage(b"2", delay_ns=10 * SECOND_NS), NewMessage(b"3"))
    assert pulled(rig) == [1]
    assert pulled(rig) == []
    rig.wait(10)
    assert pulled(rig) == [2, 3]


def test_a_message_that_a_worker_gave_back_with_a_delay_stops_no_receiver(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    rig.release(rig.fetch("q")[0], delay_ns=100 * SECOND_NS)
    assert pulled(rig) == [1, 2]


def test_what_has_gone_is_passed_over(rig: Rig) -> None:
    rig.publish("q", b"1", NewMessage(b"2", expires_ns=SECOND_NS), b"3")
    rig.wait(2)
    assert pulled(rig) == [1, 3]


def test_a_receiver_that_comes_late_finds_the_first_living_message(rig: Rig) -> None:
    rig.do(PublishRun("q", NewMessage(b"", expires_ns=SECOND_NS), [b"x"] * 5000))
    rig.publish("q", b"survivor")
    rig.do(PublishRun("q", NewMessage(b"", expires_ns=SECOND_NS), [b"x"] * 5000))
    rig.publish("q", b"newest")
    rig.wait(2)
    assert rig.describe("q").messages == 2
    assert pulled(rig, most=10) == [5001, 10002]
    assert pulled(rig, "other", start=5002, most=10) == [10002]


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [1, 2, 3, 4]), (1, [1, 2, 3, 4]), (3, [3, 4]), (FROM_NEWEST, [4])]
)
def test_where_a_new_receiver_starts(rig: Rig, start: int, expected: list[int]) -> None:
    rig.publish("q", b"1", b"2", b"3", b"4")
    assert pulled(rig, start=start) == expected
    rig.publish("q", b"5")
    assert pulled(rig) == [5]


@pytest.mark.parametrize("start", [FROM_NEXT, 5, 100])
def test_a_pull_that_brings_no_message_leaves_the_cursor_where_it_was(rig: Rig, start: int) -> None:
    rig.publish("q", b"1", b"2", b"3", b"4")
    before = len(rig.events)
    assert pulled(rig, start=start) == []
    assert len(rig.events) == before
    assert pulled(rig, most=2) == [1, 2]
    assert pulled(rig, start=start) == []
    assert pulled(rig) == [3, 4]


def test_a_cursor_never_goes_back(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig) == [1, 2, 3]
    for start in (0, 1, 2, FROM_NEWEST):
        assert pulled(rig, start=start) == []


def test_a_start_ahead_of_the_queue_gets_that_very_message_once_it_is_there(rig: Rig) -> None:
    assert pulled(rig, start=3) == []
    rig.publish("q", b"1", b"2", b"3")
    assert pulled(rig, start=3) == [3]


def test_a_cursor_that_an_older_version_moved_ahead_stays_there(rig: Rig) -> None:
    rig.publish("q", b"1", b"2", b"3")
    pulled(rig, most=1)
    receiver = rig.engine.names.known("r")
    rig.engine.evolve(ReceiverMoved(rig.engine.time, 1, 2, receiver), 0)
    assert pulled(rig) == [3]


def test_the_newest_message_is_the_newest_that_is_visible(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1"), NewMessage(b"2"), NewMessage(b"3", delay_ns=SECOND_NS))
    assert pulled(rig, start=FROM_NEWEST) == [2]
    rig.wait(1)
    assert pulled(rig, start=FROM_NEWEST) == [3]


def test_a_receiver_that_gets_nothing_leaves_no_trace(rig: Rig) -> None:
    before = len(rig.events)
    assert pulled(rig, "nobody") == []
    assert len(rig.events) == before
    assert not rig.engine.queues[1].groups


def test_what_has_no_result_is_delivered_again_when_there_is_nothing_new(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    options: dict[str, Any] = {"retries": 2, "fail_ns": 10 * SECOND_NS}
    assert pulled(rig, **options) == [1, 2]
    send_result(rig, 2)
    rig.wait(10)
    rig.publish("q", b"3")
    assert pulled(rig, **options) == [3]
    assert pulled(rig, **options) == [1]
    assert pulled(rig, **options) == []
    rig.wait(10)
    assert pulled(rig, **options) == [1, 3]
    rig.wait(10)
    assert pulled(rig, **options) == [3]
    rig.wait(10)
    assert pulled(rig, **options) == []
    assert not list(rig.engine.queues[1].groups.tables())[1:]


def test_what_is_due_again_leaves_by_id_whatever_fell_due_first(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * 600)
    assert pulled(rig, most=600, retries=5, fail_ns=SECOND_NS) == list(range(1, 601))
    rig.wait(1)
    assert pulled(rig, most=400, retries=5, fail_ns=SECOND_NS) == list(range(1, 401))
    rig.wait(1)
    for first in range(1, 601, 100):
        assert pulled(rig, most=100, retries=5, fail_ns=100 * SECOND_NS) == list(range(first, first + 100))
    assert pulled(rig, retries=5, fail_ns=SECOND_NS) == []


def test_without_retries_nothing_is_remembered(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    assert pulled(rig, retries=0) == [1, 2]
    assert all(isinstance(event, HandedToReceiver) for event in rig.events[-2:])
    assert not list(rig.engine.queues[1].groups.tables())
    rig.wait(1000)
    assert pulled(rig, retries=2, fail_ns=1) == []


def test_a_pull_that_wants_no_retries_gets_none(rig: Rig) -> None:
    rig.publish("q", b"1")
    assert pulled(rig, retries=1, fail_ns=SECOND_NS) == [1]
    rig.wait(2)
    assert pulled(rig, retries=0) == []
    assert pulled(rig, retries=1, fail_ns=SECOND_NS) == [1]


def test_a_pull_says_when_something_is_due_again(rig: Rig) -> None:
    rig.publish("q", b"1")
    assert pull(rig, retries=1, fail_ns=SECOND_NS).drawn
    delivered_at = rig.engine.time
    empty = pull(rig, retries=1, fail_ns=SECOND_NS)
    assert (empty.due_at, empty.last) == (delivered_at + SECOND_NS, {"q": 1})
    assert not empty


def test_the_first_result_counts(rig: Rig) -> None:
    rig.publish("q", b"1")
    pulled(rig)
    assert send_result(rig, 1, b"first") == send_result(rig, 1, b"second") == Pulled()
    answer = rig.do(AwaitResult("q", 1, "r"))
    assert isinstance(answer, StoredResult)
    assert rig.log.read(answer.position, answer.size) == b"first"
    assert sum(isinstance(event, ResultStored) for event in rig.events) == 1


def test_a_wrong_result_keeps_no_other_from_being_stored_but_nothing_is_delivered(rig: Rig) -> None:
    rig.publish("q", b"1", b"2")
    assert pulled(rig, most=1) == [1]
    answer = rig.do(Pull("r", [Draw("q")], [("q", 7, b"x"), ("q", 1, b"good"), ("none", 1, b"x")]))
    assert isinstance(answer, Pulled)
    assert answer.wrong == [
        WrongResult("q", 7, Refused(Reason.NO_MESSAGE)),
        WrongResult("none", 1, Refused(Reason.NO_QUEUE)),
    ]
    assert not answer.drawn
    assert isinstance(rig.do(AwaitResult("q", 1)), StoredResult)
    assert pulled(rig) == [2]


def test_a_result_goes_with_its_message(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1", expires_ns=SECOND_NS))
    pulled(rig, retries=1, fail_ns=1)
    send_result(rig, 1)
    rig.wait(2)
    assert rig.do(AwaitResult("q", 1)) == Refused(Reason.NO_MESSAGE)
    assert not list(rig.engine.queues[1].groups.tables())
    assert send_result(rig, 1) == Pulled(wrong=[WrongResult("q", 1, Refused(Reason.NO_MESSAGE))])


def test_a_result_ends_at_the_moment_at_which_its_message_does(rig: Rig) -> None:
    rig.publish("q", NewMessage(b"1", expires_ns=SECOND_NS))
    send_result(rig, 1)
    row = rig.engine.queues[1].rows.get(1)
    assert row is not None
    answers = [rig.engine.decide(AwaitResult("q", 1), row.expires_at + late).answer for late in (-1, 0)]
    assert [type(each) for each in answers] == [StoredResult, Refused]


def test_a_result_may_come_before_the_message_was_delivered_which_it_is_all_the_same(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * 20)
    send_result(rig, 3)
    assert pulled(rig, retries=1, fail_ns=1) == list(range(1, 21))
    for_good = [event.sequence for event in rig.events if isinstance(event, HandedToReceiver)]
    assert for_good == [3], "nothing is awaited of it any more"
    rig.wait(1)
    assert pulled(rig, retries=1, fail_ns=1) == [each for each in range(1, 21) if each != 3]


def test_an_answer_is_bounded_in_bytes_but_one_message_always_fits(rig: Rig) -> None:
    large = b"x" * (FETCH_BYTES_MAX // 3)
    rig.publish("q", *[large] * 5)
    assert [pulled(rig), pulled(rig)] == [[1, 2, 3], [4, 5]]
    rig.do(CreateQueue("other", KEEPS))
    rig.publish("other", *[large] * 4)
    answer = rig.do(Pull("s", [Draw("q", most=9), Draw("other", most=9)]))
    assert isinstance(answer, Pulled)
    assert [(drawn.queue, drawn.sequences) for drawn in answer.drawn] == [("q", [1, 2, 3])]


def test_no_small_message_overtakes_a_large_one_that_finds_no_room(rig: Rig) -> None:
    large = NewMessage(b"x" * (FETCH_BYTES_MAX // 3))
    rig.publish("q", *[large] * 5, NewMessage(b"gone", expires_ns=SECOND_NS), b"", b"")
    rig.wait(2)
    assert [pulled(rig), pulled(rig)] == [[1, 2, 3], [4, 5, 7, 8]]


def test_a_start_counts_for_nothing_where_there_is_no_room_left(rig: Rig) -> None:
    rig.do(CreateQueue("other", KEEPS))
    rig.publish("q", b"x" * FETCH_BYTES_MAX)
    rig.publish("other", b"1", b"2", b"3")
    answer = rig.do(Pull("r", [Draw("q"), Draw("other", start=3, most=9)]))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["q"]
    assert pulled(rig, queue="other") == [1, 2, 3]


def test_a_queue_has_a_bounded_number_of_receivers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_module, "RECEIVERS_MAX", 2)
    rig.publish("q", b"1", b"2")
    assert pulled(rig, "one", most=1) == pulled(rig, "two", most=1) == [1]
    assert rig.do(Pull("three", [Draw("q")])) == Refused(Reason.TOO_MANY_RECEIVERS, "2: q")
    refused = WrongResult("q", 1, Refused(Reason.TOO_MANY_RECEIVERS))
    assert send_result(rig, 1, receiver="three") == Pulled(wrong=[refused])
    assert pulled(rig, "one") == [2]


def test_a_deleted_queue_takes_its_receivers_along(rig: Rig) -> None:
    rig.publish("q", b"1")
    pulled(rig)
    rig.do(UpdateQueue("q", QueueSettings(keep="finished")))
    rig.finish(rig.fetch("q")[0])
    assert rig.describe("q").messages == 0
    assert not list(rig.engine.queues[1].groups.tables())


def test_a_carried_result_is_read_from_its_new_place(rig: Rig) -> None:
    rig.publish("q", b"1")
    send_result(rig, 1, b"kept")
    stored = rig.engine.queues[1].groups.result(1)
    assert stored is not None
    rig.do(Carry([], [(1, 1, stored.receiver, stored.position, b"kept"), (1, 1, stored.receiver, 999, b"gone")]))
    moved = rig.engine.queues[1].groups.result(1)
    assert moved is not None
    assert moved.position > stored.position
    assert rig.log.read(moved.position, moved.size) == b"kept"
    assert state_of(rig.replayed()) == state_of(rig.restored()) == state_of(rig.engine)


# ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def one_by_one(event: Event) -> list[Event]:
    if isinstance(event, DeliveredRun):
        facts = zip(event.sequence, event.created, event.receives, event.consumer, strict=True)
        return [Delivered(event.time, event.queue, *each, event.visible_at) for each in facts]
    if isinstance(event, HandedToReceiverRun):
        facts = zip(event.sequence, event.created, event.receives, event.consumer, strict=True)
        return [HandedToReceiver(event.time, event.queue, *each) for each in facts]
    return [event]


@effort(60)
@given(st.lists(st.tuples(st.integers(1, 100), st.integers(1, 100), st.integers(0, 1)), min_size=1, max_size=5))
def test_a_run_leaves_the_state_and_the_bytes_of_its_messages(steps: list[tuple[int, int, int]]) -> None:
    together, apart = Engine(), Engine()
    batch, other = Batch(7, 1000), Batch(7, 1000)
    now = 1
    commands = [CreateQueue("q", KEEPS)]
    for count, most, retries in steps:
        commands.append(Publish("q", [NewMessage(b"x")] * count))  # type: ignore[arg-type]
        commands.append(Pull("r", [Draw("q", most=most, retries=retries, fail_ns=30)]))  # type: ignore[arg-type]
    for command in commands:
        now += 10
        for event in together.decide(command, now).events:
            together.evolve(event, batch.add(event))
            for single in one_by_one(event):
                apart.evolve(single, other.add(single))
    assert (batch.count, batch.seal(now)) == (other.count, other.seal(now))
    assert state_of(together) == state_of(apart)
    later = Pull("r", [Draw("q", most=1000, retries=2, fail_ns=30)])
    assert together.decide(later, now + 100).answer == apart.decide(later, now + 100).answer


def test_a_run_is_read_back_as_its_messages(rig: Rig) -> None:
    rig.publish("q", *[b"x"] * RUN_MESSAGES_MIN)
    decision = rig.engine.decide(Pull("r", [Draw("q", most=99, retries=1, fail_ns=5)]), rig.now())
    _, run = decision.events
    assert isinstance(run, DeliveredRun)
    batch = Batch(0, 0)
    batch.add(run)
    data = batch.seal(1)
    header = read_header(data)
    assert header is not None
    assert [event for event, _ in events_of(header, data[HEADER_BYTES:])] == one_by_one(run)


# ── Queues with workers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def working(rig: Rig) -> Rig:
    rig.do(CreateQueue("work", QueueSettings()))
    return rig


def test_in_a_queue_whose_messages_leave_a_pull_is_a_fetch(working: Rig) -> None:
    working.publish("work", b"1", b"2")
    options: dict[str, Any] = {"queue": "work", "retries": 2, "fail_ns": 10 * SECOND_NS}
    assert pulled(working, "one", most=1, **options) == [1]
    assert pulled(working, "other", **options) == [2]
    assert pulled(working, "one", **options) == []
    working.wait(10)
    assert pulled(working, "other", **options) == [1, 2]


def test_there_a_result_finishes_the_message(working: Rig) -> None:
    working.publish("work", b"1", b"2")
    pulled(working, queue="work", retries=1, fail_ns=SECOND_NS)
    assert send_result(working, 1, queue="work") == Pulled()
    assert working.describe("work").messages == 1
    refused = Refused(Reason.LEASE_GONE)
    assert send_result(working, 2, queue="work", receiver="s") == Pulled(wrong=[WrongResult("work", 2, refused)])
    assert working.do(AwaitResult("work", 2)) == Refused(Reason.NO_RESULTS, "work")


def test_there_a_pull_without_retries_takes_the_message_for_good(working: Rig) -> None:
    working.publish("work", b"1")
    assert pulled(working, queue="work") == [1]
    assert working.describe("work").messages == 0


@pytest.mark.parametrize("start", [FROM_NEWEST, FROM_NEXT, 1, 7])
def test_there_no_start_can_be_given(working: Rig, start: int) -> None:
    working.publish("q", b"1")
    answer = working.do(Pull("r", [Draw("q"), Draw("work", start=start)], [("q", 1, b"not stored")]))
    assert answer == Refused(Reason.NO_CURSOR, "work")
    assert not working.do(AwaitResult("q", 1))


def test_a_pull_of_several_queues_takes_from_all_that_have_something(working: Rig) -> None:
    working.do(CreateQueue("more", QueueSettings()))
    for queue in ("q", "work", "more"):
        working.publish(queue, b"x")
    answer = working.do(Pull("new", [Draw(queue, retries=1, fail_ns=9) for queue in ("work", "none", "q", "more")]))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["work", "q", "more"]
    assert state_of(working.replayed()) == state_of(working.engine)


def test_dead_letters_of_two_queues_do_not_take_the_same_place(rig: Rig) -> None:
    rig.create("dead")
    for name in ("w1", "w2"):
        rig.create(name, redrive_policy=RedrivePolicy(1, "dead"))
        rig.publish(name, b"x")
    wanted = [Draw(name, retries=1, fail_ns=SECOND_NS) for name in ("w1", "w2")]
    answer = rig.do(Pull("r", wanted))
    assert isinstance(answer, Pulled)
    assert [drawn.queue for drawn in answer.drawn] == ["w1", "w2"]
    rig.wait(2)
    assert pulled(rig, queue="dead", retries=1, fail_ns=SECOND_NS) == [1, 2]
    assert send_result(rig, 2, queue="dead") == Pulled()
    assert rig.describe("dead").messages == 1
