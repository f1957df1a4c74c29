"""`penstock consume`: take messages, write them, and confirm them."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli import messages, output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, complete_queue, verb

if TYPE_CHECKING:
    from penstock.client import Client, Message

_BATCH = 1000
_FOLLOW_SECONDS = 20.0


class Form(StrEnum):
    """How messages are written."""

    LINES = "lines"
    JSON = "json"
    FILES = "files"


@verb
def consume(
    session: Session,
    queue: Annotated[str, typer.Argument(help="The queue or channel.", autocompletion=complete_queue)],
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="How many at most [default: 1]")] = None,
    every: Annotated[bool, typer.Option("--all", help="All, until the queue is empty.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="All, and wait for more until Ctrl-C.")] = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a message.")] = 0.0,
    form: Annotated[Form, typer.Option("--output", help="Lines, JSON lines, or a file each.")] = Form.LINES,
    directory: Annotated[Path, typer.Option("--dir", help="With --output files: where they go.")] = Path(),
    command: Annotated[
        str | None,
        typer.Option("--exec", metavar="COMMAND", help="Run it for each message, on its standard input."),
    ] = None,
    consumer: Annotated[str | None, typer.Option(help="The name of the consumer.")] = None,
) -> None:
    """Take messages and confirm each after it is written. With --exec, exit status 0 confirms and others give back.

    Exit code 7 if nothing was received.
    """
    limit = None if every or follow else count or 1
    limit = count if count else limit
    form = Form.JSON if session.as_json else form
    with session.client() as client:
        taking = _Taking(client, queue, consumer, _FOLLOW_SECONDS if follow else wait, follow)
        if command is None:
            taken = taking.write(limit, _writer(form, directory))
        else:
            taken = taking.execute(limit, command)
    if not taken:
        raise CommandError(f"{queue} has no message that is ready", Exit.TIMED_OUT)


class _Taking:
    """Messages of one queue, until there are enough of them or none comes in time."""

    def __init__(self, client: Client, queue: str, consumer: str | None, wait: float, follow: bool) -> None:
        self._client = client
        self._queue = queue
        self._consumer = consumer
        self._wait = wait
        self._follow = follow

    def write(self, limit: int | None, write: Callable[[Message], None]) -> int:
        """Write batches, and confirm each when the operating system has it. Returns how many."""
        taken = 0
        for batch in self._batches(limit):
            try:
                for message in batch:
                    write(message)
                sys.stdout.flush()
            except BaseException:
                _give_back(*batch)
                raise
            self._client.confirm_many(batch)
            taken += len(batch)
        return taken

    def _batches(self, limit: int | None) -> Iterator[list[Message]]:
        taken = 0
        while limit is None or taken < limit:
            most = _BATCH if limit is None else min(_BATCH, limit - taken)
            batch = self._client.receive(self._queue, most, wait=self._wait, consumer=self._consumer)
            if batch:
                yield batch
                taken += len(batch)
            elif not self._follow:
                return

    def execute(self, limit: int | None, command: str) -> int:
        """Run the command on one message after the other. The client extends the lease while it runs."""
        idle = None if self._follow else max(self._wait, 0.1)
        taken = failed = 0
        loop = self._client.consume(self._queue, prefetch=1, idle=idle, consumer=self._consumer)
        for message in islice(loop, limit):
            taken += 1
            code = _run(command, message)
            if code == 0:
                message.confirm()
            else:
                failed += 1
                output.say(f"message {message.id}: the command ended with {code}; the message is given back")
                _give_back(message)
        if failed:
            raise CommandError(f"the command failed for {failed} of {taken} messages")
        return taken


def _give_back(*batch: Message) -> None:
    from penstock.client.errors import Conflict

    for message in batch:
        with contextlib.suppress(Conflict):  # A delivery that was the last one has moved the message already.
            message.retry()


def _run(command: str, message: Message) -> int:
    facts = {
        "PENSTOCK_MESSAGE_ID": message.id,
        "PENSTOCK_MESSAGE_QUEUE": message.queue,
        "PENSTOCK_MESSAGE_KEY": message.key,
        "PENSTOCK_MESSAGE_TYPE": message.content_type,
        "PENSTOCK_MESSAGE_RECEIVES": str(message.receives),
    }
    return subprocess.run(["sh", "-c", command], input=message.body, env=os.environ | facts, check=False).returncode


def _writer(form: Form, directory: Path) -> Callable[[Message], None]:
    if form is Form.JSON:
        return lambda message: output.emit(messages.document(message))
    if form is Form.LINES:
        return _write_line
    directory.mkdir(parents=True, exist_ok=True)
    return lambda message: _write_file(directory, message)


def _write_line(message: Message) -> None:
    sys.stdout.buffer.write(message.body + b"\n")


def _write_file(directory: Path, message: Message) -> None:
    """The file is complete and on disk before the message is confirmed. Its name is the id of the message."""
    path = directory / message.id
    with path.with_suffix(".part").open("wb") as file:
        file.write(message.body)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".part").rename(path)
    print(path)
