"""Where each command goes."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.broker.shard_map import ShardMap
from penstock.cluster.routing.cut_commands import ADMINISTRATION, Parts
from penstock.cluster.routing.destinations import DESTINATIONS, destination
from penstock.errors import Reason
from penstock.model.answers import (
    Answer,
    Done,
    Drawn,
    ObjectDescription,
    Published,
    Pulled,
    QueueDescription,
    QueueList,
    Receipt,
    Refused,
    Repeated,
    ScheduleDescription,
    ScheduleList,
    WrongResult,
)
from penstock.model.commands import (
    FROM_NEXT,
    Command,
    CreateQueue,
    DeleteQueue,
    DescribeObject,
    Draw,
    Fetch,
    Finish,
    FinishMany,
    ListQueues,
    LookUp,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
    ReadClaimed,
    Tick,
    UpdateQueue,
)
from penstock.model.courier_commands import CheckDeadLetterQueue
from penstock.model.probe import Probe
from penstock.model.schedules import (
    DeleteSchedule,
    DescribeSchedule,
    ListSchedules,
    RunSchedule,
    Schedule,
    SetSchedule,
)
from penstock.model.settings import QueueSettings, RedrivePolicy
from penstock.model.tokens import ListTokens
from penstock.model.values import Version

SHARDS = ShardMap(4, {"a": 0, "b": 1, "c": 2, "also-a": 0})
DEFAULTS = QueueSettings()
HELLO = NewMessage(b"x")
UNAVAILABLE = Refused(Reason.UNAVAILABLE)


def parts_of(command: Command) -> Parts:
    found = destination(command, SHARDS)
    assert isinstance(found, Parts)
    return found


def about(*topics: str) -> NewMessage:
    return NewMessage(b"x", topics=topics)


def published(number: int, sequence: int) -> Published:
    return Published(number, sequence, "Q")


def test_every_command_has_a_row() -> None:
    assert set(Command.__subclasses__()) == DESTINATIONS.keys()


@pytest.mark.parametrize(
    ("command", "shard"),
    [
        (Publish("b", [HELLO]), 1),
        (Fetch("c"), 2),
        (CreateQueue("b", DEFAULTS), 1),
        (Finish(7, 1), 2),
        (LookUp(4, 1), 3),
        (FinishMany([Finish(2, 1), Finish(6, 1)]), 1),
        (PublishTopics([about("b.x"), about("b.y", "c")], DEFAULTS), 1),
        (PublishTopics([about("b.x")], DEFAULTS, queue="c"), 2),
        (PublishTopics([], DEFAULTS), ADMINISTRATION),
        (PublishInTurn([Publish("a", [HELLO]), Publish("also-a", [HELLO])]), 0),
        (Pull("me", [Draw("b")], [("b", 1, b"")]), 1),
        (Pull("me"), ADMINISTRATION),
        (ListTokens(), ADMINISTRATION),
        (ReadClaimed([(7, 5, 6)], "me", 1), 2),
        (ReadClaimed([(7, 5, 6), (7, 9, 9)], "me", 1), 2),
        (ReadClaimed([], "me", 1), ADMINISTRATION),
    ],
)
def test_a_command_about_one_shard_goes_there_as_it_is(command: Command, shard: int) -> None:
    assert destination(command, SHARDS) == shard


def test_what_services_send_does_not_leave_its_shard() -> None:
    with pytest.raises(AssertionError, match="Tick does not leave its shard"):
        destination(Tick(), SHARDS)


def test_with_one_shard_no_command_is_cut() -> None:
    for command in (
        FinishMany([Finish(1, 1), Finish(2, 1)]),
        PublishTopics([about("a"), about("b")], DEFAULTS),
        Pull("me", [Draw("a"), Draw("b")]),
        ListQueues(offset=3, limit=2),
        DescribeObject("a", b"k", 3),
    ):
        assert destination(command, ShardMap()) == 0


def test_answers_come_back_in_the_order_of_what_was_sent() -> None:
    finishes = [Finish(1, 1), Finish(2, 2), Finish(5, 3)]
    parts = parts_of(FinishMany(finishes))
    assert parts.commands == [(0, FinishMany([finishes[0], finishes[2]])), (1, FinishMany([finishes[1]]))]
    gone = Refused(Reason.NO_MESSAGE)
    assert parts.join([[Done(), gone], [Done()]]) == [Done(), Done(), gone]


def test_messages_are_published_where_their_first_queue_is() -> None:
    messages = [about("b", "a"), about("a"), NewMessage(b"x", object="b")]
    parts = parts_of(PublishTopics(messages, DEFAULTS))
    assert parts.commands == [
        (1, PublishTopics([messages[0], messages[2]], DEFAULTS)),
        (0, PublishTopics([messages[1]], DEFAULTS)),
    ]
    answer = parts.join([[published(2, 1), published(2, 2)], [published(1, 9)]])
    assert answer == [published(2, 1), published(1, 9), published(2, 2)]


def test_a_publish_is_refused_as_a_whole_only_if_nothing_of_it_is_stored() -> None:
    parts = parts_of(PublishTopics([about("a"), about("b")], DEFAULTS))
    assert parts.join([UNAVAILABLE, UNAVAILABLE]) == UNAVAILABLE
    answer = parts.join([[published(1, 1)], UNAVAILABLE])
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.OUTCOME_UNKNOWN
    assert answer.detail.startswith("1 of 2 are stored; the others were refused: unavailable")
    in_doubt = Refused(Reason.OUTCOME_UNKNOWN, "lost")
    assert parts.join([UNAVAILABLE, in_doubt]) == in_doubt


def test_a_refusal_of_one_part_of_several_confirmations_is_the_answer_to_each_of_its_items() -> None:
    parts = parts_of(FinishMany([Finish(1, 1), Finish(2, 1), Finish(1, 2)]))
    assert parts.join([[Done(), Done()], UNAVAILABLE]) == [Done(), UNAVAILABLE, Done()]
    assert parts.join([UNAVAILABLE, UNAVAILABLE]) == UNAVAILABLE


@pytest.mark.parametrize(
    ("answers", "joined"),
    [
        ([Repeated([published(1, 1)]), Repeated([published(2, 1)])], Repeated([published(1, 1), published(2, 1)])),
        ([Repeated([published(1, 1)]), [published(2, 1)]], [published(1, 1), published(2, 1)]),
        ([Refused(Reason.KEY_REUSED), Refused(Reason.KEY_REUSED)], Refused(Reason.KEY_REUSED)),
    ],
)
def test_each_part_of_a_publish_has_its_key(answers: list[Answer], joined: Answer) -> None:
    """A request is repeated if all its parts are: one that was lost halfway is completed."""
    both = PublishTopics([about("a"), about("b")], DEFAULTS)
    parts = parts_of(PublishOnce(both, b"key", b"digest", 1, 1))
    one, other = PublishTopics([about("a")], DEFAULTS), PublishTopics([about("b")], DEFAULTS)
    assert parts.commands == [
        (0, PublishOnce(one, b"key", b"digest", 1, 1)),
        (1, PublishOnce(other, b"key", b"digest", 1, 1)),
    ]
    assert parts.join(answers) == joined


def test_publishes_in_turn_end_with_the_first_refusal() -> None:
    publishes = [Publish(name, [HELLO]) for name in ("a", "also-a", "b", "a")]
    parts = parts_of(PublishInTurn(publishes))
    assert [shard for shard, _ in parts.commands] == [0, 1, 0]
    assert parts.in_turn == 3
    receipts, refused = [Receipt(1, 1, True)], Refused(Reason.NO_QUEUE, "b")
    assert parts.goes_on([[receipts, receipts]])
    assert not parts.goes_on([[receipts, receipts], [refused]])
    assert not parts.goes_on([UNAVAILABLE])
    assert parts.join([[receipts, receipts], [refused]]) == [receipts, receipts, refused]
    assert parts.join([[receipts, receipts], UNAVAILABLE]) == [receipts, receipts, UNAVAILABLE]


def test_a_pull_from_several_shards_sends_its_results_first() -> None:
    parts = parts_of(Pull("me", [Draw("a"), Draw("b")], [("c", 1, b"r")], wait_ns=5))
    assert parts.in_turn == 1
    assert parts.commands == [
        (2, Pull("me", (), [("c", 1, b"r")])),
        (0, Pull("me", [Draw("a")], wait_ns=5)),
        (1, Pull("me", [Draw("b")], wait_ns=5)),
    ]
    wrong = Pulled(wrong=[WrongResult("c", 1, Refused(Reason.NO_MESSAGE))])
    assert not parts.goes_on([wrong])
    assert parts.join([wrong]) == wrong
    assert parts.join([UNAVAILABLE]) == UNAVAILABLE
    found: Any = parts.join([Pulled(), Pulled(last={"a": 3}, due_at=9), Pulled(last={"b": 1}, due_at=4)])
    assert (found.last, found.due_at) == ({"a": 3, "b": 1}, 4)


def test_a_pull_says_of_each_shard_what_became_of_it() -> None:
    parts = parts_of(Pull("me", [Draw("a"), Draw("b")]))
    drawn = Drawn("a", [1], [0], [1], [0], [0], [""], [1], [b"x"], [b""])
    found: Any = parts.join([Pulled([drawn]), UNAVAILABLE])
    assert (found.drawn, found.last) == ([drawn], {"b": None})
    found = parts.join([Pulled(last={"a": 3}), UNAVAILABLE])
    assert (found.drawn, found.last) == ([], {"a": 3, "b": None})
    assert parts.again(UNAVAILABLE)
    assert not parts.again(Pulled())
    assert parts.join([UNAVAILABLE, UNAVAILABLE]) == UNAVAILABLE, "nothing is done anywhere"
    forbidden = Refused(Reason.FORBIDDEN)
    assert parts.join([Pulled(), forbidden]) == parts.join([UNAVAILABLE, forbidden]) == forbidden
    assert not parts.again(forbidden)


def test_what_is_stored_of_a_pull_is_not_refused() -> None:
    parts = parts_of(Pull("me", [Draw("a"), Draw("b")], [("c", 1, b"r"), ("a", 2, b"r")]))
    found: Any = parts.join([Pulled(), UNAVAILABLE])
    assert (found.wrong, found.refused) == ([WrongResult("a", 2, UNAVAILABLE)], UNAVAILABLE)
    found = parts.join([Pulled(), Pulled(), UNAVAILABLE, UNAVAILABLE])
    assert (found.wrong, found.last) == ([], {"a": None, "b": None})


def test_where_a_pull_begins_is_checked_before_anything_is_stored() -> None:
    parts = parts_of(Pull("me", [Draw("a", 7, 5, 2), Draw("b")], [("b", 1, b"r")], wait_ns=5))
    assert parts.commands[:2] == [(0, Pull("me", [Draw("a", 1, 0)])), (1, Pull("me", (), [("b", 1, b"r")]))]
    refused = Refused(Reason.NO_CURSOR, "a")
    assert not parts.goes_on([refused])
    assert parts.join([refused]) == refused
    assert parts.goes_on([UNAVAILABLE]), "the others may have something"


def test_a_pull_that_waits_has_stored_its_results_before() -> None:
    results = [("a", 1, b"r")]
    parts = parts_of(Pull("me", [Draw("a"), Draw("a", FROM_NEXT)], results, wait_ns=5))
    first, second = parts.commands
    assert first == (0, Pull("me", [Draw("a"), Draw("a", FROM_NEXT)], results))
    assert parts.goes_on([Pulled(last={"a": 7})])
    later = Pull("me", [Draw("a"), Draw("a", 8, only_new=True)], wait_ns=5)
    assert parts.after(second[1], [Pulled(last={"a": 7})]) == later
    wrong = Pulled(wrong=[WrongResult("a", 1, Refused(Reason.NO_MESSAGE))])
    assert not parts.goes_on([wrong])
    assert not parts.goes_on([UNAVAILABLE])
    assert (parts.join([wrong]), parts.join([UNAVAILABLE])) == (wrong, UNAVAILABLE)
    found: Any = parts.join([Pulled(last={"a": 7}), UNAVAILABLE])
    assert (found.wrong, found.last) == ([], {"a": None}), "the results are stored"


def described(name: str, number: int, created: int = 0) -> QueueDescription:
    return QueueDescription(name, number, DEFAULTS, 0, 0, 0, 0, 0, 0, created=created)


def test_queues_are_listed_in_the_order_of_their_creation() -> None:
    parts = parts_of(ListQueues(offset=1, limit=2, after=(7, 1)))
    assert parts.commands == [(shard, ListQueues(offset=0, limit=3, after=(7, 1))) for shard in range(4)]
    lists: list[Any] = [QueueList(1, [described("e", 5)]), QueueList(2, [described("b", 2), described("f", 6)])]
    lists += [QueueList(0, []), QueueList(1, [described("d", 4)])]
    assert parts.join(lists) == QueueList(4, [described("d", 4), described("e", 5)])
    assert parts.join([*lists[:3], UNAVAILABLE]) == UNAVAILABLE
    lists[0] = QueueList(1, [described("e", 5, 7)])
    lists[1] = QueueList(2, [described("b", 2, 8), described("f", 6, 10)])
    lists[3] = QueueList(1, [described("d", 4, 9)])
    assert parts.join(lists) == QueueList(4, [described("b", 2, 8), described("d", 4, 9)])


def version(number: int, changed: int) -> Version:
    return Version(b"", number, 1, 1, changed, 0)


def test_one_shard_answers_for_an_object_and_a_key() -> None:
    assert {parts_of(DescribeObject("a", b"%d" % key, 2)).commands[0][0] for key in range(50)} == set(range(4))
    parts = parts_of(DescribeObject("a", b"k", 2))
    assert sorted(shard for shard, _ in parts.commands) == [0, 1, 2, 3]
    one, other = (ObjectDescription(version(each, each), [version(each, each)], {}) for each in (1, 2))
    unknown = Refused(Reason.NO_OBJECT)
    assert not parts.goes_on([one])
    assert not parts.goes_on([Refused(Reason.UNAVAILABLE)])
    assert parts.goes_on([unknown])  # Versions of an earlier release are where they were published.
    assert parts.join([unknown, one, other, unknown]) == other
    assert parts.join([unknown] * 4) == unknown


def test_a_dead_letter_queue_elsewhere_must_exist_before_a_queue_names_it() -> None:
    create = CreateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(3, "b")))
    parts = parts_of(create)
    assert parts.commands == [(0, Probe(create)), (1, CheckDeadLetterQueue("b")), (0, create)]
    for answers in (
        [Refused(Reason.QUEUE_EXISTS, "a")],
        [Done(), Refused(Reason.NO_DEAD_LETTER_QUEUE, "b")],
    ):
        assert not parts.goes_on(answers)
        assert parts.join(answers) == answers[-1]
    assert parts.join([Done(), Done(), described("a", 1)]) == described("a", 1)
    assert destination(CreateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(3, "also-a"))), SHARDS) == 0


def test_a_question_goes_where_its_command_goes_first() -> None:
    create = CreateQueue("a", QueueSettings(redrive_policy=RedrivePolicy(3, "b")))
    for head, shard in ((Finish(7, 1), 2), (DeleteQueue("b"), 1), (create, 0)):
        assert destination(Probe(head), SHARDS) == shard
    everywhere = parts_of(Probe(DescribeSchedule("nightly")))
    assert everywhere.commands == [(shard, Probe(DescribeSchedule("nightly"))) for shard in range(4)]
    assert everywhere.join([Refused(Reason.NO_SCHEDULE, "nightly"), Done()]) == Done()


def test_a_change_of_other_settings_asks_no_other_shard() -> None:
    settings = QueueSettings(redrive_policy=RedrivePolicy(3, "b"))
    assert destination(UpdateQueue("a", settings, ("retries",)), SHARDS) == 0
    assert isinstance(destination(UpdateQueue("a", settings, ("redrive_policy",)), SHARDS), Parts)


def test_a_queue_is_deleted_in_its_shard_which_promises_that_others_forget_it() -> None:
    assert destination(DeleteQueue("b"), SHARDS) == 1


@pytest.mark.parametrize("wanted", [Schedule(queue="c"), Schedule(topics=("c.new", "a")), Schedule(object="c")])
def test_a_schedule_is_in_the_shard_of_its_queue_which_promises_that_others_forget_it(wanted: Schedule) -> None:
    assert destination(SetSchedule("nightly", wanted), SHARDS) == 2


def planned(name: str) -> ScheduleDescription:
    return ScheduleDescription(name, Schedule(queue="a"), 0)


def test_a_schedule_is_found_in_the_shard_that_has_it() -> None:
    missing = Refused(Reason.NO_SCHEDULE, "nightly")
    for command in (DescribeSchedule("nightly"), DeleteSchedule("nightly"), RunSchedule("nightly")):
        parts = parts_of(command)
        assert parts.commands == [(shard, command) for shard in range(4)]
        assert parts.join([missing, missing, planned("nightly"), missing]) == planned("nightly")
        assert parts.join([missing] * 4) == missing


def test_schedules_of_all_shards_are_listed_by_name() -> None:
    parts = parts_of(ListSchedules(1, 2))
    assert {command for _, command in parts.commands} == {ListSchedules(0, 3)}
    lists = [ScheduleList(1, [planned(name)]) for name in ("d", "b", "a", "c")]
    assert parts.join(lists) == ScheduleList(4, [planned("b"), planned("c")])
    assert parts.join([*lists[:3], UNAVAILABLE]) == UNAVAILABLE
