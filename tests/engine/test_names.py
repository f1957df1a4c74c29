"""Names are exact for as long as somebody uses them, are forgotten when nobody does, and are refused at the limit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.engine.engine import Engine
from penstock.engine.name_sweep import NameSweep
from penstock.engine.names import StoredNames
from penstock.errors import Reason
from penstock.limits import (
    NAME_NUMBER_MAX,
    NAMES_CHARACTERS_MIN,
    NAMES_FORGOTTEN_AT_ONCE,
    NAMES_RECALLED_CHARACTERS_MAX,
    NAMES_RECALLED_MAX,
    NAMES_SWEPT_MIN,
)
from penstock.model.answers import Delivery, Published, Receipt, Refused
from penstock.model.commands import (
    CreateQueue,
    Delete,
    DeleteQueue,
    Draw,
    Fetch,
    Finish,
    ForgetNames,
    NewMessage,
    Publish,
    PublishTopics,
    Pull,
    Release,
)
from penstock.model.events import NameDefined, NameForgotten
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, state_of

TEXTS = ("", "a", "b", "c", "d", "e", "f")
texts = st.sampled_from(TEXTS)
QUEUES = ("one", "two", "dead")


def swept(rig: Rig) -> int:
    """How many names a whole sweep forgets."""
    before = len(rig.engine.names)
    sweep = NameSweep(rig.engine)
    while sweep.step():
        pass
    forget_all(rig)
    return before - len(rig.engine.names)


def forget_all(rig: Rig) -> None:
    while rig.engine.names.has_unused:
        rig.do(ForgetNames())
    rig.engine.names.end_sweep()


def in_use(engine: Engine) -> set[str]:
    """Every name in a row, or of a receiver, looked at one by one."""
    numbers: set[int] = set()
    for queue in engine.queues.values():
        numbers |= queue.groups.names()
        for sequence in range(1, queue.last_sequence + 1):
            if row := queue.rows.get(sequence):
                numbers |= set(row.names)
    return {engine.names.texts[number] for number in numbers if number}


class NamesMachine(RuleBasedStateMachine):
    """Publishes with arbitrary names, deliveries, moves, deletes, sweeps at any speed, snapshots and replays."""

    def __init__(self) -> None:
        super().__init__()
        self.rig = Rig()
        self.sweep: NameSweep | None = None
        self.is_forgetting = False
        self.names: dict[tuple[int, int], tuple[str, str, str, str]] = {}  # By the place in a message's id.

    @initialize()
    def create(self) -> None:
        self.rig.create("dead")
        self.rig.create("one", redrive_policy=RedrivePolicy(1, "dead"))
        self.rig.create("two", keep="all")

    @rule(queue=st.sampled_from(("one", "two")), content_type=texts, sender=texts, about=texts, topics=texts)
    def publish(self, queue: str, content_type: str, sender: str, about: str, topics: str) -> None:
        listed = (topics, "x") if topics else ()
        message = NewMessage(b"", content_type, 0, f"s-{sender}", about, listed)
        answer = self.rig.do(Publish(queue, [message]))
        (receipt,) = answer if isinstance(answer, list) else []
        assert isinstance(receipt, Receipt)
        self.names[receipt.queue, receipt.sequence] = (content_type, f"s-{sender}", about, "\n".join(listed))

    @rule(sender=texts, root=texts, key=st.sampled_from((b"", b"k")))
    def publish_to_topics(self, sender: str, root: str, key: bytes) -> None:
        topics = (f"t-{root}.x",)
        message = NewMessage(sender.encode(), "text/plain", 0, sender, "", topics, key)
        answer = self.rig.do(PublishTopics([message], QueueSettings(detect_unchanged=True)))
        (published,) = answer if isinstance(answer, list) else []
        assert isinstance(published, Published)
        if published.state == "Q":
            self.names[published.queue, published.sequence] = ("text/plain", sender, "", topics[0])

    @rule(consumer=texts, finish=st.booleans())
    def fetch(self, consumer: str, finish: bool) -> None:
        """From a queue whose messages are moved to another with their first delivery."""
        for delivery in self.rig.fetch("one", consumer=f"c-{consumer}"):
            self.check(delivery)
            if finish:
                self.done(delivery)

    @rule(queue=st.sampled_from(QUEUES), consumer=texts, keep=st.booleans())
    def fetch_and_end(self, queue: str, consumer: str, keep: bool) -> None:
        for delivery in self.rig.fetch(queue, 2, consumer=consumer):
            self.check(delivery)
            if keep:
                self.rig.do(Release(delivery.queue, delivery.sequence))
            else:
                self.done(delivery)

    @rule(receiver=texts.filter(bool))
    def pull(self, receiver: str) -> None:
        self.rig.do(Pull(f"r-{receiver}", [Draw("two", 0, 1, 2, 10)], [], 0))

    @rule(root=texts)
    def remove_queue(self, root: str) -> None:
        self.rig.do(DeleteQueue(f"t-{root}"))

    def done(self, delivery: Delivery) -> None:
        self.rig.do(Finish(delivery.queue, delivery.sequence))

    def check(self, delivery: Delivery) -> None:
        place = (delivery.queue, delivery.sequence)
        assert (delivery.content_type, delivery.sender, delivery.object, delivery.topics) == self.names[place]

    @precondition(lambda self: self.sweep is None)
    @rule()
    def begin_sweep(self) -> None:
        self.sweep = NameSweep(self.rig.engine)

    @precondition(lambda self: self.sweep is not None)
    @rule()
    def go_on_sweeping(self) -> None:
        assert self.sweep
        if self.is_forgetting or not self.sweep.step():
            self.is_forgetting = True
            if self.rig.engine.names.has_unused:
                self.rig.do(ForgetNames())
            else:
                self.rig.engine.names.end_sweep()
                self.sweep = None
                self.is_forgetting = False

    @precondition(lambda self: self.sweep is None)
    @rule()
    def sweep_at_once(self) -> None:
        swept(self.rig)
        assert set(self.rig.engine.names.texts.values()) - {""} == in_use(self.rig.engine)

    @rule()
    def restart_from_a_snapshot(self) -> None:
        self.rig.engine, self.sweep, self.is_forgetting = self.rig.restored(), None, False

    @rule()
    def restart_from_the_log(self) -> None:
        engine = self.rig.replayed()
        assert state_of(engine) == state_of(self.rig.engine)
        self.rig.engine, self.sweep, self.is_forgetting = engine, None, False

    @invariant()
    def every_living_message_has_its_names(self) -> None:
        engine = self.rig.engine
        for queue in engine.queues.values():
            for sequence in range(1, queue.last_sequence + 1):
                if row := queue.rows.get(sequence):
                    place = engine.origins.get((queue.number, sequence), (queue.number, sequence))
                    found = [engine.names.texts[number] for number in row.names[:4]]
                    assert tuple(found) == self.names[place]

    @invariant()
    def a_name_has_one_number(self) -> None:
        found = list(self.rig.engine.names.texts.values())
        assert len(set(found)) == len(found)


NamesMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestNames = NamesMachine.TestCase


def publish_named(rig: Rig, *senders: str) -> list[Receipt]:
    return [rig.publish("q", NewMessage(b"", sender=sender))[0] for sender in senders]


@pytest.fixture
def rig() -> Rig:
    rig = Rig()
    rig.create("q")
    return rig


def test_a_name_that_nobody_uses_is_forgotten_and_gets_another_number_when_it_comes_again(rig: Rig) -> None:
    (first,) = publish_named(rig, "anna")
    assert rig.engine.names.known("anna") == 1
    rig.finish(first)
    assert swept(rig) == 1
    assert rig.engine.names.known("anna") == 0
    publish_named(rig, "anna")
    assert rig.engine.names.known("anna") == 2
    assert [event.number for event in rig.events if isinstance(event, NameForgotten)] == [1]


def test_what_is_asked_for_while_a_sweep_is_under_way_is_kept(rig: Rig) -> None:
    (first,) = publish_named(rig, "anna")
    rig.finish(first)
    sweep = NameSweep(rig.engine)
    while sweep.step():
        pass
    publish_named(rig, "anna")
    forget_all(rig)
    assert [delivery.sender for delivery in rig.fetch("q")] == ["anna"]


def test_a_message_that_moves_past_the_sweep_keeps_its_names() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("q", redrive_policy=RedrivePolicy(1, "dead"))
    publish_named(rig, "anna")
    sweep = NameSweep(rig.engine)
    assert sweep.step()
    assert sweep.step()  # It has been in the dead-letter queue, which is empty.
    rig.fetch("q")
    while sweep.step():
        pass
    forget_all(rig)
    rig.wait(100)
    assert [delivery.sender for delivery in rig.fetch("dead")] == ["anna"]


def test_at_the_limit_a_new_name_is_refused_and_nothing_is_stored(rig: Rig) -> None:
    rig.engine.names.most = 3
    publish_named(rig, "anna", "bert", "carl")
    refused = rig.do(Publish("q", [NewMessage(b"", sender="anna"), NewMessage(b"", sender="dora")]))
    assert refused == Refused(
        Reason.TOO_MANY_NAMES,
        "3 content types, senders, objects, sets of topics and consumers are in use",
    )
    assert rig.describe("q").messages == 3
    assert rig.engine.names.are_worth_a_sweep
    publish_named(rig, "anna")  # A name that is known costs nothing.


def test_long_names_are_bounded_by_their_characters_too(rig: Rig) -> None:
    rig.engine.names.most = 1000
    topics = [tuple(f"{number}.{each:03d}." + "x" * 240 for each in range(100)) for number in range(60)]
    answers = [rig.do(Publish("q", [NewMessage(b"", topics=each)])) for each in topics]
    refused = [answer for answer in answers if isinstance(answer, Refused)]
    assert refused[0].reason is Reason.TOO_MANY_NAMES
    assert refused[0].detail.endswith("characters are in use")
    assert rig.engine.names.characters <= 1 << 20
    publish_named(rig, "short")  # There is room for this one.
    characters = sum(map(len, rig.engine.names.texts.values()))
    assert rig.engine.names.characters == characters == rig.restored().names.characters
    together = rig.do(Publish("q", [NewMessage(b"", topics=each) for each in topics]))
    assert isinstance(together, Refused)


@pytest.mark.parametrize(
    "command",
    [
        Fetch("q", consumer="new"),
        Pull("new", [Draw("kept", 0, 1, 2, 10)], [], 0),
        PublishTopics([NewMessage(b"", topics=("new.topic",))], QueueSettings()),
        Publish("other", [NewMessage(b"", content_type="new")], create=QueueSettings()),
    ],
    ids=lambda command: type(command).__name__,
)
def test_whatever_brings_a_new_name_is_refused_at_the_limit_and_leaves_no_trace(rig: Rig, command: Any) -> None:
    rig.create("kept", keep="all")
    rig.publish("kept", b"x")
    publish_named(rig, "anna")
    rig.engine.names.most = 1
    before = state_of(rig.engine)
    answer = rig.do(command)
    assert isinstance(answer, Refused)
    assert answer.reason is Reason.TOO_MANY_NAMES
    assert state_of(rig.engine) == before


def test_room_that_messages_leave_is_given_to_new_names(rig: Rig) -> None:
    rig.engine.names.most = 2
    for number in range(20):
        for receipt in publish_named(rig, f"{number}-a", f"{number}-b"):
            rig.finish(receipt)
        assert swept(rig) == 2
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_many_new_names_in_one_command_are_defined_once_each(rig: Rig) -> None:
    messages = [NewMessage(b"", sender=f"s{number % 500}") for number in range(1000)]
    rig.publish("q", *messages)
    defined = [event.text for event in rig.events if isinstance(event, NameDefined)]
    assert defined == [f"s{number}" for number in range(500)]


def test_a_decision_that_was_not_carried_out_leaves_no_number_behind(rig: Rig) -> None:
    rig.engine.decide(Publish("q", [NewMessage(b"", sender="lost")]), rig.now())
    publish_named(rig, "anna")
    assert (rig.engine.names.known("anna"), rig.engine.names.known("lost")) == (1, 0)


def test_numbers_begin_anew_at_the_end_and_pass_over_those_in_use(rig: Rig) -> None:
    publish_named(rig, "anna", "bert")
    rig.engine.names.last = NAME_NUMBER_MAX - 1
    publish_named(rig, "carl", "dora")
    assert [rig.engine.names.known(text) for text in ("carl", "dora")] == [NAME_NUMBER_MAX, 3]
    assert rig.restored().names.texts == rig.engine.names.texts


def test_a_sweep_is_worth_it_when_the_table_has_doubled(rig: Rig) -> None:
    def is_worth_it_after(count: int, prefix: str) -> bool:
        rig.publish("q", *[NewMessage(b"", sender=f"{prefix}{number}") for number in range(count)])
        return rig.engine.names.are_worth_a_sweep

    assert not is_worth_it_after(NAMES_SWEPT_MIN - 1, "s")
    assert is_worth_it_after(1, "t")
    assert swept(rig) == 0
    assert not is_worth_it_after(NAMES_SWEPT_MIN - 1, "u")
    assert is_worth_it_after(1, "v")


def test_one_command_forgets_few_names_so_that_nobody_waits_for_it(rig: Rig) -> None:
    receipts = rig.publish("q", *[NewMessage(b"", sender=f"s{number}") for number in range(1000)])
    for receipt in receipts:
        rig.finish(receipt)
    sweep = NameSweep(rig.engine)
    while sweep.step():
        pass
    rig.do(ForgetNames())
    assert len(rig.engine.names) == 1000 - NAMES_FORGOTTEN_AT_ONCE


def test_what_was_forgotten_lately_can_be_recalled_and_no_more_than_that() -> None:
    rig = Rig()
    names = rig.engine.names
    for number in range(1, NAMES_RECALLED_MAX + 3):
        names.define(number, str(number))
        names.forget(number)
    assert len(names.recalled) == NAMES_RECALLED_MAX
    assert names.recalled[NAMES_RECALLED_MAX + 2] == str(NAMES_RECALLED_MAX + 2)


def test_a_snapshot_without_gaps_is_written_as_it_always_was(rig: Rig) -> None:
    publish_named(rig, "anna", "bert")
    stored = rig.engine.names.stored()
    assert msgspec.json.encode(stored) == b'{"names":["","anna","bert"]}'
    assert msgspec.json.decode(b'{"names":["","anna"]}', type=StoredNames).by_number() == {1: "anna"}


def test_a_search_by_topic_finds_what_is_there_after_other_topics_were_forgotten(rig: Rig) -> None:
    rig.create("made")
    for number in range(2000):
        (receipt,) = rig.publish("made", NewMessage(b"", topics=(f"made.{number}",)))
        if number % 2:
            rig.finish(receipt)
    assert swept(rig) == 1000
    assert rig.engine.topics.matching("made.1", 10) == []
    assert len(rig.engine.topics.matching("made.2", 10) or ()) == 1
    assert len(rig.engine.topics.matching("made.*", 5000) or ()) == 1000


def test_a_queue_that_is_removed_while_it_is_swept_is_passed_over(rig: Rig) -> None:
    rig.publish("q", *[NewMessage(b"", sender=f"s{number}") for number in range(5000)])
    sweep = NameSweep(rig.engine)
    assert sweep.step()
    assert sweep.step()
    rig.do(DeleteQueue("q"))
    rig.do(CreateQueue("q", QueueSettings()))
    while sweep.step():
        pass
    forget_all(rig)
    swept(rig)
    assert len(rig.engine.names) == 0


def test_a_few_long_names_are_worth_a_sweep_and_few_of_them_are_recalled() -> None:
    rig = Rig()
    rig.create("work")
    long = NAMES_CHARACTERS_MIN // 64
    worth = []
    for number in range(64):
        worth.append(rig.engine.names.are_worth_a_sweep)
        (message,) = rig.publish("work", NewMessage(b"", sender=f"{number:0{long}}"))
        rig.do(Delete(message.queue, message.sequence))
    assert worth == [False] * 64
    assert rig.engine.names.are_worth_a_sweep
    assert swept(rig) == 64
    for _ in range(NAMES_RECALLED_CHARACTERS_MAX // NAMES_CHARACTERS_MIN):
        for number in range(64):
            (message,) = rig.publish("work", NewMessage(b"", sender=f"{number:0{long}}"))
            rig.do(Delete(message.queue, message.sequence))
        swept(rig)
    assert sum(map(len, rig.engine.names.recalled.values())) <= NAMES_RECALLED_CHARACTERS_MAX
