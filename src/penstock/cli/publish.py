"""`penstock publish`: send a message, a file, or every line of a pipe."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer

from penstock.cli import messages, output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, complete_queue, verb
from penstock.limits import BODY_BYTES_MAX

if TYPE_CHECKING:
    from penstock.client import Sent

_READ_BYTES = 1 << 20


@verb
def publish(
    session: Session,
    queue: Annotated[
        str | None,
        typer.Argument(help="The queue. Leave it out if there is a --topic.", autocompletion=complete_queue),
    ] = None,
    message: Annotated[
        str | None, typer.Argument(help="The message; @FILE for the content of a file; - or nothing for a pipe.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Every line is a message.")] = False,
    topic: Annotated[list[str] | None, typer.Option(help="Publish to this topic. May be repeated.")] = None,
    delay: Annotated[float | None, typer.Option(min=0, help="Seconds until it is ready.")] = None,
    priority: Annotated[int, typer.Option(min=0, help="Higher first.")] = 0,
    key: Annotated[str | None, typer.Option(help="Which one of the objects it is about.")] = None,
    object_: Annotated[str | None, typer.Option("--object", help="What it is about.")] = None,
    expires: Annotated[float | None, typer.Option(min=0, help="Seconds until it expires.")] = None,
    header: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="May be repeated.")] = None,
    content_type: Annotated[str | None, typer.Option("--type", help="Such as application/json.")] = None,
    wait: Annotated[
        Literal["sync", "taken", "done"], typer.Option(help="On disk, taken by a consumer, or done.")
    ] = "sync",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for that.")] = 30.0,
) -> None:
    """Publish messages, and print their ids. When it ends, they are on disk.

    With --wait done, the outcome and the result follow the id, and the exit code is 1 if it was no success.
    """
    queue, source = _places(queue, message, topic)
    facts: dict[str, Any] = {
        "delay": delay,
        "priority": priority,
        "object": object_,
        "expires": expires,
        "headers": _headers(header),
        "content_type": content_type,
    }
    if lines and (key or wait != "sync"):
        raise CommandError("--key and --wait are for one message, not for --lines", Exit.USAGE)
    with session.client() as client, _opened(source) as stream:
        if lines:
            publish_many = partial(client.publish_many_to, topic) if topic else partial(client.publish_many, queue)
            _publish_lines(session, partial(publish_many, **facts), stream)
        else:
            content = text_or_bytes(stream.read())
            if not content and stream is sys.stdin.buffer:
                raise CommandError("nothing came through the pipe; for an empty message write ''", Exit.USAGE)
            publish_one = partial(client.publish_to, topic) if topic else partial(client.publish, queue)
            sent = publish_one(content, key=key, wait=wait, timeout=timeout, **facts)
            _print(session, [sent])
            if wait == "done" and sent.outcome and not sent.outcome.success:
                raise typer.Exit(Exit.FAILED)


def _places(queue: str | None, message: str | None, topic: list[str] | None) -> tuple[str, str | None]:
    """The queue and the message. With a topic there is no queue, so the first argument is the message."""
    if topic and message is not None:
        raise CommandError("name a queue or a --topic, not both", Exit.USAGE)
    if topic:
        return "", queue
    if not queue:
        raise CommandError("name a queue, or a --topic", Exit.USAGE)
    return queue, message


@contextmanager
def _opened(source: str | None) -> Iterator[BinaryIO]:
    """Where the message is read from."""
    if source is None or source == "-":
        if sys.stdin.isatty() and source is None:
            raise CommandError("give a message, @FILE, or - to type it (end with Ctrl-D)", Exit.USAGE)
        yield sys.stdin.buffer
    elif source.startswith("@"):
        with _opened_file(Path(source[1:])) as stream:
            yield stream
    else:
        yield io.BytesIO(source.encode("utf-8", "surrogateescape"))


def _opened_file(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}", Exit.USAGE) from None


def _headers(given: list[str] | None) -> dict[str, str] | None:
    pairs = [each.partition("=") for each in given or []]
    if not all(name and separator for name, separator, _ in pairs):
        raise CommandError("write a header as NAME=VALUE", Exit.USAGE)
    return {name: value for name, _, value in pairs} or None


def text_or_bytes(data: bytes) -> str | bytes:
    """Text if it can be: the broker shows it as such."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _publish_lines(
    session: Session, publish_many: Callable[[list[str | bytes]], list[Sent]], stream: BinaryIO
) -> None:
    """What has arrived is published together: a slow pipe is not kept waiting, and a fast one goes in batches."""
    count = 0
    began = time.monotonic()
    with output.progress("publishing", size_of(stream), "bytes") as advance:
        read = 0
        for lines in chunks(stream):
            sent = publish_many([text_or_bytes(line) for line in lines])
            count += len(sent)
            read += sum(map(len, lines)) + len(lines)
            advance(read)
            if session.as_json:
                _print(session, sent)
    seconds = time.monotonic() - began
    output.say(f"{count:,} messages published in {seconds:.1f} s ({count / max(seconds, 0.001):,.0f} a second)")


def chunks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines as they arrive, many at a time."""
    rest = b""
    while data := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > BODY_BYTES_MAX:
            raise CommandError(f"a line has more than {BODY_BYTES_MAX} bytes; leave out --lines for a whole file")
        if lines:
            yield lines
    if rest:
        yield [rest]


def size_of(stream: BinaryIO) -> int | None:
    """How much there is to read, if it is a file."""
    path = getattr(stream, "name", None)
    return Path(path).stat().st_size if isinstance(path, str) and Path(path).is_file() else None


def _print(session: Session, sent: list[Sent]) -> None:
    for each in sent:
        outcome = each.outcome
        if session.as_json:
            found = {"id": each.id, "state": each.state, "queues": each.queues, "channels": each.channels}
            output.emit(found | ({"outcome": messages.outcome_document(outcome)} if outcome else {}))
        else:
            print(each.id, *(messages.outcome_words(outcome) if outcome else []))
