"""`penstock demo`: a small web shop on a broker of its own, until Ctrl-C. It leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Annotated

import typer

from penstock.cli.child_broker import url_of
from penstock.cli.processes import start, stop

_PORTS = (7843, 7844)
_GREETING = """
  The shop is open: {rate:g} orders a second, a bank that fails now and then, parcels that wait, expired cards.
  Ctrl-C closes it, and removes its data.

  Console   {url}/
  Tables    {tables}

  In another terminal:

    export PENSTOCK_URL={url}
    penstock top                                     # all queues, live
    penstock tail --state RE                         # what fails
    penstock peek payments-failed                    # the dead letters
    penstock queues redrive payments-failed --dry-run
    penstock schedules list
{sql}"""
_SQL = '    penstock sql --lake {lake} "select queue, state, count(*) from messages group by all"\n'


def demo(
    brief: Annotated[bool, typer.Option("--brief", help="Two seconds, told step by step, and then the end.")] = False,
    rate: Annotated[float, typer.Option(help="Orders a second.", min=0.1, max=500)] = 10,
    seconds: Annotated[float | None, typer.Option(help="Close after so long.", min=1)] = None,
    tables: Annotated[bool, typer.Option(help="Fill tables as well, if Spark is there.")] = True,
) -> None:
    """Open a small web shop on a broker of its own: orders, failures, retries, dead letters, recurring jobs."""
    if brief:
        from penstock.cli.demo_brief import tell

        tell()
        return
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory, _broker(Path(directory), tables) as url:
        lake = f"{directory}/lake"
        print(
            _GREETING.format(
                url=url,
                rate=rate,
                tables=f"{lake} (the first rows take about a minute)" if tables else "none",
                sql=_SQL.format(lake=lake) if tables else "",
            )
        )
        with _worker(url):
            asyncio.run(_run(url, rate, seconds))


async def _run(url: str, rate: float, seconds: float | None) -> None:
    from penstock.client import AsyncClient
    from penstock.demo import shop
    from penstock.demo.street import Street

    shop.app.connect_to(url)
    async with AsyncClient(url, name="street") as client:
        street = Street(client, rate)
        life = asyncio.create_task(street.run())
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, life.cancel)
        await asyncio.wait({life}, timeout=seconds)
        life.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await life  # Its error, if it has failed.
    shop.app.close()
    print(f"\n{street.orders:,} orders were placed. The shop is closed.")


# ── Its processes ───────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _broker(directory: Path, tables: bool) -> Iterator[str]:
    """On the usual ports if they are free, so that every example works."""
    http, lines = (f"127.0.0.1:{port if _is_free(port) else 0}" for port in _PORTS)
    flags = ["--data", str(directory / "data"), "--http", http, "--lines", lines, "--set", "logging.format=json"]
    verb = ["up", "--lake", str(directory / "lake")] if tables else ["serve"]
    broker = start(*verb, *flags, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert broker.stderr is not None
    try:
        url = url_of(broker.stderr)
        threading.Thread(target=_drain, args=(broker.stderr,), daemon=True).start()
        yield url
    finally:
        stop(broker)


def _drain(log: IO[str]) -> None:
    for _ in log:
        pass


@contextlib.contextmanager
def _worker(url: str) -> Iterator[None]:
    worker = start("worker", "penstock.demo.shop:app", "--url", url, "--grace", "1", stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        stop(worker)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
