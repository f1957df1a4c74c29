"""The command line: one file a verb."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.extras import how_to_install
from penstock.cli.serve import serve
from penstock.errors import ConfigError, InUseError, PenstockError

app = typer.Typer(
    name="penstock",
    help="A durable message queue that five kinds of client already know.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # Its commands inherit them.
    pretty_exceptions_enable=False,
)
app.command()(serve)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if show:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


def main() -> None:
    if sys.argv[1:2] != ["serve"]:  # A broker starts without the libraries that only the other verbs need.
        from penstock.cli.log import app as log
        from penstock.cli.pipeline import app as pipeline
        from penstock.cli.sql import sql
        from penstock.cli.up import up

        app.command()(up)
        app.command()(sql)
        app.add_typer(log, name="log")
        app.add_typer(pipeline, name="pipeline")
    try:
        app()
    except ConfigError as error:
        sys.exit(_complain(error, 2))
    except InUseError as error:
        sys.exit(_complain(error, 3))
    except PenstockError as error:
        sys.exit(_complain(error, 1))
    except ImportError as error:
        if not (advice := how_to_install(error)):
            raise
        sys.exit(_complain(advice, 1))


def _complain(error: PenstockError | str, code: int) -> int:
    print(f"penstock: {error}", file=sys.stderr)
    return code
