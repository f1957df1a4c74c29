"""`penstock audit`: who has changed what, and what was refused."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, verb

if TYPE_CHECKING:
    from penstock.client import Client

_QUEUE = "_audit"
_POLL_SECONDS = 1.0
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_COLUMNS = ("time", "who", "from", "act", "target", "outcome", "details")


@verb
def audit(
    session: Session,
    who: Annotated[str | None, typer.Option(help="Only this identity; * stands for any text.")] = None,
    act: Annotated[str | None, typer.Option(help="Only this act, such as queue.delete or token.*")] = None,
    target: Annotated[str | None, typer.Option(help="Only what was done to this; * stands for any text.")] = None,
    since: Annotated[str | None, typer.Option(help="2026-11-16T12:00:00Z, or how long ago: 30m, 24h, 7d")] = None,
    refused: Annotated[bool, typer.Option("--refused", help="Only what was refused.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what happens next.")] = False,
) -> None:
    """Show who has changed queues, channels, schedules, tokens and messages, and what was refused."""
    wanted = {"who": who, "act": act, "target": target, "outcome": "refused" if refused else None}
    patterns = {name: pattern for name, pattern in wanted.items() if pattern is not None}
    with session.client() as client:
        reading = _Reading(client, _moment(since))
        _show(session, [record for record in reading.next() if _matches(record, patterns)], first=True)
        while follow:
            time.sleep(_POLL_SECONDS)
            _show(session, [record for record in reading.next() if _matches(record, patterns)])


class _Reading:
    """Reads records once each, in their order."""

    def __init__(self, client: Client, since: str | None) -> None:
        self._client = client
        self._since = since
        self._sequence = 0

    def next(self) -> Iterator[dict[str, Any]]:
        """The records since the last call."""
        import msgspec

        from penstock.client.errors import QueueNotFound

        try:
            for found in self._client.search(queue=_QUEUE, since=self._since):
                if found.sequence > self._sequence:
                    self._sequence, self._since = found.sequence, found.created.isoformat()
                    yield msgspec.json.decode(found.body)
        except QueueNotFound:
            return  # Nothing was recorded yet.


def _moment(since: str | None) -> str | None:
    """The time that `--since` names, or counts back to."""
    span = _SPAN.fullmatch(since or "")
    if span is None:
        return since
    try:
        return (datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})).isoformat()
    except OverflowError:
        raise CommandError(f"--since {since} is too long ago", Exit.USAGE) from None


def _matches(record: dict[str, Any], patterns: dict[str, str]) -> bool:
    return all(fnmatchcase(record[name], _literal(pattern)) for name, pattern in patterns.items())


def _literal(pattern: str) -> str:
    """Only the star is a wildcard."""
    return re.sub(r"([\[?])", r"[\1]", pattern)


def _show(session: Session, records: list[dict[str, Any]], *, first: bool = False) -> None:
    if session.as_json:
        for record in records:
            output.emit(record)
    elif first:
        output.table(_COLUMNS, [_row(record) for record in records])
    else:
        for record in records:
            output.styled(("  ".join(map(str, _row(record))), ""))


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    when = datetime.fromisoformat(record["time"])
    source = " ".join(part for part in (record["address"], record["dialect"]) if part)
    target = f"{record['target']} {record.get('message', '')}".strip()
    outcome = record.get("code") or record["outcome"]
    return f"{when:%Y-%m-%d %H:%M:%S}", record["who"], source, record["act"], target, outcome, _details(record)


def _details(record: dict[str, Any]) -> str:
    """Each setting that has changed, and how often something was refused."""
    before, after = record.get("before", {}), record.get("after", {})
    words = [_change(name, before, after) for name in before | after]
    if "since" in record:
        words.append(f"{record.get('count', 1):,} more since {record['since'][11:19]}")
    return ", ".join(words)


def _change(name: str, before: dict[str, Any], after: dict[str, Any]) -> str:
    values = [settings[name] for settings in (before, after) if name in settings]
    return f"{name} {' → '.join('none' if value is None else output.shown(value) for value in values)}"
