"""Finds the messages in the log that are also for other shards, and the versions that others answer for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from penstock.model.events import Logged
from penstock.model.kinds import Kind
from penstock.model.shard_events import Routed, Versioned
from penstock.storage.log.batch import Header, records_of
from penstock.storage.log.decode import events_at


class Promised(NamedTuple):
    """Messages that other shards are to hear of."""

    messages: Sequence[Logged]
    options: int = 0
    are_versions: bool = False  # Or else copies: all have the same topics.


def promised_in(header: Header, payload: bytes) -> Iterator[Promised]:
    """What a batch promises to others, one promise after the other."""
    records = records_of(header, payload)
    kinds = records["kind"]
    promises = np.flatnonzero((kinds == Kind.ROUTED) | (kinds == Kind.VERSIONED))
    if not len(promises):
        return
    logged = np.flatnonzero(kinds == Kind.LOGGED)
    places = zip(records["queue"][logged].tolist(), records["sequence"][logged].tolist(), strict=True)
    index = dict(zip(places, logged.tolist(), strict=True))
    for _, event in events_at(header, payload, promises.tolist()):
        promise = cast("Routed | Versioned", event)
        chosen = [index[promise.queue, promise.sequence + at] for at in range(promise.messages)]
        messages = [cast("Logged", message) for _, message in events_at(header, payload, chosen)]
        if isinstance(promise, Routed):
            yield Promised(messages, promise.options)
        else:
            yield Promised(messages, are_versions=True)
