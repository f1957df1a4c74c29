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


def routed_in(header: Header, payload: bytes) -> Iterator[tuple[Logged, int]]:
    """The messages of a batch that are also for other shards, with their options."""
    records = records_of(header, payload)
    routed = np.flatnonzero(records["kind"] == Kind.ROUTED)
    if not len(routed):
        return
    logged = np.flatnonzero(records["kind"] == Kind.LOGGED)
    index = dict(zip(zip(*_places(records[logged]), strict=True), logged.tolist(), strict=True))
    for _, event in events_at(header, payload, routed.tolist()):
        promise = cast("Routed", event)
        places = [(promise.queue, promise.sequence + at) for at in range(promise.messages)]
        for _, message in events_at(header, payload, [index[place] for place in places]):
            yield cast("Logged", message), promise.options


def _places(records: np.ndarray) -> tuple[list[int], list[int]]:
    return records["queue"].tolist(), records["sequence"].tolist()
