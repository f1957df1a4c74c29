"""The options of a writer: where its rows go."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from penstock.errors import OptionError
from penstock.pipeline.options import Spelled, parse_values, read_list, read_name, read_number, read_url


class SinkOptions(Struct, frozen=True, kw_only=True):
    """What a writer was asked for. It goes to the executors as it is."""

    url: str
    token: str = ""
    queue: str = ""
    topics: tuple[str, ...] = ()
    query: str = ""
    batch: int | None = None


def parse_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Raises `OptionError`."""
    values = parse_values(given, _SINK_SPELLED)
    if "url" not in values:
        raise OptionError("url (of the broker to write to) must be given")
    if ("query" in values) != ("batch" in values):
        raise OptionError("query and batch belong together: a batch of that number is written once")
    return SinkOptions(**values)


_SINK_SPELLED: Spelled = {
    "url": ("url", read_url),
    "token": ("token", str),
    "queue": ("queue", read_name),
    "topics": ("topics", read_list),
    "query": ("query", read_name),
    "batch": ("batch", read_number),
    "checkpointLocation": (None, str),  # Spark's own; it comes along.
}
