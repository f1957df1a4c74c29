"""Options: what each one means, and what is said of a wrong one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import OptionError, SecretInUrlError
from penstock.pipeline.sink.options import parse_sink_options
from penstock.pipeline.source.columns import COLUMNS
from penstock.pipeline.source.options import Options, Since, parse_options


def test_a_path_alone_reads_everything() -> None:
    assert parse_options({"path": "/data"}) == Options(path="/data")
    assert Options(path="/data").columns == COLUMNS


def test_names_are_known_in_any_case() -> None:
    options = parse_options({"URL": "http://a:1/", "startingoffset": "5", "MAXEVENTSPERTRIGGER": "7"})
    assert options == Options(url="http://a:1", start=5, events_max=7)


def test_everything_can_be_said() -> None:
    given = {
        "url": "https://broker",
        "token": "s3cret",
        "read": "events",
        "columns": "offset, state",
        "queue": "a,b",
        "state": "S, X",
        "startingOffset": "2026-05-07T01:01:00.5Z",
        "endingOffset": "latest",
        "maxBytesPerTrigger": "1000",
        "partitionBytes": "2000",
        "failOnDataLoss": "False",
    }
    assert parse_options(given) == Options(
        url="https://broker",
        token="s3cret",
        columns=("offset", "state"),
        queues=frozenset("ab"),
        states=frozenset("SX"),
        start=Since(1_778_115_660_500_000_000),
        bytes_max=1000,
        partition_bytes=2000,
        fail_on_data_loss=False,
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "set either the option"),
        ({"path": "/data", "url": "http://a"}, "set either the option"),
        ({"url": "broker:7843"}, "must begin with http://"),
        ({"path": "/data", "colums": "offset"}, "unknown option colums; the options are url, path"),
        ({"path": "/data", "read": "queue", "queue": "a"}, "path cannot be used with read=queue"),
        ({"url": "http://a", "read": "queue"}, "reads one queue"),
        ({"url": "http://a", "read": "queue", "queue": "a,b"}, "reads one queue"),
        ({"url": "http://a", "read": "queue", "queue": "a", "state": "S"}, "state cannot be used with read=queue"),
        ({"url": "http://a", "read": "queue", "queue": "a", "columns": "state"}, "unknown column state"),
        (
            {"path": "/data", "columns": "offset,letter"},
            "unknown column letter; letter is now state, the columns",
        ),
        ({"url": "http://a", "read": "queue", "queue": "a", "leaseSeconds": "604801"}, "at most 604800"),
        ({"url": "http://a", "leaseSeconds": "5"}, "leaseSeconds cannot be used with read=events"),
        ({"path": "/data", "read": "rows"}, "must be events or queue"),
        ({"path": "/data", "columns": "offset,size"}, "unknown column size; the columns are shard, offset,"),
        ({"path": "/data", "columns": ","}, "one or more columns"),
        ({"path": "/data", "columns": "offset,offset"}, "each once"),
        ({"path": "/data", "state": "LY"}, "one or more of the letters"),
        ({"path": "/data", "minEventsPerTrigger": "5", "maxTriggerDelay": "5"}, "a whole number with a unit"),
        ({"path": "/data", "maxTriggerDelay": "5s"}, "maxTriggerDelay needs minEventsPerTrigger"),
        ({"path": "/data", "minEventsPerTrigger": "5", "maxEventsPerTrigger": "4"}, "5 is above maxEventsPer"),
        ({"path": "/data", "startingOffset": "-1"}, "startingOffset is '-1', but it must be earliest, latest"),
        ({"path": "/data", "endingOffset": "2026-05-07T01:01:00"}, "needs a zone"),
        ({"path": "/data", "maxEventsPerTrigger": "0"}, "above 0"),
        ({"path": "/data", "maxBytesPerTrigger": "1e6"}, "above 0"),
        ({"path": "/data", "failOnDataLoss": "no"}, "true or false"),
    ],
)
def test_a_wrong_option_is_refused_by_name(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        parse_options(given)


@pytest.mark.parametrize("parse", [parse_options, parse_sink_options])
def test_an_address_with_a_password_is_refused_without_repeating_it(
    parse: Callable[[dict[str, str]], object],
) -> None:
    with pytest.raises(SecretInUrlError, match="must not contain a user or a password") as refused:
        parse({"url": "http://ann:hush@host:7843"})
    assert "hush" not in str(refused.value)
