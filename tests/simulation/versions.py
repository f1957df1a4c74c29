"""What is known of the versions of objects over all shards: from the disks, and from what clients were told."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from penstock.model.values import Nanos
from tests.simulation.asked import Place

Key = tuple[str, bytes]


@dataclass
class Versions:
    bodies: dict[Place, bytes]
    learned: dict[Key, list[Place]] = field(default_factory=dict)  # As the shard that answers for the key has them.
    logged: dict[Key, set[Place]] = field(default_factory=dict)  # Messages that were queued, wherever.
    equals: dict[Place, tuple[Key, Place]] = field(default_factory=dict)  # Of unchanged messages: what they equal.
    asked_at: dict[Place, Nanos] = field(default_factory=dict)  # Of messages whose publishers know their ids.
    told_at: dict[Place, Nanos] = field(default_factory=dict)

    def log(self, key: Key, place: Place) -> None:
        self.logged.setdefault(key, set()).add(place)

    def learn(self, key: Key, place: Place) -> None:
        """A version is in the log of the shard that answers for its key."""
        self.learned.setdefault(key, []).append(place)

    def tell(self, place: Place, asked_at: Nanos, now: Nanos) -> None:
        self.asked_at[place], self.told_at[place] = asked_at, now

    def wrongs(self) -> list[str]:
        """When nothing is under way: what does not fit."""
        found = []
        for key in self.logged.keys() | self.learned.keys():
            chain = self.learned.get(key, [])
            if set(chain) != self.logged.get(key, set()) or len(set(chain)) < len(chain):
                found.append(f"the versions of {key} are {chain}, and {self.logged.get(key)} were queued")
            bodies = [self.bodies[place] for place in chain]
            if any(one == other for one, other in pairwise(bodies)):
                found.append(f"queued, and as the version before: {key}, {chain}")
            if not self._in_order(chain):
                found.append(f"versions in another order than they were acknowledged in: {key}, {chain}")
        found += [
            f"unchanged, and not as the newest version: {place}, {equal}"
            for place, equal in self.equals.items()
            if self._is_stale(place, *equal)
        ]
        return found

    def _in_order(self, chain: list[Place]) -> bool:
        """No version was acknowledged before one that comes before it was asked for."""
        told = [self.told_at[place] for place in chain if place in self.told_at]
        asked = [self.asked_at[place] for place in chain if place in self.told_at]
        return all(max(asked[: at + 1]) <= moment for at, moment in enumerate(told))

    def _is_stale(self, place: Place, key: Key, equal: Place) -> bool:
        """Whether another version was acknowledged before the message was published."""
        chain = self.learned.get(key, [])
        if equal not in chain:
            return True
        asked_at = self.asked_at.get(place)
        after = chain[chain.index(equal) + 1 :]
        return asked_at is not None and any(self.told_at.get(each, asked_at) < asked_at for each in after)
