"""All shards of a store as one writer: each command goes where it belongs, and parts are joined."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock.broker.shard_map import ShardMap
from penstock.broker.writer.port import ClientPort, Lost, Pending, Reply, Report, nobody
from penstock.cluster.routing.claims import Claim, needs_claim
from penstock.cluster.routing.cut_commands import Destination, Parts
from penstock.cluster.routing.destinations import destination
from penstock.cluster.routing.followed import Followed, FollowedShard
from penstock.cluster.routing.questions import Questions
from penstock.cluster.routing.search_away import BY_ID, BY_IDS, follow, follow_each
from penstock.errors import Reason
from penstock.limits import PART_RETRY_SECONDS, SECOND_NS
from penstock.model.answers import Answer, Done, Refused
from penstock.model.client import Cancelable, Client
from penstock.model.commands import Command, PublishOnce
from penstock.model.permissions import forbidden
from penstock.model.values import Stage


def _unknown(_: int) -> None:
    """The name of a queue, by its number: only its shard knows that."""


class Router:
    """A `ClientPort` for clients of any shard."""

    def __init__(
        self,
        shards: ShardMap,
        ports: Sequence[ClientPort],
        questions: Questions | None = None,
        ask_again_seconds: float = 10.0,
    ) -> None:
        """`ports`: one a shard. `questions`: who asks them, if there is something to say about that.
        `ask_again_seconds`: how long a part is asked again, when others are done."""
        assert len(ports) == shards.shards
        self._shards = shards
        self._ports = ports
        self.ask = (questions or Questions(shards, ports)).ask
        self.ask_again_seconds = ask_again_seconds
        self._followed = [FollowedShard(port) for port in ports]

    def submit(self, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        return self._route(None, command, reply, stage)

    def submit_as(self, client: Client, command: Command, reply: Reply, stage: Stage = Stage.SYNC) -> Pending | None:
        return self._route(client, command, reply, stage)

    def _route(self, client: Client | None, command: Command, reply: Reply, stage: Stage) -> Pending | None:
        found = destination(command, self._shards)
        if client and isinstance(found, Parts) and forbidden(client.access, command, _unknown):
            return self._pass(client, stage, self._refusing(found), command, reply)
        if type(command) is PublishOnce and needs_claim(command, found, self._shards):
            port, publish = (
                self._ports[self._shards.of_key(command.key)],
                partial(self._carry_out, client, found, command),
            )
            Claim(command, port, publish, found, self.ask_again_seconds).begin(reply, stage)
            return None
        return self._carry_out(client, found, command, reply, stage)

    def _carry_out(
        self, client: Client | None, found: Destination, command: Command, reply: Reply, stage: Stage
    ) -> Pending | None:
        if isinstance(found, Parts):
            if hindrance := self._hindrance(found):
                reply(hindrance)
                return None
            return _Joint(found, partial(self._send, client), reply, stage, self.ask_again_seconds).begin()
        return self._send(client, found, command, reply, stage)

    def _refusing(self, parts: Parts) -> int:
        """A shard that refuses a command as a whole, and records that: also if others are away, none has to be there
        to know that the client may not do it."""
        shards = [shard for shard, _ in parts.commands]
        return next((shard for shard in shards if not self._ports[shard].hindrance()), shards[0])

    def _hindrance(self, parts: Parts) -> Refused | None:
        """Why not all of what belongs together can be carried out. It is better refused before a part of it is."""
        shards = [shard for shard, _ in parts.commands] if parts.belong_together else []
        return next((refused for shard in shards if (refused := self._ports[shard].hindrance())), None)

    def _send(
        self, client: Client | None, shard: int, command: Command, reply: Reply, stage: Stage
    ) -> Pending | None:
        if type(command) in BY_ID and len(self._ports) > 1:
            reply = follow(shard, self._ports, partial(self._pass, client, stage), command, reply)
        elif type(command) in BY_IDS and len(self._ports) > 1:
            reply = follow_each(shard, self._ports, partial(self._pass, client, stage), command, reply)
        return self._pass(client, stage, shard, command, reply)

    def _pass(
        self, client: Client | None, stage: Stage, shard: int, command: Command, reply: Reply
    ) -> Pending | None:
        port = self._ports[shard]
        return port.submit_as(client, command, reply, stage) if client else port.submit(command, reply, stage)

    def refusal(self, client: Client, command: Command) -> Refused | None:
        found = destination(command, self._shards)
        parts = found.commands if isinstance(found, Parts) else [(found, command)]
        refusals = (self._ports[shard].refusal(client, part) for shard, part in parts)
        return next((refused for refused in refusals if refused), None)

    def decide_collected(self) -> None:
        for port in self._ports:
            port.decide_collected()

    def when(self, stage: Stage, callback: Callable[[], None]) -> None:
        self.reach(stage, lambda answer: None if isinstance(answer, Refused) else callback())

    def reach(self, stage: Stage, reply: Reply) -> None:
        """Reached when all shards have."""
        answers: list[Answer] = []

        def reached(answer: Answer) -> None:
            answers.append(answer)
            if len(answers) == len(self._ports):
                reply(next((each for each in answers if isinstance(each, Refused)), Done()))

        for port in self._ports:
            port.reach(stage, reached)

    def watch(self, queue: str, wake: Callable[[], None]) -> Cancelable:
        return self._ports[self._shards.of_name(queue)].watch(queue, wake)

    def follow(self, queue: int, sequence: int, report: Report, lost: Lost = nobody) -> Cancelable:  # noqa: ARG002
        """Nothing is lost: the message is followed wherever it and its shard are."""
        return Followed(self._followed, self._shards.of_number(queue), (queue, sequence), report)

    def hindrance(self) -> Refused | None:
        return None  # Others may be carried out.

    def waiting(self, queue: str) -> int:
        return self._ports[self._shards.of_name(queue)].waiting(queue)


class _Joint:
    """A command that is cut into parts. When the first part that waits has its answer, the others are hurried: what
    they have by then belongs to the client too. A part whose shard is away hurries nobody, and is asked again; so is
    one that belongs together with others which are done."""

    def __init__(
        self,
        parts: Parts,
        send: Callable[..., Pending | None],
        reply: Reply,
        stage: Stage,
        ask_again_seconds: float,
    ) -> None:
        self._parts = parts
        self._ask_again_seconds = ask_again_seconds
        self._send = send
        self._reply = reply
        self._stage = stage
        self._answers: dict[int, Any] = {}  # By the index of the part.
        self._pending: dict[int, Pending] = {}
        self._sent = 0
        self._hurried = self._canceled = False
        self._timers: dict[int, asyncio.TimerHandle] = {}  # Of parts that are asked again.
        self._wait_ns = max(getattr(part, "wait_ns", 0) for _, part in parts.commands)
        self._waits_until = asyncio.get_running_loop().time() + self._wait_ns / SECOND_NS if self._wait_ns else 0.0
        self._half_done_until = 0.0  # How long what is not done is asked again, after the rest was.

    def begin(self) -> Pending | None:
        self._go_on()
        return self if self._wait_ns else None

    def _go_on(self) -> None:
        """Send the next of those that go in turn, or all of the rest."""
        first, last = self._sent, len(self._parts.commands)
        self._sent = first + 1 if first < self._parts.in_turn else last
        for index in range(first, self._sent):
            part = self._parts.commands[index][1]
            self._send_part(index, self._parts.after(part, [self._answers[each] for each in sorted(self._answers)]))
        if self._hurried:
            self.give_up()

    def _send_part(self, index: int, part: Command) -> None:
        shard = self._parts.commands[index][0]
        pending = self._send(shard, part, partial(self._answered, index), self._stage)
        if pending and index not in self._answers:
            self._pending[index] = pending

    def _answered(self, index: int, answer: Any) -> None:
        if self._canceled:
            return
        self._answers[index] = answer
        self._pending.pop(index, None)
        is_in_turn, is_last = index < self._parts.in_turn, len(self._answers) == len(self._parts.commands)
        answers = [self._answers[each] for each in sorted(self._answers)]
        if is_last and self._parts.belong_together and (undone := self._undone()):
            for each in undone:
                self._timers[each] = asyncio.get_running_loop().call_later(PART_RETRY_SECONDS, self._ask_again, each)
        elif is_last or (is_in_turn and not self._parts.goes_on(answers)):
            self._stop_asking()
            self._reply(self._parts.join(answers))
        elif is_in_turn:
            self._go_on()
        elif self._parts.again(answer) and not self._hurried:
            self._timers[index] = asyncio.get_running_loop().call_later(PART_RETRY_SECONDS, self._ask_again, index)
        elif not self._hurried:
            self.give_up()

    def _undone(self) -> list[int]:
        """The parts of which nothing was done, if others were, and there is time to ask again."""
        now = asyncio.get_running_loop().time()
        undone = [index for index, answer in self._answers.items() if _is_unavailable(answer)]
        if not 0 < len(undone) < len(self._answers):
            return []
        self._half_done_until = self._half_done_until or now + self._ask_again_seconds
        return undone if now < self._half_done_until else []

    def _ask_again(self, index: int) -> None:
        """For the rest of the time. The part that has waited from the beginning ends the waiting of all."""
        del self._timers[index], self._answers[index]
        left = self._waits_until - asyncio.get_running_loop().time()
        part: Any = self._parts.commands[index][1]
        if self._wait_ns:
            part = replace(part, wait_ns=max(0, round(left * SECOND_NS)))
        self._send_part(index, part)

    def _stop_asking(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    @property
    def is_waiting(self) -> bool:
        return any(pending.is_waiting for pending in self._pending.values())

    def cancel(self) -> None:
        self._canceled = True
        self._stop_asking()
        for pending in list(self._pending.values()):
            pending.cancel()

    def give_up(self) -> None:
        self._hurried = True
        self._stop_asking()
        for pending in list(self._pending.values()):
            pending.give_up()


def _is_unavailable(answer: Any) -> bool:
    return isinstance(answer, Refused) and answer.reason is Reason.UNAVAILABLE
