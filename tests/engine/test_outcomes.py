"""What became of commands of other processes, as the log has it."""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.limits import OUTCOMES_KEPT_SECONDS, SECOND_NS
from penstock.model.courier_commands import NoteDecided

NEAR, FAR = b"near1234", b"far12345"


def note(engine: Engine, origin: bytes, outcomes: bytes, forgotten: int = 0, seconds: int = 0) -> None:
    now = engine.time + 1 + seconds * SECOND_NS
    for event in engine.decide(NoteDecided(forgotten, origin, outcomes), now).events:
        engine.evolve(event, 0)


def test_records_are_kept_until_they_are_forgotten() -> None:
    engine = Engine()
    for outcomes in (b"one", b"two", b"three"):
        note(engine, NEAR, outcomes)
    note(engine, FAR, b"other")
    assert engine.outcomes.by_origin[NEAR].records == [b"one", b"two", b"three"]
    note(engine, NEAR, b"four", forgotten=2)
    asker = engine.outcomes.by_origin[NEAR]
    assert (asker.records, asker.forgotten, asker.end) == ([b"three", b"four"], 2, 4)
    assert engine.outcomes.by_origin[FAR].records == [b"other"]


def test_a_process_that_has_not_asked_for_long_is_forgotten() -> None:
    engine = Engine()
    note(engine, FAR, b"old")
    note(engine, NEAR, b"one", seconds=OUTCOMES_KEPT_SECONDS - 1)
    assert FAR in engine.outcomes.by_origin
    note(engine, NEAR, b"two", seconds=2)
    assert list(engine.outcomes.by_origin) == [NEAR]


def test_a_snapshot_has_them() -> None:
    engine, again = Engine(), Engine()
    note(engine, NEAR, b"\x00one")
    note(engine, NEAR, b"\xfftwo", forgotten=1)
    again.restore(engine.sections())
    assert again.outcomes.by_origin == engine.outcomes.by_origin
