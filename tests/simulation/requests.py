"""What clients of a simulated store ask, and what must be true of each answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, TypeVar

from penstock.broker.writer.port import Pending
from penstock.errors import Reason
from penstock.limits import SECOND_NS
from penstock.model.answers import Answer, Delivery, Done, Published, Pulled, Receipt, Refused, Repeated
from penstock.model.commands import (
    Command,
    Fetch,
    Finish,
    FinishMany,
    NewMessage,
    Publish,
    PublishInTurn,
    PublishOnce,
    PublishTopics,
    Pull,
    Settle,
)
from penstock.model.values import Nanos, Stage
from tests.simulation.asked import bodies_in
from tests.simulation.everywhere import BrokenPromiseError, Everywhere, promise
from tests.simulation.ledger import Ledger
from tests.simulation.scheduler import VirtualTime

if TYPE_CHECKING:
    from tests.simulation.clients import Client

START_NS = 1_700_000_000 * SECOND_NS
TRACE_LINES_MAX = 60


@dataclass(eq=False)
class Request:
    number: int
    client: Client
    command: Command
    stage: Stage
    run: int  # Which run of the broker was asked.
    asked_at: Nanos
    worker: int = 0
    offset: int | None = None  # Where the log ended when it was decided; None while it waits for a message.
    pending: Pending | None = None
    failures: int = 0  # How often the log had failed before.


class Requests:
    """A world in which clients ask."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.time = VirtualTime(self.random, START_NS)
        self.everywhere = Everywhere()
        self.asked = self.everywhere.asked
        self.numbers = count()
        self.winding_up = False
        self.trace: list[tuple[Nanos, str]] = []
        self.open: dict[int, Request] = {}  # Asked, and not yet answered.
        self.answers = self.unknown = 0
        self._request_numbers = count(1)

    # What each world has of its own

    def ask(self, client: Client, command: Command, stage: Stage) -> Request:
        raise NotImplementedError

    def ledger_of(self, queue: int | str) -> Ledger:
        """Of the shard that has a queue, by its number or name."""
        raise NotImplementedError

    def check_unavailable(self, request: Request) -> None:
        """Nothing is refused as unavailable without a reason."""
        raise NotImplementedError

    def check_stage(self, request: Request) -> None:
        """Nothing is answered before all that it may tell of has reached the stage."""

    # Requests

    def open_request(self, client: Client, command: Command, stage: Stage, run: int) -> Request:
        request = Request(next(self._request_numbers), client, command, stage, run, self.time.now)
        self.open[request.number] = request
        self.note(f"#{request.number} {client.name} asks {command} at {stage.name}")
        self.asked.remember(command)
        self.everywhere.refused.difference_update(bodies_in(command))  # Asked again.
        return request

    def hang_up(self, request: Request) -> bool:
        """The client goes away while it waits: it gets nothing, and so loses nothing."""
        if request.number not in self.open or request.pending is None or not request.pending.is_waiting:
            return False
        request.pending.cancel()
        self.everywhere.lose_sight(request.command)
        del self.open[request.number]
        self.note(f"#{request.number} hung up")
        return True

    def forget(self, requests: list[Request]) -> None:
        """Their connections broke: nobody knows what became of them."""
        for request in requests:
            del self.open[request.number]
            self.everywhere.lose_sight(request.command)
            request.client.answered(request, None)

    def answer(self, request: Request, answer: Answer) -> None:
        try:
            self._check(request, answer)
        except Exception as error:
            raise BrokenPromiseError(f"{request}: {error!r}") from error
        is_unknown = isinstance(answer, Refused) and answer.reason is Reason.OUTCOME_UNKNOWN
        self.time.after(0, lambda: request.client.answered(request, None if is_unknown else answer))

    def _check(self, request: Request, answer: Answer) -> None:
        self.note(f"#{request.number} is answered {answer}")
        promise(request.number in self.open, f"answered twice: {request}")
        del self.open[request.number]
        self.answers += 1
        self.read_disks()
        if isinstance(answer, Refused) and answer.reason in (Reason.UNAVAILABLE, Reason.OUTCOME_UNKNOWN):
            self.check_unavailable(request)
            if answer.reason is Reason.UNAVAILABLE:
                self.everywhere.refuse(request.command)
            else:
                self.unknown += 1
                self.everywhere.lose_sight(request.command)
        else:
            self.check_stage(request)
            if request.stage is Stage.SYNC:
                self._check_answer(request.command, answer, request.asked_at)

    def read_disks(self) -> None:
        raise NotImplementedError

    def _check_answer(self, command: Command, answer: Answer, asked_at: Nanos) -> None:
        match command:
            case Publish() if isinstance(answer, Sequence):
                self._check_published(command, answer)
            case PublishInTurn() if isinstance(answer, Sequence):
                for publish, receipts in zip(command.publishes, answer, strict=False):
                    if isinstance(publish, Publish) and isinstance(receipts, Sequence):
                        self._check_published(publish, receipts)
            case PublishOnce() if isinstance(answer, Repeated | Sequence):
                published = answer.published if isinstance(answer, Repeated) else answer
                for each, message in zip(published, command.publish.messages, strict=True):
                    assert isinstance(each, Published)
                    self._check_version(each, message, asked_at)
            case PublishTopics() if isinstance(answer, Sequence):
                for each, message in zip(answer, command.messages, strict=True):
                    assert isinstance(each, Published)
                    self._check_version(each, message, asked_at)
            case Settle(outcome="success") | Finish() if isinstance(answer, Done):
                self.ledger_of(command.queue).finish((command.queue, command.sequence), self.time.now)
            case FinishMany() if isinstance(answer, Sequence):
                for finish, done in zip(command.finishes, answer, strict=True):
                    self._check_answer(finish, done, asked_at)  # type: ignore[arg-type]
            case Fetch() if isinstance(answer, Sequence):
                promise(len(answer) <= command.count, f"more than asked for: {command}")
                for delivery in answer:
                    assert isinstance(delivery, Delivery)
                    self.ledger_of(command.queue).deliver(delivery, command)
            case Pull() if isinstance(answer, Pulled):
                self._check_pulled(command, answer)
            case _:
                pass

    def _check_version(self, published: Published, message: NewMessage, asked_at: Nanos) -> None:
        ledger = self.ledger_of(published.queue)
        if message.key:
            ledger.acknowledge_version(published, message.body, asked_at, self.time.now)
        else:
            ledger.acknowledge(published, message.body)

    def _check_published(self, command: Publish, receipts: Sequence[object]) -> None:
        for receipt, message in zip(receipts, command.messages, strict=True):
            assert isinstance(receipt, Receipt)
            self.ledger_of(receipt.queue).acknowledge(receipt, message.body)

    def _check_pulled(self, command: Pull, answer: Pulled) -> None:
        for drawn in answer.drawn:
            self.ledger_of(drawn.queue).receive(command.receiver, drawn)
        wrong = {(each.queue, each.sequence) for each in answer.wrong}
        for queue, sequence, _ in command.results:
            if queue == "kept" and (queue, sequence) not in wrong:
                self.ledger_of(queue).accept(command.receiver, queue, sequence)

    # Running

    def step(self) -> None:
        raise NotImplementedError

    def pass_time(self, duration: Nanos) -> None:
        end = self.time.now + duration
        self.time.at(end, lambda: None)
        while self.time.now < end:
            self.step()

    def close(self) -> None:
        """The world ends."""

    # When it goes wrong

    def note(self, what: str) -> None:
        self.trace.append((self.time.now, what))
        if len(self.trace) > 4 * TRACE_LINES_MAX:
            del self.trace[: 2 * TRACE_LINES_MAX]

    def story(self) -> str:
        lines = [f"{(now - START_NS) / SECOND_NS:12.6f}  {what[:200]}" for now, what in self.trace[-TRACE_LINES_MAX:]]
        return "\n".join(lines)


World = TypeVar("World", bound=Requests)


class SimulationError(AssertionError):
    """A broken promise, with all that is needed to see it again."""


def lived(world: World, live: Callable[[], None], again: str) -> World:
    """A world at the end of its life. `again`: how to see it again."""
    try:
        live()
    except (Exception, BrokenPromiseError) as error:
        raise SimulationError(f"{world.story()}\n\n{type(error).__name__}: {error}\n\n{again}") from error
    finally:
        world.close()
    return world
