"""Commands and answers between workers."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cluster.links.codec import (
    COMMANDS,
    FORM,
    Announce,
    Answered,
    Ask,
    AskAgain,
    BeginFlow,
    Decide,
    Dismiss,
    EndAskAgain,
    Frames,
    Greet,
    Hurry,
    Introduce,
    PassOn,
    Question,
    Received,
    SendPart,
    Withdraw,
    encode,
    frame,
)
from penstock.errors import ProtocolError, Reason
from penstock.limits import LINK_FRAME_BYTES_MAX
from penstock.model import answers
from penstock.model.access import EVERYTHING, NOBODY, Access, Verb, scope_of
from penstock.model.answer_bytes import ANSWERS, QUERIES, Several, pack, unpack
from penstock.model.answers import Answer, Done, Receipt, Receipts, Refused
from penstock.model.commands import Command, Fetch, ListQueues, NewMessage, Publish
from penstock.model.queries import Act, Pages, Query, Reading
from penstock.model.values import Stage
from tests.support.any_value import any_object

ENTRIES = [
    Greet(FORM, 1, b"process1", {1: 7, 3: 2}),
    Announce({}),
    AskAgain(4, 0, 1, Stage.SYNC, Fetch("work")),
    EndAskAgain(3),
    Received(5),
    Introduce(1, EVERYTHING, "::1", "mqs"),
    Ask(1, 0, 1, Stage.SYNC, Publish("work", [NewMessage(b"x" * 300)])),
    Decide(0),
    Withdraw(1),
    Hurry(2),
    Dismiss(1),
    Answered(1, Several([Receipt(1, 1, True)])),
    Introduce(2, NOBODY, "", "native"),
    PassOn({b"accept": b"*/*"}),
    BeginFlow(3, b""),
    SendPart(3, b""),
]


def crossed(*entries: Any) -> list[Any]:
    return Frames().receive(frame([encode(entry) for entry in entries]))


def test_every_command_can_cross() -> None:
    assert set(Command.__subclasses__()) == set(COMMANDS)


def test_every_question_can_cross() -> None:
    def kinds_of(kind: type[Query]) -> set[type[Query]]:
        return {kind}.union(*map(kinds_of, kind.__subclasses__()))

    ours = {kind for kind in kinds_of(Query) if kind.__module__.startswith("penstock.")}
    assert set(QUERIES) == {
        kind for kind in ours if kind not in (Query, Act, Pages, Reading) and not kind.__name__.startswith("_")
    }


def test_every_answer_can_cross() -> None:
    """Also those that are only in lists."""
    named = [member for each in get_args(Answer) for member in (get_args(each) or (each,))]
    kinds = {kind for each in named for kind in (get_args(each) or (each,))}
    assert kinds - {answers.Settled} <= set(ANSWERS)


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
def test_a_command_arrives_as_it_was_sent(kind: type[Any]) -> None:
    @settings(max_examples=20)
    @given(any_object(kind))
    def arrives(command: Any) -> None:
        asked = Ask(7, 3, 1, Stage.SYNC, command)
        assert crossed(asked) == [asked]

    arrives()


@pytest.mark.parametrize("kind", QUERIES, ids=lambda kind: kind.__name__)
def test_a_question_arrives_as_it_was_asked(kind: type[Any]) -> None:
    @settings(max_examples=20)
    @given(any_object(kind))
    def arrives(query: Any) -> None:
        asked = Question(7, 3, 1, query)
        assert crossed(asked) == [asked]

    arrives()


@pytest.mark.parametrize("kind", ANSWERS, ids=lambda kind: kind.__name__)
def test_an_answer_arrives_as_it_was_given(kind: type[Any]) -> None:
    @settings(max_examples=20)
    @given(st.one_of(any_object(kind), st.lists(any_object(kind), max_size=3)))
    def arrives(answer: Any) -> None:
        (arrived,) = crossed(Answered(7, pack(answer)))
        assert unpack(arrived.answer) == answer

    arrives()


def test_lists_in_a_list_arrive() -> None:
    answer = [[Receipt(1, 2, True)], Receipts(1, 2, 3), [], Refused(Reason.NO_QUEUE, "work")]
    (arrived,) = crossed(Answered(1, pack(answer)))
    assert unpack(arrived.answer) == answer


def test_an_access_arrives_with_what_it_allows() -> None:
    access = Access("ada", [scope_of("publish,consume:orders*"), scope_of("read:*")], {"connections": 3.0}, "jwt")
    (introduced,) = crossed(Introduce(1, access, "::1", "mqs"))
    arrived = introduced.access
    assert (arrived.name, arrived.kind, arrived.limits) == ("ada", "jwt", {"connections": 3.0})
    assert arrived.may(Verb.PUBLISH, "orders.new")
    assert not arrived.may(Verb.PUBLISH, "jobs")


def test_a_client_that_may_do_everything_may_do_so_there() -> None:
    (asked,) = crossed(Ask(1, 0, 0, 2, ListQueues()))
    assert asked.command.access is EVERYTHING


@given(st.lists(st.sampled_from(ENTRIES), max_size=4), st.data())
def test_a_stream_may_be_split_anywhere(entries: list[Any], data: st.DataObject) -> None:
    stream = b"".join(frame([encode(entry)]) for entry in entries)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    frames, arrived = Frames(), []
    for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        arrived += frames.receive(stream[start:stop])
    assert arrived == entries


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x01\xc1",
        frame([encode(["Ask", 1, 2])]),
        frame([encode(["Nothing", 1])]),
        frame([encode(["Ask", 1, 0, 0, 2, ["Nothing"]])]),
        frame([encode(["Introduce", 1, ["ada", "token", ["fly:*"], {}], "", ""])]),
        (LINK_FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
    ],
)
def test_what_no_worker_sends_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Frames().receive(data)


def test_many_entries_of_a_turn_are_one_frame() -> None:
    entries = [Ask(number, 0, 0, 2, Fetch("work")) for number in range(1000)] + [Answered(1, Done())]
    assert crossed(*entries) == entries
