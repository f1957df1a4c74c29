"""`penstock tokens`: who may use the broker, and for what."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import assignments, output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, Yes, verb
from penstock.cli.shards import directories

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.client.results import Token

app = typer.Typer(help="Create, show, change, rotate and delete tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The name of the token.")]
Data = Annotated[
    Path | None, typer.Option("--data", help="Instead of a running broker: the data directory of a stopped one.")
]
Scopes = Annotated[list[str] | None, typer.Option("--scope", help="publish,consume:orders*,jobs. May be repeated.")]
Days = Annotated[float | None, typer.Option("--days", min=0.001, help="It expires after so many days.")]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", metavar="NAME=VALUE", help="A quota of its own, 0 for no limit: docs/quotas.md lists them."
    ),
]
_SHARD_OF_TOKENS = 0
_TIME = "%Y-%m-%d %H:%M:%S"


@app.command()
@verb
def create(
    session: Session,
    name: Name,
    scope: Scopes = None,
    days: Days = None,
    limit: Limits = None,
    subject: Annotated[str, typer.Option("--subject", help="Of a client certificate, instead of a secret.")] = "",
    data: Data = None,
) -> None:
    """Create a token, and print its secret. It is not shown again."""
    if not scope:
        raise CommandError("say what the token is for: --scope publish:orders*", Exit.USAGE)
    with _client(session, data) as client:
        limits = assignments.parsed(limit)
        made = client.tokens.create(name, scope, expires=_expires(days), certificate=subject, limits=limits)
    _show_secret(session, made)


@app.command()
@verb
def rotate(
    session: Session,
    name: Name,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that the old secret stays valid.")] = 0,
    data: Data = None,
) -> None:
    """Give a token a new secret, and print it."""
    with _client(session, data) as client:
        _show_secret(session, client.tokens.rotate(name, grace=grace))


@app.command(name="list")
@verb
def list_(session: Session, data: Data = None) -> None:
    """List all tokens."""
    with _client(session, data) as client:
        tokens = client.tokens.list()
    if session.as_json:
        for each in tokens:
            output.emit(each)
        return
    rows = [(each.name, " ".join(each.scopes), _day(each.expires), _day(each.last_used)) for each in tokens]
    output.table(("name", "scopes", "expires", "last used"), rows)


@app.command()
@verb
def show(session: Session, name: Name, data: Data = None) -> None:
    """Show a token, without its secret."""
    with _client(session, data) as client:
        _show(session, client.tokens.get(name))


@app.command()
@verb
def change(
    session: Session,
    name: Name,
    scope: Scopes = None,
    days: Days = None,
    limit: Limits = None,
    never: Annotated[bool, typer.Option("--never", help="It does not expire.")] = False,
    data: Data = None,
) -> None:
    """Change the scopes, the expiry or limits of a token; what is not named stays. Its connections are closed."""
    changes: dict[str, Any] = {"scopes": scope} if scope else {}
    changes |= {"expires": _expires(days)} if days or never else {}
    with _client(session, data) as client:
        if limit:
            changes["limits"] = {**client.tokens.get(name).limits, **assignments.parsed(limit)}
        _show(session, client.tokens.change(name, **changes))


@app.command()
@verb
def delete(session: Session, name: Name, yes: Yes = False, data: Data = None) -> None:
    """End a token and close its connections."""
    with _client(session, data) as client:
        client.tokens.get(name)
        output.ask(f"Delete the token {name}?", yes)
        client.tokens.delete(name)
    output.done(session.as_json, {"revoked": name}, f"{name} is deleted")


def _client(session: Session, data: Path | None) -> Client:
    if data is None:
        return session.client()
    from penstock.embedded import local

    return local(directories(data, _SHARD_OF_TOKENS)[0].path)


def _expires(days: float | None) -> datetime | None:
    return datetime.now(UTC) + timedelta(days=days) if days else None


def _show_secret(session: Session, token: Token) -> None:
    """The secret alone on standard output, so that a script can keep it."""
    output.done(session.as_json, token, token.token or f"{token.name} is for the certificate {token.certificate}")


def _show(session: Session, token: Token) -> None:
    if session.as_json:
        output.emit(token)
    else:
        found = {name: getattr(token, name) for name in token.__struct_fields__}
        output.facts({name: value for name, value in found.items() if value not in (None, "", (), {})})


def _day(time: datetime | None) -> str | None:
    return f"{time:{_TIME}}" if time else None
