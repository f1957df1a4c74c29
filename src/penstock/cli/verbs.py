"""All verbs of the command line, by what they are for. A verb's file is imported when the verb is used."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, MutableMapping
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

from penstock import __version__
from penstock.cli.exits import end_broken_pipe
from penstock.cli.output import with_watch_seconds
from penstock.cli.profiles import BROKER
from penstock.renamed import deprecated, successors


class Verb(NamedTuple):
    """Where a verb is written, and what the list of verbs says about it."""

    module: str
    help: str


SECTIONS: dict[str, dict[str, Verb]] = {
    "Run a broker": {
        "serve": Verb("serve", "Start a broker."),
        "demo": Verb("demo", "Run a small web shop, to see everything at work."),
        "up": Verb("up", "Start a broker and the pipeline that fills its tables."),
        "worker": Verb("worker", "Run the tasks of an app."),
    },
    "Send and receive": {
        "publish": Verb("publish", "Send a message, a file, or every line of a pipe."),
        "consume": Verb("consume", "Take messages, write them, and confirm them."),
        "tail": Verb("tail", "Watch what happens to messages."),
        "peek": Verb("peek", "Look at the messages of a queue, and touch nothing."),
        "search": Verb("search", "Find messages that queues hold."),
        "message": Verb("message", "Show everything that happened to a message; delete some, or send them back."),
    },
    "Manage": {
        "top": Verb("top", "Watch queues fill and empty, and why they do."),
        "consumers": Verb("consumers", "Show who takes messages, and how fast."),
        "workers": Verb("workers", "Show the workers of tasks, and those that are missing."),
        "queues": Verb("queues", "Create, change, empty and delete queues."),
        "channels": Verb("channels", "Create, change, empty and delete channels."),
        "schedules": Verb("schedules", "Publish messages by the calendar or at an interval."),
        "tokens": Verb("tokens", "Create, change, rotate and delete tokens."),
        "audit": Verb("audit", "Show who has changed what, and what was refused."),
    },
    "Spark and tables": {
        "pipeline": Verb("pipeline", "Fill a lake of tables with the events of a log."),
        "sql": Verb("sql", "Query the tables in SQL."),
    },
    "Tools": {
        "bench": Verb("bench", "Measure how fast a broker is, from here."),
        "torture": Verb("torture", "Try a broker on your disk with traffic and faults, and check its promises."),
        "doctor": Verb("doctor", "Check disk, limits, ports, clock, versions and the broker."),
        "tls": Verb("tls", "Make a certificate to try TLS with, and look at certificates."),
        "config": Verb("config", "Show and write the profiles of this command line."),
        "completion": Verb("completion", "Print the completion script of a shell."),
        "store": Verb("store", "Make, upgrade and show the tables of a log in PostgreSQL, and move logs."),
        "cluster": Verb("cluster", "Show the brokers on a store in PostgreSQL, and move what they serve."),
        "log": Verb("log", "Inspect, verify and repair a data directory."),
        "backup": Verb("backup", "Copy everything that a broker has stored, while it serves."),
        "restore": Verb("restore", "Make a data directory from a backup."),
        "reshard": Verb("reshard", "Move a store with one shard to several."),
    },
}
VERBS = {name: verb for verbs in SECTIONS.values() for name, verb in verbs.items()}


class VerbGroup(TyperGroup):
    """Verbs of the command line, or of one thing, such as queues. Old names of verbs work, and are in no list."""

    place = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # What is no verb of `message` is the id of one, which is to be shown.
        if self.name == "message" and args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        place = self.place or f"penstock {self.name} "
        name = args[0]
        if name in successors(place):
            # A shell that completes the line needs no warning.
            row = successors(place)[name] if ctx.resilient_parsing else deprecated(place, name)
            name = row.new
        return super().resolve_command(ctx, [name, *args[1:]])


class VerbCommand(TyperCommand):
    """A verb whose help ends with how to reach the broker: what is said only once in a while."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": [], "The broker": []}
        for each in self.get_params(ctx):
            if record := each.get_help_record(ctx):
                title = "Arguments" if each.param_type_name == "argument" else "Options"
                sections["The broker" if each.name in BROKER else title].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class LazyGroup(VerbGroup):
    """The verbs above, each imported when it is asked for. The list of them needs no import."""

    place = "penstock "

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Only the names, from which typer chooses one that is like what was mistyped.
        self.commands = cast("MutableMapping[str, Any]", dict.fromkeys(VERBS))

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        return load(cmd_name) if cmd_name in VERBS else None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(with_watch_seconds(args)))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise typer.Exit(end_broken_pipe()) from None
        except Exception as error:
            if possible := getattr(error, "possibilities", None):  # Of an option that does not exist.
                error.possibilities = _alike(error.option_name, possible)  # type: ignore[attr-defined]
            raise

    def format_commands(self, _ctx: Any, formatter: Any) -> None:
        for title, verbs in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, verb.help) for name, verb in verbs.items()])


def _alike(mistyped: str, options: Iterable[str]) -> list[str]:
    """The options that may be meant. The dashes are no likeness."""
    named = {option.lstrip("-"): option for option in options}
    return [named[name] for name in get_close_matches(mistyped.lstrip("-"), named)]


def load(name: str) -> Any:
    """The command of a verb: its file has an `app` with verbs of its own, or a function of its name."""
    module = importlib.import_module(f"penstock.cli.{VERBS[name].module}")
    group = getattr(module, "app", None)
    if group is None:
        group = typer.Typer(add_completion=False, rich_markup_mode=None)
        group.command(name)(getattr(module, name))
    group.info.cls = VerbGroup
    for command in group.registered_commands:
        command.cls = VerbCommand
    group.rich_markup_mode = None  # Plain help: the boxes of rich take longer than all the rest.
    command = typer.main.get_command(group)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    name="penstock",
    help="A durable message queue that speaks five protocols.",
    epilog="penstock VERB --help says more. Exit codes and examples: docs/cli.md.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # The verbs inherit them.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def version(
    show: Annotated[bool, typer.Option("--version", help="Show the version and exit.", is_eager=True)] = False,
) -> None:
    if show:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


if "_PENSTOCK_COMPLETE" in os.environ:  # A shell asks for completions: typer must know the shells.
    from typer._completion_classes import completion_init

    completion_init()
