"""A shard, wherever it is: in this worker or in another one, and elsewhere when it has moved."""

from __future__ import annotations

from penstock.broker.writer.port import ClientPort


class ShardPort:
    """Its methods are those of the port that it leads to, so that a command takes no further step."""

    def __init__(self, target: ClientPort) -> None:
        self.lead_to(target)

    def lead_to(self, target: ClientPort) -> None:
        self.submit, self.submit_as, self.refusal = target.submit, target.submit_as, target.refusal
        self.decide_collected, self.waiting = target.decide_collected, target.waiting
        self.hindrance, self.ask = target.hindrance, target.ask
        self.when, self.reach = target.when, target.reach
        self.watch, self.follow = target.watch, target.follow
