"""The fields of a message that are kept beside its body: one row a field.

The engine keeps them as bytes, in `headers`, and does not read them. So they go wherever the message goes: into the
log, snapshots, copies and other shards, and under their names into the column `headers` of Arrow, Spark and the lake.
What clients give and what they see follows from the row. A message with one is read by every version that reads the
log, and messages without any cost nothing.

A field that the engine decides by also needs a step there: of a message that is published, or of its event.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from penstock.model.times import producer_time


class MessageField(Struct, frozen=True):
    name: str  # In documents and parameters, and in `headers`.
    type: Any  # Of what a document may have; in a parameter it is text.
    text: Callable[[Any], str]  # What is kept of it. Raises `ProtocolError` for what is wrong.
    schema: dict[str, Any]  # What clients may give, for OpenAPI,
    sentence: str  # and what it means.

    @property
    def key(self) -> bytes:
        """In `headers`."""
        return self.name.encode()

    @property
    def line(self) -> bytes:
        """The name of the header in a push."""
        return b"X-Penstock-" + self.key.title()


MESSAGE_FIELDS = {
    field.name: field
    for field in (
        MessageField(
            "timestamp",
            str | float,
            producer_time,
            {"type": ["string", "number"], "maxLength": 250, "minimum": 0, "maximum": 253402300799999},
            "When the producer made it: RFC 3339, or seconds (below 100000000000) or milliseconds since the epoch.",
        ),
    )
}
BY_KEY = {field.key: field for field in MESSAGE_FIELDS.values()}
