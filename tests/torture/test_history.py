"""The history: what is written can be read, about one subject, and old files make room."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.torture import history
from penstock.torture.history import AnyEvent, Fault, History, Pulled, Sent, Started, Stored, read


def test_the_events_of_a_subject_come_with_the_faults_between_them(tmp_path: Path) -> None:
    one = History(tmp_path, lambda: 0.0)
    before, between = Fault(0, "broker", "kill"), Started(3, "broker", 0.5)
    sent, other, stored = Sent(1, "p.1", "p", "work"), Sent(2, "p.2", "p", "work"), Stored(4, "p.1", "p", "id")
    for event in (before, sent, other, between, stored, Fault(5, "broker", "stop")):
        one.record(event)
    one.close()
    assert one.about("p.1") == [sent, between, stored]
    assert one.about("p.3") == []


def test_every_event_is_passed_on_as_it_is_recorded(tmp_path: Path) -> None:
    seen: list[AnyEvent] = []
    one = History(tmp_path, lambda: 0.0)
    one.listeners.append(seen.append)
    event = Pulled(1, "kept/r", 0.9, {1: "m.1"}, 5.0)
    one.record(event)
    one.close()
    assert seen == [event]
    assert [*read(tmp_path / "history-0001.jsonl")] == [event]


def test_the_oldest_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "FILE_BYTES_MAX", 1000)
    one = History(tmp_path, lambda: 0.0)
    for number in range(1000):
        one.record(Sent(number, f"p.{number}", "p", "work"))
    one.close()
    assert len(list(tmp_path.iterdir())) == history.FILES_MAX
    assert one.about("p.999")
    assert not one.about("p.0")
