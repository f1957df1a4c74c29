"""Finds the messages in the log that are also for other shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from penstock.model.events import Logged
from penstock.model.kinds import Kind
from penstock.model.shard_events import Routed
from penstock.storage.log.batch import Header, records_of
from penstock.storage.log.decode import events_at


def routed_in(header: Header, payload: bytes) -> Iterator[tuple[list[Logged], int]]:
    """The messages of a batch that are also for other shards: for each promise those with the same topics, and their
    options."""
    records = records_of(header, payload)
    routed = np.flatnonzero(records["kind"] == Kind.ROUTED)
    if not len(routed):
        return
    logged = np.flatnonzero(records["kind"] == Kind.LOGGED)
    places = zip(records["queue"][logged].tolist(), records["sequence"][logged].tolist(), strict=True)
    index = dict(zip(places, logged.tolist(), strict=True))
    for _, event in events_at(header, payload, routed.tolist()):
        promise = cast("Routed", event)
        chosen = [index[promise.queue, promise.sequence + at] for at in range(promise.messages)]
        yield [cast("Logged", message) for _, message in events_at(header, payload, chosen)], promise.options
