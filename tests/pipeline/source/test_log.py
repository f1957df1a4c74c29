"""The log from its files and from its broker: the same, and the same errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock.errors import BrokerError, DamagedLogError, DataDirectoryError, EventsLostError, EventsRemovedError
from penstock.pipeline.source.broker import BrokerLog
from penstock.pipeline.source.files import FileLog
from penstock.pipeline.source.log import EventLog
from penstock.storage.log.batch import Header
from tests.pipeline.conftest import url_of
from tests.support.broker import Broker, StartBroker
from tests.support.event_history import make_queue
from tests.support.offline import decoded, definitions, make_log, messages
from tests.support.ports import free_port


@pytest.fixture
def both(past: Broker) -> Iterator[tuple[FileLog, BrokerLog]]:
    with closing(BrokerLog(url_of(past))) as log:
        yield FileLog(past.data), log


def taken(log: EventLog, start: int, end: int) -> list[tuple[Header, bytes]]:
    return list(log.batches(start, end))


def test_files_and_broker_tell_of_the_same_log(both: tuple[FileLog, BrokerLog]) -> None:
    files, broker = both
    assert files.extent() == broker.extent()
    assert files.names() == broker.names()
    assert files.names().queues[1] == "dead"


def test_files_and_broker_give_the_same_batches(both: tuple[FileLog, BrokerLog]) -> None:
    end = both[0].extent().end
    for start, stop in ((0, end), (0, 1), (end - 1, end), (end // 3, end // 2), (5, 5), (end, end)):
        files, broker = (taken(log, start, stop) for log in both)
        if start < stop:
            assert files == broker
        assert sum(header.records for header, _ in files) >= stop - start


def test_a_moment_is_found_in_both(past: Broker, both: tuple[FileLog, BrokerLog]) -> None:
    rows = decoded(past.data, ("offset", "time"))
    for moment in (0, rows[len(rows) // 2]["time"] + 1, 4_000_000_000_000_000):
        expected = [row["offset"] for row in rows if row["time"] >= moment]
        for log in both:
            first = log.offset_at(moment * 1000)
            # Records that are no events may lie before the first one.
            assert [row["offset"] for row in rows if row["offset"] >= first] == expected


def test_bytes_bound_a_range_in_both(past: Broker, both: tuple[FileLog, BrokerLog]) -> None:
    end = both[0].extent().end
    for start in (0, 7, end // 2, end - 1):
        for size in (1, 1000, 30_000, 1 << 30):
            files, broker = (log.offset_within(start, size) for log in both)
            assert start < files == broker <= end
    assert {log.offset_within(0, 1 << 30) for log in both} == {end}
    assert b"\npenstock_event_readers 0.0\n" in past.request("GET", "/metrics").body


def test_what_lies_behind_the_end_is_an_error_in_both(both: tuple[FileLog, BrokerLog]) -> None:
    end = both[0].extent().end
    for log in both:
        with pytest.raises(EventsLostError):
            taken(log, end - 1, end + 1)


# Files


def test_a_log_that_grows_is_seen_to_grow(tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), messages(1, 10))
    log = FileLog(tmp_path)
    assert log.extent().end == 13
    assert log.names().queues == {1: "orders", 2: "others"}
    make_log(tmp_path, messages(11, 100), segment_bytes=4096)
    assert log.extent().end == 113
    make_log(tmp_path, definitions())
    assert log.extent().end == 116
    assert sum(header.records for header, _ in taken(log, 0, 116)) == 116


def test_a_batch_that_is_still_being_written_is_not_there_yet(tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), messages(1, 10), segment_bytes=65536)
    whole = make_log(tmp_path / "more", definitions(), messages(1, 10), messages(11, 10), segment_bytes=65536)
    source = (whole / "log" / f"{0:020d}.log").read_bytes()
    target = tmp_path / "log" / f"{0:020d}.log"
    written = len(target.read_bytes().rstrip(b"\0"))
    log = FileLog(tmp_path)
    assert log.extent().end == 13
    target.write_bytes(source[: written + 300].ljust(len(source), b"\0"))
    assert log.extent().end == 13
    target.write_bytes(source)
    assert log.extent().end == 23


def test_a_segment_that_is_being_made_holds_nothing(tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), messages(1, 10))
    (tmp_path / "log" / f"{13:020d}.log").write_bytes(b"\0" * 4096)
    assert FileLog(tmp_path).extent().end == 13


def test_a_flipped_bit_is_damage(tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), *(messages(at, 10) for at in range(1, 200, 10)))
    first = min((tmp_path / "log").iterdir())
    spoiled = bytearray(first.read_bytes())
    spoiled[-200] ^= 1
    first.write_bytes(spoiled)
    log = FileLog(tmp_path)
    with pytest.raises(DamagedLogError):
        taken(log, 0, log.extent().end)


def test_removed_segments_are_missed(tmp_path: Path) -> None:
    make_log(tmp_path, definitions(), *(messages(at, 10) for at in range(1, 200, 10)))
    paths = sorted((tmp_path / "log").iterdir())
    paths[0].unlink()
    log = FileLog(tmp_path)
    begin = int(paths[1].stem)
    assert log.extent().earliest == begin
    with pytest.raises(EventsRemovedError) as caught:
        taken(log, 0, begin + 1)
    assert caught.value.earliest == begin


def test_an_empty_directory_has_no_events(tmp_path: Path) -> None:
    make_log(tmp_path)
    log = FileLog(tmp_path)
    assert (log.extent().earliest, log.extent().end) == (0, 0)
    assert log.names() == ({}, {})
    assert log.offset_at(0) == 0


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="not a Penstock data directory"):
        FileLog(tmp_path)


def test_names_that_retention_has_removed_are_in_the_snapshot(start_broker: StartBroker) -> None:
    settings = ("log.segment_bytes=65536", "log.snapshot_bytes=65536", "log.retention_seconds=0")
    broker = start_broker(*settings)
    make_queue(broker, "work")
    log = BrokerLog(url_of(broker))
    with broker.connect() as connection:
        while not log.extent().earliest:
            for _ in range(20):
                posted = connection.request("POST", "/messages/work", {"Content-Type": "a/b"}, b"x" * 4000)
                assert posted.status == 201
                message = connection.request("GET", "/messages/work")
                assert connection.request("DELETE", f"/messages/{message.header('X-MQS-MESSAGE-ID')}").status == 204
    earliest, told = log.extent().earliest, log.names()
    with pytest.raises(EventsRemovedError) as caught:
        taken(log, 0, 1)
    assert caught.value.earliest >= earliest
    log.close()
    broker.stop()
    files = FileLog(broker.data)
    assert files.names() == told
    assert "a/b" in told.texts.values()
    assert told.queues == {1: "work"}


# The broker


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipeline.broker._PAUSE_NS_MAX", 1000)


def test_a_broker_that_is_not_there_is_named(impatient: None) -> None:
    port = free_port()
    with pytest.raises(BrokerError, match=rf"http://127.0.0.1:{port} cannot be reached: Connection refused"):
        BrokerLog(f"http://127.0.0.1:{port}").extent()


def test_a_broker_that_has_no_room_for_readers_says_so(impatient: None, start_broker: StartBroker) -> None:
    broker = start_broker("events.readers_max=0")
    with pytest.raises(BrokerError, match=r"503: reader limit reached"), closing(BrokerLog(url_of(broker))) as log:
        taken(log, 0, 1)


def test_a_token_is_needed_where_the_broker_wants_one(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=s3cret")
    with (
        pytest.raises(BrokerError, match="requires a token: set the option"),
        closing(BrokerLog(url_of(broker))) as log,
    ):
        log.extent()
    with pytest.raises(BrokerError, match="refuses the token"), closing(BrokerLog(url_of(broker), "other")) as log:
        log.extent()
    with closing(BrokerLog(url_of(broker), "s3cret")) as log:
        assert log.extent().end == 0


def test_a_broker_that_has_restarted_is_asked_again(start_broker: StartBroker) -> None:
    broker = start_broker(http=f"127.0.0.1:{free_port()}")
    make_queue(broker, "work")
    log = BrokerLog(url_of(broker))
    end = log.extent().end
    broker.stop()
    broker.start()
    assert log.extent().end == end
    log.close()
