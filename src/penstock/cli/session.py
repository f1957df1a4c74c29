"""What every verb that talks to a broker has in common: its options, and the client that they lead to."""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Callable
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from penstock.cli.exits import CommandError, Exit
from penstock.cli.profiles import DEFAULT_URL, KEYS, Target, target
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import Client

_CONNECT_SECONDS_MAX = 5.0
_COMPLETE_SECONDS_MAX = 1.0

_Url = Annotated[
    str | None, typer.Option("--url", help=f"The broker [env: PENSTOCK_URL, or the profile, or {DEFAULT_URL}]")
]
_Token = Annotated[str | None, typer.Option("--token", help="Its bearer token [env: PENSTOCK_TOKEN, or the profile]")]
_Profile = Annotated[
    str | None, typer.Option("--profile", help="A broker of the configuration file [env: PENSTOCK_PROFILE]")
]
_Ca = Annotated[
    str | None, typer.Option("--ca", help="Authority that vouches for the broker [env: PENSTOCK_CA, or the profile]")
]
_Certificate = Annotated[
    str | None,
    typer.Option("--certificate", help="Yours, if the broker asks [env: PENSTOCK_CERTIFICATE, or the profile]"),
]
_CertificateKey = Annotated[
    str | None,
    typer.Option("--certificate-key", help="Its key, if it is not in the same file [env: PENSTOCK_CERTIFICATE_KEY]"),
]
_Json = Annotated[bool, typer.Option("--json", help="For programs: JSON on standard output, and nothing else there.")]


def complete_queue(ctx: typer.Context, incomplete: str) -> list[str]:
    """The names of queues that begin so, for the shell. Nothing, if the broker does not say."""
    from penstock.client import Client

    try:
        where = target({key: ctx.params.get(key) for key in ("profile", *KEYS)})
        with Client(**where.options, timeout=_COMPLETE_SECONDS_MAX) as client:
            return [name for name in client.queue_names(incomplete) if name.startswith(incomplete)]
    except PenstockError:
        return []


QueueName = Annotated[str | None, typer.Argument(help="Only this queue.", autocompletion=complete_queue)]
_COMMON = [
    Parameter("url", Parameter.KEYWORD_ONLY, default=None, annotation=_Url),
    Parameter("token", Parameter.KEYWORD_ONLY, default=None, annotation=_Token),
    Parameter("profile", Parameter.KEYWORD_ONLY, default=None, annotation=_Profile),
    Parameter("ca", Parameter.KEYWORD_ONLY, default=None, annotation=_Ca),
    Parameter("certificate", Parameter.KEYWORD_ONLY, default=None, annotation=_Certificate),
    Parameter("certificate_key", Parameter.KEYWORD_ONLY, default=None, annotation=_CertificateKey),
    Parameter("as_json", Parameter.KEYWORD_ONLY, default=False, annotation=_Json),
]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


class Session:
    """The broker that a verb talks to, and how the verb answers."""

    def __init__(self, where: Target, as_json: bool) -> None:
        self.target = where
        self.as_json = as_json

    def client(self) -> Client:
        """A client of the broker, to be used in a `with`. Raises if nothing answers at its address."""
        from penstock.client import Client

        self.check_reachable()
        return Client(**self.target.options)

    def check_reachable(self) -> None:
        """A client tries again for a while. A person who mistyped an address should not wait so long."""
        url = self.target.url.text
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https"):
            raise CommandError(
                f"{url} ({self.target.url.source}) does not begin with http:// or https://; write http://{url}",
                Exit.USAGE,
            )
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
            socket.create_connection((parts.hostname or "", port), _CONNECT_SECONDS_MAX).close()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CommandError(
                f"the broker at {url} cannot be reached: {reason}; start one with `penstock serve`,"
                " or name another with --url, PENSTOCK_URL or --profile",
                Exit.UNREACHABLE,
            ) from None


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Give a verb the common options. Its first parameter is the `Session` that they make."""
    own = inspect.signature(function, eval_str=True)

    @functools.wraps(function)
    def run(*, as_json: bool, **given: Any) -> None:
        flags = {key: given.pop(key) for key in ("profile", *KEYS)}
        function(Session(target(flags), as_json), **given)

    mine = [each.replace(kind=Parameter.KEYWORD_ONLY) for each in list(own.parameters.values())[1:]]
    run.__signature__ = own.replace(parameters=[*mine, *_COMMON])  # type: ignore[attr-defined]
    return run
