"""What one shard owes to others, as the events that make it up say it."""

from __future__ import annotations

from penstock.engine.engine import Engine
from penstock.model.shard_events import Routed, Versioned


def test_every_promise_in_the_log_counts_once_so_that_it_is_known_when_all_are_found() -> None:
    engine = Engine(shard=0, shards=2)
    for position, event in enumerate((Routed(1, 1, 1, 1, 0), Versioned(1, 1, 1, 1), Versioned(1, 1, 2, 3)), start=64):
        engine.evolve(event, position)
    assert (engine.couriers.routed, engine.couriers.promised) == (3, 66)
