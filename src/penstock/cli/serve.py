"""`penstock serve`: start a broker."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.shards import shards_in


def serve(
    data: Annotated[str | None, typer.Option(help="The data directory.")] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="The PostgreSQL database that holds the log.")
    ] = None,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where other brokers on the store reach this one.")
    ] = None,
    http: Annotated[str | None, typer.Option(help="HOST:PORT for HTTP.")] = None,
    lines: Annotated[str | None, typer.Option(help="HOST:PORT for JSON lines.")] = None,
    tls_certificate: Annotated[str | None, typer.Option(help="The certificate, for TLS.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="Its private key.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any other setting. May be repeated.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The settings file [default: ./penstock.toml, if any]")] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N", help="How many processes serve; auto: one for each core. [default: 1]")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", help="How many shards a store has that is made now.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow other machines to connect without tokens or TLS.")
    ] = False,
) -> None:
    """Start a broker. Stop it with SIGTERM or Ctrl-C."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Until there is something that can be read again.
    # Imported here, so that the other verbs do not wait for the server's libraries.
    gc.disable()  # Modules stay: looking for garbage in them takes a tenth of the start.
    from penstock.server import broker, logs
    from penstock.server.reloading import Reloading
    from penstock.server.settings import load

    gc.freeze()
    gc.enable()
    own = {"data": data, "store": store, "http.address": http, "lines.address": lines}
    own |= {"cluster.advertise": advertise, "tls.certificate": tls_certificate, "tls.key": tls_key}
    given = {key: value for key, value in own.items() if value is not None}
    reloading = Reloading(partial(load, config, os.environ, settings or [], given))
    loaded = reloading.config
    logs.set_up(loaded.logging.level, loaded.logging.format)
    processes = workers_of(workers or "1")
    if loaded.cluster.advertise and processes == 1:
        from penstock.server import node

        raise typer.Exit(node.serve(reloading, insecure=insecure))
    if processes == 1 and not shards and not shards_in(loaded.data):
        raise typer.Exit(broker.serve(reloading, insecure=insecure))
    from penstock.server import supervisor

    raise typer.Exit(supervisor.serve(reloading, processes, shards, insecure=insecure))


def workers_of(text: str) -> int:
    """How many workers `--workers` asks for."""
    if text == "auto":
        return len(os.sched_getaffinity(0))
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise typer.BadParameter(f"{text!r} is not a number of workers; choose one from 1, or `auto`")
