"""Queues that ask for several confirmations: what each of their consumers may count on, one claim a test."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.errors import Reason
from penstock.limits import RUN_MESSAGES_MIN, SECOND_NS
from penstock.model.answers import Answer, Delivery, Discarded, Done, LeasedUntil, QueueDescription, Received, Refused
from penstock.model.commands import CreateQueue, Extend, Outcome, Receive, Settle, UpdateQueue
from penstock.model.events import Completed, MessageEvent, ResultStored
from penstock.model.kinds import LETTERS
from penstock.model.settings import Push, QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, state_of

GONE = Refused(Reason.LEASE_GONE)
LEASE_SECONDS = 10
OUTCOMES: list[Outcome] = ["success", "invalid", "not_interested", "retry"]


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.create("dead")
    return made


def several(rig: Rig, *, bodies: int = 1, **settings: Any) -> None:
    rig.create("q", **{"confirmations": 2, "visibility_ns": LEASE_SECONDS * SECOND_NS} | settings)
    rig.publish("q", *[b"%d" % number for number in range(bodies)])


def receive(rig: Rig, consumer: str, count: int = 1) -> list[Delivery]:
    answer = rig.do(Receive("q", consumer, count))
    assert isinstance(answer, Received)
    return list(answer.deliveries)


def settle(rig: Rig, consumer: str, outcome: Outcome = "success", **options: Any) -> Answer:
    number = rig.engine.numbers["q"]
    return rig.do(Settle(number, 1, outcome, consumer, **options))


def told(rig: Rig) -> list[tuple[str, str, int]]:
    """Letter, consumer and receives of all that has happened since the messages were published."""
    texts = rig.engine.names.texts
    return [
        (LETTERS.get(event.kind, ""), texts[event.consumer], event.receives)
        for event in rig.events
        if isinstance(event, MessageEvent)
    ]


def replays(rig: Rig) -> bool:
    return state_of(rig.replayed()) == state_of(rig.restored()) == state_of(rig.engine)


@pytest.mark.parametrize("settings", [{"retries": 1}, {"redrive_policy": RedrivePolicy(1, "dead")}])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_consumer_has_its_last_delivery_as_any_other(rig: Rig, settings: Any, outcome: Outcome) -> None:
    several(rig, **settings)
    receive(rig, "a")
    extended = rig.do(Extend(rig.engine.numbers["q"], 1, 60 * SECOND_NS, "a", delivery=1))
    assert extended == LeasedUntil(rig.engine.time + 60 * SECOND_NS)
    rig.wait(LEASE_SECONDS)
    assert settle(rig, "a", outcome, delivery=1) == Done()
    (letters, *whose) = told(rig)[-1]
    assert {"success": "S", "invalid": "I", "not_interested": "N", "retry": "E"}[outcome] in letters
    assert whose == ["a", 1]
    assert replays(rig)


def test_a_confirmation_tells_how_often_its_consumer_has_had_the_message(rig: Rig) -> None:
    several(rig, retries=2)
    for consumer in ("a", "b"):
        receive(rig, consumer)
        settle(rig, consumer, "retry")
        receive(rig, consumer)
        settle(rig, consumer)
    last = [(type(event), event.receives) for event in rig.events if isinstance(event, ResultStored | Completed)]
    assert last == [(ResultStored, 2), (ResultStored, 2), (Completed, 2)]


def test_a_delivery_that_is_named_must_be_the_one_that_runs(rig: Rig) -> None:
    several(rig)
    receive(rig, "a")
    number = rig.engine.numbers["q"]
    for outcome in OUTCOMES:
        assert settle(rig, "a", outcome, delivery=77) == GONE
    assert rig.do(Extend(number, 1, SECOND_NS, "a", delivery=77)) == GONE
    assert settle(rig, "a", "retry", delivery=1) == Done()
    receive(rig, "a")
    assert settle(rig, "a", delivery=1) == GONE
    assert settle(rig, "a", delivery=2) == Done()


@pytest.mark.parametrize("how", ["given back", "run out"])
def test_what_a_consumer_no_longer_has_it_neither_settles_nor_extends_until_it_gets_it_again(
    rig: Rig, how: str
) -> None:
    several(rig)
    receive(rig, "a")
    if how == "given back":
        settle(rig, "a", "retry", delay_ns=SECOND_NS)
        rig.wait(1)
    else:
        rig.wait(LEASE_SECONDS)
    assert told(rig) == [("F", "a", 1), ("R", "a", 1)]
    assert [settle(rig, "a", outcome) for outcome in OUTCOMES] == [GONE] * 4
    assert rig.do(Extend(rig.engine.numbers["q"], 1, SECOND_NS, "a")) == GONE
    [again] = receive(rig, "a")
    assert again.receives == 2
    assert settle(rig, "a") == Done()
    assert replays(rig)


def test_a_lease_that_runs_out_is_told_once_and_by_itself(rig: Rig) -> None:
    several(rig, bodies=RUN_MESSAGES_MIN)
    receive(rig, "a", RUN_MESSAGES_MIN)
    receive(rig, "b")
    rig.wait(100 * LEASE_SECONDS)
    assert [letter for letter, *_ in told(rig)].count("R") == RUN_MESSAGES_MIN + 1
    assert [each.sequence for each in receive(rig, "a", 100)] == list(range(1, RUN_MESSAGES_MIN + 1))
    assert replays(rig)


@pytest.mark.parametrize("policy", [None, RedrivePolicy(9, "dead")])
@pytest.mark.parametrize("how", ["given back", "run out"])
def test_a_message_fails_for_all_when_one_consumer_has_used_up_its_deliveries(
    rig: Rig, how: str, policy: RedrivePolicy | None
) -> None:
    several(rig, retries=2, redrive_policy=policy)
    receive(rig, "b")
    for _ in range(2):
        receive(rig, "a")
        if how == "given back":
            assert settle(rig, "a", "retry") == Done()
        else:
            rig.do(Extend(rig.engine.numbers["q"], 1, 100 * SECOND_NS, "b"))
            rig.wait(LEASE_SECONDS)
    letters = [(letter.strip("FQ") or "F", receives) for letter, consumer, receives in told(rig) if consumer == "a"]
    assert letters == [("F", 1), ("R", 1), ("F", 2), ("E", 2)]
    assert rig.describe("q").messages == 0
    assert rig.counts("dead") == (int(policy is not None), 0, 0)
    if not policy:
        assert settle(rig, "b") == Discarded()
    assert replays(rig)


@pytest.mark.parametrize(("retries", "max_receives"), [(0, 2), (2, 5), (5, 2)])
def test_the_smaller_of_retries_and_receives_counts(rig: Rig, retries: int, max_receives: int) -> None:
    several(rig, retries=retries, redrive_policy=RedrivePolicy(max_receives, "dead"))
    for deliveries in (1, 2):
        assert rig.counts("dead") == (0, 0, 0)
        assert [each.receives for each in receive(rig, "a")] == [deliveries]
        rig.wait(LEASE_SECONDS)
    assert rig.counts("dead") == (1, 0, 0)


def test_a_worker_is_one_of_the_consumers_and_holds_its_last_delivery_without_taking_it_from_others(
    rig: Rig,
) -> None:
    several(rig, redrive_policy=RedrivePolicy(1, "dead"))
    rig.fetch("q")
    assert [each.receives for each in receive(rig, "a")] == [1]
    assert settle(rig, "a") == Done()
    rig.wait(LEASE_SECONDS)
    assert (rig.describe("q").messages, rig.counts("dead")) == (0, (1, 0, 0))


def test_a_message_fails_once_when_all_leases_end_together(rig: Rig) -> None:
    several(rig, retries=1)
    rig.fetch("q")
    for consumer in ("a", "b", "c"):
        receive(rig, consumer)
    rig.wait(2 * LEASE_SECONDS)
    assert [letter for letter, *_ in told(rig)].count("E") == 1
    assert rig.describe("q").messages == 0
    assert replays(rig)


def test_where_everything_is_kept_a_failed_message_stays_for_those_who_have_not_had_it(rig: Rig) -> None:
    several(rig, retries=1, keep="all")
    receive(rig, "a")
    rig.wait(LEASE_SECONDS)
    assert told(rig)[-1] == ("E", "a", 1)
    assert rig.describe("q").kept == 1
    assert receive(rig, "a") == []
    assert len(receive(rig, "b")) == 1
    assert settle(rig, "a") == Discarded()
    assert replays(rig)


@pytest.mark.parametrize("settings", [{"confirm": False}, {"push": Push("http://localhost/")}])
def test_several_confirmations_go_neither_without_any_nor_with_push(rig: Rig, settings: Any) -> None:
    wanted = QueueSettings(confirmations=2, **settings)
    rig.create("q", **settings)
    for command in (CreateQueue("other", wanted), UpdateQueue("q", wanted)):
        answer = rig.do(command)
        assert isinstance(answer, Refused)
        assert answer.reason is Reason.NOT_TOGETHER
    assert rig.describe("q").settings == QueueSettings(**settings)


def test_confirmations_are_not_lowered_once_somebody_has_had_a_message(rig: Rig) -> None:
    several(rig, confirmations=3)
    for confirmations in (2, 3):  # Nobody has had one so far; and more may be asked for at any time.
        assert isinstance(lower(rig, confirmations), QueueDescription)
    refused = Refused(Reason.CONFIRMATIONS_COUNT, "q")
    for consumer in ("a", "b"):
        receive(rig, consumer)
        assert lower(rig, 2) == refused
        settle(rig, consumer)
        assert lower(rig, 2) == refused
    rig.finish(rig.fetch("q")[0])
    assert isinstance(lower(rig, 1), QueueDescription)


def lower(rig: Rig, confirmations: int) -> Answer:
    return rig.do(UpdateQueue("q", QueueSettings(confirmations=confirmations), ("confirmations",)))


def test_a_message_that_expires_takes_the_leases_of_its_consumers_along(rig: Rig) -> None:
    several(rig, retries=1, retention_ns=LEASE_SECONDS * SECOND_NS // 2)
    receive(rig, "a")
    rig.wait(LEASE_SECONDS)
    assert [letter for letter, *_ in told(rig)] == ["F", "Z"]
    assert replays(rig)
