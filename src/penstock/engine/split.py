"""Divides the state of a store with one shard: each shard gets its queues, and what belongs to them.

A queue keeps its number, and the number says which shard has it. Extents, results and staged rows keep their
positions, because each shard has the log so far. All shards have all names; each forgets those that it does not use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.engine.couriers import Couriers
from penstock.engine.history import History
from penstock.engine.routing import roots
from penstock.engine.state import EngineState
from penstock.model.schedules import Schedule
from penstock.model.values import Cursor


class Division(NamedTuple):
    """How a store is divided."""

    shards: int
    shard_of: Callable[[str], int]  # The shard of a queue, by its name.
    offset: int  # Where the log ends that all shards have in common.

    def of_number(self, number: int) -> int:
        return (number - 1) % self.shards


def part_of(state: EngineState, shard: int, division: Division, history: History) -> EngineState:
    """The part of one shard, for a snapshot of it. It shares its queues with the whole, so neither may change."""
    part = EngineState(history, shard=shard, shards=division.shards)

    def is_mine(number: int) -> bool:
        return division.of_number(number) == shard

    part.time, part.names = state.time, state.names
    part.last_queue = state.last_queue - (state.last_queue - 1 - shard) % division.shards
    part.queues = {number: queue for number, queue in state.queues.items() if is_mine(number)}
    part.moved = {origin: place for origin, place in state.moved.items() if is_mine(place[0])}
    part.reasons = state.reasons.part(is_mine)
    part.answered = state.answered.part(is_mine)
    part.schedules = state.schedules.part(lambda each: division.shard_of(_target(each)) == shard)
    part.couriers = _couriers(state, shard, division)
    if shard == 0:
        part.staging, part.tokens = state.staging, state.tokens
    return part


def _target(schedule: Schedule) -> str:
    """The queue that a schedule publishes to first."""
    return schedule.queue or roots(schedule.topics, schedule.object)[0]


def _couriers(state: EngineState, shard: int, division: Division) -> Couriers:
    """As if all moved messages had been taken to their shards before the division. Nothing else is owed."""
    couriers = Couriers()
    others = set(range(division.shards)) - {shard}
    couriers.cursors = {other: Cursor(division.offset, 0) for other in sorted(others)}
    # The events so far, which every shard has, are about queues of all.
    elsewhere = [number for number in state.queues if division.of_number(number) != shard]
    couriers.origins = {number: state.queues[number].name for number in elsewhere}
    for (origin, _), (now_in, _) in state.moved.items():
        there = division.of_number(now_in)
        if division.of_number(origin) == shard != there:
            couriers.away.setdefault(origin, {})[there] = 0
    return couriers
