"""Messages that are written again at the end of the log."""

from __future__ import annotations

from penstock.model.answers import Done
from penstock.model.commands import (
    Carry,
    NewMessage,
)
from tests.support.engine_rig import Rig, state_of

DONE = Done()


def test_a_carried_message_is_read_from_its_new_place(rig: Rig) -> None:
    rig.create("work")
    rig.publish("work", b"one", NewMessage(b"two", key=b"k", headers=b"h"), b"three")
    rows = {sequence: rig.engine.queues[1].rows.get(sequence) for sequence in (1, 2)}
    carried = []
    for sequence, row in rows.items():
        assert row is not None
        extent = rig.log.read(row.position, row.body_bytes + row.key_bytes + row.headers_bytes)
        carried.append((1, sequence, row.position, extent))
    rig.do(Carry(carried))
    for sequence, row in rows.items():
        moved = rig.engine.queues[1].rows.get(sequence)
        assert moved is not None
        assert row is not None
        assert moved.position > row.position
        assert moved._replace(position=row.position) == row
    deliveries = rig.fetch("work", 3)
    assert [(each.body, each.key, each.headers) for each in deliveries] == [
        (b"one", b"", b""),
        (b"two", b"k", b"h"),
        (b"three", b"", b""),
    ]
    assert state_of(rig.replayed()) == state_of(rig.engine)


def test_what_left_or_moved_in_the_meantime_is_not_carried(rig: Rig) -> None:
    rig.with_dead_letters()
    finished, _ = rig.publish("work", b"finished", b"moved")
    old = [(2, 1, 0, b"finished"), (2, 2, 0, b"moved"), (7, 1, 0, b"no queue")]
    rig.finish(finished)
    rig.fetch("work")
    before = len(rig.events)
    assert rig.do(Carry(old)) == DONE
    assert len(rig.events) == before
