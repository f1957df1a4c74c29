"""`penstock worker`: run the tasks of an app."""

from __future__ import annotations

import logging
import os
import sys
import threading
from typing import Annotated, Literal

import typer

_EXIT_SECONDS = 2.0  # For threads that functions have left.


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE:APP", help="The app, such as shop.tasks:app.")],
    queues: Annotated[str | None, typer.Option(help="Only these, with commas in between.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Jobs at a time [default: 10, or as many as processes]")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=0, help="Child processes for functions that are not async; 0: threads.")
    ] = 0,
    grace: Annotated[float, typer.Option(min=0, help="Seconds that running jobs have after SIGTERM.")] = 30.0,
    burst: Annotated[bool, typer.Option("--burst", "--once", help="End when no job is ready.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a Python file here changes.")] = False,
    url: Annotated[
        str | None, typer.Option(help="The broker [env: PENSTOCK_URL, or the profile, or as the app says]")
    ] = None,
    token: Annotated[str | None, typer.Option(help="Its bearer token [env: PENSTOCK_TOKEN, or the profile]")] = None,
    profile: Annotated[
        str | None, typer.Option(help="A broker of the configuration file [env: PENSTOCK_PROFILE]")
    ] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], typer.Option()] = "info",
    log_format: Annotated[Literal["auto", "json", "text"], typer.Option()] = "auto",
) -> None:
    """Run the jobs of an app. Stop it with SIGTERM or Ctrl-C: what runs is finished, the rest is given back."""
    if reload:
        from penstock.cli.reloading import run_and_reload

        raise typer.Exit(run_and_reload([argument for argument in sys.argv[1:] if argument != "--reload"]))
    # Imported here, so that a wrong option is reported at once.
    from penstock.cli import profiles
    from penstock.server import logs
    from penstock.worker.context import JobFilter
    from penstock.worker.loading import load

    where = profiles.target({"url": url, "token": token, "profile": profile})
    # In the environment, so that child processes use the same broker.
    os.environ.update({f"PENSTOCK_{key.upper()}": text for key, text in where.options.items()})
    logs.set_up(log_level, log_format)
    for handler in logging.getLogger().handlers:
        handler.addFilter(JobFilter())
    app = load(target)
    if url or token or profile:  # Otherwise, an app that names its broker keeps it.
        app.connect_to(where.url.text, where.token.text)
    chosen = [name.strip() for name in queues.split(",")] if queues else None
    app.worker(
        queues=chosen, concurrency=concurrency, processes=processes, grace=grace, burst=burst, target=target
    ).run()
    _exit_within(_EXIT_SECONDS)


def _exit_within(seconds: float) -> None:
    """Python would wait for every thread that a function has started."""
    timer = threading.Timer(seconds, os._exit, [0])
    timer.daemon = True
    timer.start()
