"""Finds the messages in the log that are also for other shards, and the versions that others answer for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from penstock.model.events import Logged
from penstock.model.kinds import Kind
from penstock.model.shard_events import Routed, Versioned
from penstock.model.values import Nanos
from penstock.storage.log.batch import Header, extent_bounds, records_of
from penstock.storage.log.decode import events_at


class Promised(NamedTuple):
    """Messages with the same topics that other shards want."""

    messages: Sequence[Logged]
    options: int


class NewVersions(NamedTuple):
    """Messages with consecutive sequences that are new versions."""

    queue: int
    sequence: int  # The first one.
    time: Nanos
    objects: list[int]
    keys: list[bytes]
    bodies: list[bytes]


def promised_in(header: Header, payload: bytes) -> Iterator[Promised | NewVersions]:
    """What a batch promises to others, one promise after the other."""
    records = records_of(header, payload)
    kinds = records["kind"]
    promises = np.flatnonzero((kinds == Kind.ROUTED) | (kinds == Kind.VERSIONED))
    if not len(promises):
        return
    logged = np.flatnonzero(kinds == Kind.LOGGED)
    places = zip(records["queue"][logged].tolist(), records["sequence"][logged].tolist(), strict=True)
    index = dict(zip(places, logged.tolist(), strict=True))
    bounds = extent_bounds(records)
    for _, event in events_at(header, payload, promises.tolist()):
        promise = cast("Routed | Versioned", event)
        chosen = [index[promise.queue, promise.sequence + at] for at in range(promise.messages)]
        if isinstance(promise, Routed):
            yield Promised([cast("Logged", each) for _, each in events_at(header, payload, chosen)], promise.options)
        else:
            yield _versions(promise, records[chosen], bounds[chosen].tolist(), payload)


def _versions(promise: Versioned, records: np.ndarray, starts: list[int], payload: bytes) -> NewVersions:
    sizes = zip(starts, records["body_bytes"].tolist(), records["key_bytes"].tolist(), strict=True)
    extents = [(start, start + body, start + body + key) for start, body, key in sizes]
    return NewVersions(
        promise.queue,
        promise.sequence,
        promise.time,
        records["object"].tolist(),
        [payload[key:end] for _, key, end in extents],
        [payload[start:key] for start, key, _ in extents],
    )
