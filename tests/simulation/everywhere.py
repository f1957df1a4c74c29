"""What is known of messages in all shards of a store, by their ids: a message may leave for another shard."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from penstock.model.commands import Command, Fetch, Pull
from penstock.model.values import Nanos
from tests.simulation.asked import Asked, Place, bodies_in
from tests.simulation.versions import Versions

LETTER = b"letter "  # So begins what is published to `letters`, and copied to `copies` and `echo`.
COPIES = ("copies", "echo")


class BrokenPromiseError(BaseException):
    """What the simulation is there to find. Not an `Exception`: the loop lives through those of its clients."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise BrokenPromiseError(what)


@dataclass
class Everywhere:
    asked: Asked = field(default_factory=Asked)
    bodies: dict[Place, bytes] = field(default_factory=dict)  # Of everything ever logged.
    leases_logged: set[tuple[Place, Nanos]] = field(default_factory=set)  # With the end of every delivery.
    successes: set[Place] = field(default_factory=set)
    finished: dict[Place, Nanos] = field(default_factory=dict)  # When a client had the answer to its finish.
    held: dict[Place, list[tuple[Nanos, Nanos]]] = field(default_factory=dict)  # Leases that consumers know of.
    queue_names: dict[int, str] = field(default_factory=dict)
    sent: Counter[Place] = field(default_factory=Counter)  # How often a message has left a shard,
    came: Counter[Place] = field(default_factory=Counter)  # and has come to another.
    letters: dict[str, set[bytes]] = field(default_factory=dict)  # By the name of the queue that has them.
    versions: Versions = field(init=False)
    stored: set[bytes] = field(default_factory=set)  # Every body that was ever logged as a new message.
    refused: set[bytes] = field(default_factory=set)  # Published once, and refused as not stored.
    popped: dict[str, set[Place]] = field(default_factory=dict)  # Handed over for good, by queue.
    popped_at: dict[tuple[str, int], Place] = field(default_factory=dict)  # The same, by queue and sequence there.
    got: set[Place] = field(default_factory=set)  # Those of them that a client had.
    popped_in_doubt: Counter[str] = field(default_factory=Counter)  # So many may have gone to nobody.
    _early: set[Place] = field(default_factory=set)  # Came, and has not left as far as the disks were read.

    def __post_init__(self) -> None:
        self.versions = Versions(self.bodies)

    def store(self, body: bytes) -> None:
        self.stored.add(body)
        promise(body not in self.refused, f"stored, and its publish was refused: {body!r}")

    def refuse(self, command: Command) -> None:
        """A client was told that nothing was done."""
        fresh = {body for body in bodies_in(command) if self.asked.bodies[body] == 1}
        promise(fresh.isdisjoint(self.stored), f"refused, though it is stored: {fresh & self.stored}")
        self.refused |= fresh

    def pop(self, queue: str, sequence: int, place: Place) -> None:
        self.popped.setdefault(queue, set()).add(place)
        self.popped_at[queue, sequence] = place

    def lose_sight(self, command: Command) -> None:
        """Nobody knows what became of a command."""
        match command:
            case Fetch(confirm=False):
                self.popped_in_doubt[command.queue] += command.count
            case Pull():
                for draw in command.draws:
                    self.popped_in_doubt[draw.queue] += draw.most
            case _:
                pass

    def leave(self, place: Place) -> None:
        self.sent[place] += 1
        self._compare(place)

    def come(self, place: Place, body: bytes) -> None:
        self.came[place] += 1
        known = self.bodies.setdefault(place, body)
        promise(known == body, f"another content has come: {place}")
        self._compare(place)

    def _compare(self, place: Place) -> None:
        (self._early.add if self.came[place] > self.sent[place] else self._early.discard)(place)

    def enter(self, queue: str, body: bytes) -> None:
        if body.startswith(LETTER):
            letters = self.letters.setdefault(queue, set())
            promise(body not in letters, f"twice in {queue}: {body!r}")
            letters.add(body)

    def check(self) -> None:
        """When the disks of all shards are read."""
        promise(not self._early, f"came without having left, or twice: {self._early}")

    def check_end(self) -> None:
        """When nothing is under way, everything that left has come, and each copy is there."""
        lost = {place: count for place, count in self.sent.items() if count != self.came[place]}
        promise(not lost, f"left, and came nowhere: {lost}")
        wrongs = self.versions.wrongs()
        promise(not wrongs, "; ".join(wrongs))
        for queue, places in self.popped.items():
            taken = len(places - self.got)
            most = self.popped_in_doubt[queue]
            promise(taken <= most, f"{taken} messages of {queue} were handed over to nobody, and {most} may be")
        for queue in COPIES:
            missing = self.letters.get("letters", set()) - self.letters.get(queue, set())
            promise(not missing, f"not in {queue}: {sorted(missing)[:5]}")
