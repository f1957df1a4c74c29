"""The story of a message, its trace and the lake's table: three readers of the same events that must agree."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.limits import NEVER_NS
from penstock.model.events import Event
from penstock.model.letters import SETTLES
from penstock.model.story import Stay, Story, fold
from penstock.model.values import Nanos, Place
from penstock.storage.arrow.columns import decode
from penstock.storage.arrow.names import Names
from penstock.storage.log.trace_index import Traces
from penstock.storage.log.traces import Tracer
from penstock.storage.log.view import Cursor, View
from tests.engine.test_model import EngineMachine, random_settings, random_step
from tests.support import lake_reference
from tests.support.effort import effort

STEPS = 200


@effort(8)
@given(st.integers(0, 1 << 32))
@example(305117)  # One of several consumers refuses a message, and then the queue goes.
@example(567)  # A consumer without a name extends its last delivery,
@example(785)  # or gives it back, and names it.
def test_document_trace_and_lake_agree_on_the_life_of_every_message(seed: int) -> None:
    random, machine = Random(seed), EngineMachine()
    try:
        machine.begin([random_settings(random) for _ in range(3)])
        for _ in range(STEPS):
            random_step(machine, random)
        machine.commit()
        compare(machine.log.view())
    finally:
        machine.teardown()


def compare(view: View) -> None:
    lake, names = lake_of(view)
    traces, seen = Traces(block_bytes=600), set[Place]()
    for place in lake:
        if place not in seen:
            story = fold(trace(traces, view, place))
            seen |= story.stays.keys()
            for stay in story.stays.values():
                assert facts_of(stay) == facts_in_lake(lake[stay.place])
                assert stay.ended != lake[stay.place]["queued"]
            assert consumers_of(story, names) == consumers_in_lake([lake[place] for place in story.stays])
    assert seen == lake.keys()


def trace(traces: Traces, view: View, place: Place) -> list[Event]:
    tracer = Tracer(traces, view, place)
    while tracer.step():
        pass
    return [event for _, event in tracer.trace().events]


def lake_of(view: View) -> tuple[dict[Place, lake_reference.Row], Names]:
    """The lake's messages by their places."""
    cursor, batches = Cursor(view.parts[0].base_position), []
    while found := cursor.read(view, 1 << 20):
        batches += found
    cursor.close()
    names = Names()
    events = pa.Table.from_batches([decode(batches, None, names)])
    headers = events.schema.get_field_index("headers")  # What the engine is tried with are no headers of a dialect.
    events = events.set_column(headers, "headers", pa.nulls(len(events), pa.binary()))
    messages = next(rows for name, rows in lake_reference.tables(events) if name == "messages")
    return {(row["queue_number"], row["sequence"]): row for row in messages}, names


def facts_of(stay: Stay) -> tuple[Any, ...]:
    expires_at = None if stay.expires_at == NEVER_NS else stay.expires_at
    return stay.letter, stay.receives, as_time(stay.completed), as_time(expires_at)


def facts_in_lake(row: lake_reference.Row) -> tuple[Any, ...]:
    return row["state"], row["receives"], row["completed"], row["expires_at"]


def as_time(time: Nanos | None) -> datetime | None:
    return None if time is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=time // 1000)


def consumers_of(story: Story, names: Names) -> tuple[Counter[Any], Counter[Any]]:
    """Deliveries and outcomes, by queue and consumer."""
    deliveries: Counter[Any] = Counter()
    outcomes: Counter[Any] = Counter()
    who = names.texts(np.array([each.consumer for each in story.consumptions], dtype=np.int64)).to_pylist()
    for each, consumer in zip(story.consumptions, who, strict=True):
        deliveries[each.queue, consumer] += each.fetched is not None
        outcomes[each.place[0], consumer] |= each.letter in [*SETTLES]
    return +deliveries, +outcomes


def consumers_in_lake(rows: list[lake_reference.Row]) -> tuple[Counter[Any], Counter[Any]]:
    deliveries: Counter[Any] = Counter()
    outcomes: Counter[Any] = Counter()
    for row in rows:
        for each in row["consumers"]:
            deliveries[row["queue_number"], each["consumer"]] += each["deliveries"]
            outcomes[row["queue_number"], each["consumer"]] |= each["confirmed"] is not None
    return +deliveries, +outcomes
