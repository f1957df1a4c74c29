"""What became of commands that came from other processes, until they have the answers.

A process that loses the connection to the one with this shard asks whoever has the shard next. So what a command has
done is logged in the batch in which it was decided: if it is not here, it was not done. Each batch has one record a
process. Of what is in a record, the writer knows more (`broker/writer/outcomes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.decoding import decode_json
from penstock.engine.rows import Columns
from penstock.limits import OUTCOMES_KEPT_SECONDS, SECOND_NS
from penstock.model.shard_events import Decided
from penstock.model.values import Nanos


class Asker(msgspec.Struct, array_like=True):
    """A process that asks."""

    time: Nanos = 0  # Of the newest record.
    forgotten: int = 0  # How many records are forgotten.
    records: list[bytes] = []  # The oldest first.

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self.forgotten + len(self.records)


class Outcomes:
    def __init__(self) -> None:
        self.by_origin: dict[bytes, Asker] = {}  # The one with the newest record is last.

    def note(self, event: Decided) -> None:
        asker = self.by_origin.pop(event.origin, None) or Asker()
        del asker.records[: event.forgotten]
        asker.forgotten += event.forgotten
        asker.records.append(event.outcomes)
        asker.time = event.time
        self.by_origin[event.origin] = asker
        self._forget_before(event.time - OUTCOMES_KEPT_SECONDS * SECOND_NS)

    def _forget_before(self, time: Nanos) -> None:
        """Processes that are gone do not ask any more."""
        while (oldest := next(iter(self.by_origin))) and self.by_origin[oldest].time < time:
            del self.by_origin[oldest]

    def sections(self) -> Iterator[tuple[str, bytes, Columns]]:
        if self.by_origin:
            yield "outcomes", msgspec.json.encode(list(self.by_origin.items())), ()

    def restore(self, facts: bytes) -> None:
        self.by_origin = dict(decode_json(facts, list[tuple[bytes, Asker]]))
