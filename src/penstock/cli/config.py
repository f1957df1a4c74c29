"""`penstock config`: the profiles of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from penstock.cli import output, profiles
from penstock.cli.exits import CommandError, Exit
from penstock.cli.session import Session, verb

app = typer.Typer(help="Show and write the profiles of this command line.", no_args_is_help=True)

_START = """\
# Brokers that `penstock` can talk to. Choose one with --profile NAME or PENSTOCK_PROFILE.
# Flags and variables of the environment, such as --url and PENSTOCK_URL, come before what is written here.
default = "local"

[profiles.local]
url = "{url}"

# [profiles.production]
# url = "https://queue.example.org"
# token = "…"
# ca = "/etc/penstock/authority.pem"
"""


@app.command()
@verb
def show(session: Session) -> None:
    """Show which broker the verbs talk to, and why."""
    target = session.target
    token = output.hidden(target.token.text)
    values = {
        "url": target.url,
        "token": target.token._replace(text=token),
        "profile": target.profile,
        **target.trust,
    }
    document = profiles.read(profiles.config_path())
    if session.as_json:
        found = {name: {"value": value.text or None, "source": value.source} for name, value in values.items()}
        output.emit({**found, "file": str(profiles.config_path()), "profiles": sorted(document.get("profiles", {}))})
        return
    output.table(("setting", "value", "from"), [(name, value.text, value.source) for name, value in values.items()])
    for name in sorted(document.get("profiles", {})):
        output.say(f"profile {name}: {document['profiles'][name].get('url', profiles.DEFAULT_URL)}")


@app.command()
def path() -> None:
    """Print where the profiles are."""
    print(profiles.config_path())


@app.command()
def init(
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
) -> None:
    """Write a file with one profile to start from. Only you can read it, since it may hold tokens."""
    place = profiles.config_path()
    if place.exists() and not force:
        raise CommandError(f"{place} is already there; edit it, or replace it with --force", Exit.IN_USE)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.touch(mode=0o600)
    place.write_text(_START.format(url=profiles.DEFAULT_URL), "utf-8")
    print(place)
