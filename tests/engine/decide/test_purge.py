"""A queue is purged slice by slice: everything it held goes, what comes meanwhile stays."""

from __future__ import annotations

from penstock.errors import Reason
from penstock.limits import PURGE_AT_ONCE, SECOND_NS
from penstock.model.answers import Purged, Refused
from penstock.model.commands import DeleteQueue, NewMessage, Publish, PublishTopics, Purge
from penstock.model.events import Deleted
from penstock.model.settings import QueueSettings, RedrivePolicy
from tests.support.engine_rig import Rig, state_of


def slices(rig: Rig, name: str) -> list[Purged]:
    done: list[Purged] = []
    command = Purge(name)
    while True:
        answer = rig.do(command)
        assert isinstance(answer, Purged)
        done.append(answer)
        if answer.after is None:
            return done
        command = Purge(name, answer.number, answer.after, answer.last)


def test_a_purge_deletes_ready_delayed_leased_and_kept_messages() -> None:
    rig = Rig()
    rig.create("all", keep="all")
    rig.publish("all", b"kept", b"leased", b"ready", NewMessage(b"later", delay_ns=SECOND_NS))
    (kept, _leased) = rig.fetch("all", 2)
    rig.finish(kept)
    assert [each.deleted for each in slices(rig, "all")] == [4]
    assert [(each.sequence, each.receives) for each in rig.events[-4:] if isinstance(each, Deleted)] == [
        (1, 1),
        (2, 1),
        (3, 0),
        (4, 0),
    ]
    assert rig.counts("all") == (0, 0, 0)
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_a_purge_works_in_bounded_slices_and_leaves_what_came_after_it_began() -> None:
    rig = Rig()
    rig.create("many")
    rig.do(Publish("many", [NewMessage(b"x")] * (3 * PURGE_AT_ONCE)))
    first = rig.do(Purge("many"))
    assert isinstance(first, Purged)
    assert 0 < first.deleted <= PURGE_AT_ONCE
    rig.publish("many", b"new")
    deleted, after = first.deleted, first.after
    while after is not None:
        answer = rig.do(Purge("many", first.number, after, first.last))
        assert isinstance(answer, Purged)
        assert answer.deleted <= PURGE_AT_ONCE
        deleted, after = deleted + answer.deleted, answer.after
    assert deleted == 3 * PURGE_AT_ONCE
    assert [each.body for each in rig.fetch("many", 10)] == [b"new"]


def test_a_purge_ends_with_its_queue_and_spares_a_new_one_of_the_same_name() -> None:
    rig = Rig()
    rig.create("name")
    rig.do(Publish("name", [NewMessage(b"x")] * (2 * PURGE_AT_ONCE)))
    first = rig.do(Purge("name"))
    assert isinstance(first, Purged)
    assert first.after
    rig.do(DeleteQueue("name"))
    rig.create("name")
    rig.publish("name", b"of the new queue")
    assert rig.do(Purge("name", first.number, first.after, first.last)) == Refused(Reason.NO_QUEUE, "name")
    assert rig.counts("name") == (1, 0, 0)


def test_dead_letters_that_are_purged_are_forgotten_by_both_their_ids() -> None:
    rig = Rig()
    rig.create("dead")
    rig.create("work", retries=1, redrive_policy=RedrivePolicy(5, "dead"))
    rig.publish("work", b"x")
    rig.release(*rig.fetch("work", 1))
    assert [each.deleted for each in slices(rig, "dead")] == [1]
    assert not rig.engine.moved
    assert not rig.engine.origins


def test_a_message_published_to_a_queue_by_name_goes_there_alone() -> None:
    rig = Rig()
    rig.create("named", detect_unchanged=True)
    rig.create("channel", topics=("*",))
    message = NewMessage(b"x", object="thing", key=b"k")
    (first,) = rig.do(PublishTopics([message], QueueSettings(), "named"))  # type: ignore[misc]
    (again,) = rig.do(PublishTopics([message], QueueSettings(), "named"))  # type: ignore[misc]
    assert (first.state, first.queues, first.channels, again.state) == ("Q", ("named",), (), "U")  # type: ignore[union-attr]
    assert rig.do(PublishTopics([message], QueueSettings(), "none")) == Refused(Reason.NO_QUEUE, "none")
    assert rig.do(PublishTopics([message], QueueSettings(), "channel")) == Refused(Reason.IS_CHANNEL, "channel")
    assert list(rig.engine.numbers) == ["named", "channel"]
