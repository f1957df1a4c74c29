"""The options of a writer."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import OptionError
from penstock.pipeline.options import (
    TLS_SPELLED,
    Spelled,
    TlsOptions,
    parse_values,
    read_list,
    read_name,
    read_number,
    read_url,
)


class SinkOptions(TlsOptions, frozen=True, kw_only=True):
    """Parsed options. They are sent to the executors."""

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
        raise OptionError('set the option "url" to the address of the broker')
    if ("query" in values) != ("batch" in values):
        raise OptionError(
            'set both options "query" and "batch", or neither: together they identify what is written once'
        )
    return SinkOptions(**values)


_SINK_SPELLED: Spelled = {
    "url": ("url", read_url),
    "token": ("token", str),
    **TLS_SPELLED,
    "queue": ("queue", read_name),
    "topics": ("topics", read_list),
    "query": ("query", read_name),
    "batch": ("batch", read_number),
    "checkpointLocation": (None, str),  # For Spark, which passes it on.
}
