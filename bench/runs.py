"""The separate runs. Each measures one thing on its own broker.

Each prints its figures and writes them to `bench/<run>.json`.
"""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import (
    access,
    checkout,
    client,
    courier,
    deep,
    history,
    hung,
    idle,
    keyed,
    link,
    machine,
    push,
    report,
    reshard,
    sizing,
    spectator,
    store,
    tls,
    topics,
    unread,
    wake,
    worker,
    workers,
)

Found = dict[str, float]

# The function of each run, and its default number of messages, connections or rounds.
RUNS: dict[str, tuple[Callable[..., Found], int]] = {
    "deep": (deep.deep, deep.DEEP_MESSAGES),
    "churn": (deep.churn, deep.CHURN_MESSAGES),
    "delayed": (deep.delayed, deep.DELAYED_MESSAGES),
    "idle": (idle.idle, idle.CONNECTIONS),
    "wake": (wake.wake, wake.ROUNDS),
    "topics": (topics.topics, topics.CHANNELS),
    "spectator": (spectator.spectator, spectator.EVENTS),
    "push": (push.push, push.MESSAGES),
    "history": (history.history, history.KEYS),
    "client": (client.client, client.MESSAGES),
    "worker": (worker.worker, worker.JOBS),
    "access": (access.access, access.ROUNDS),
    "tls": (tls.tls, tls.ROUNDS),
    "link": (link.link, link.ROUNDS),
    "workers": (workers.workers, workers.ROUNDS),
    "hung": (hung.hung, hung.ROUNDS),
    "courier": (courier.courier, courier.ROUNDS),
    "store": (store.store, store.ROUNDS),
    "sizing": (sizing.sizing, sizing.ROUNDS),
    "unread": (unread.unread, unread.CONNECTIONS),
    "reshard": (reshard.moving, reshard.MESSAGES),
    "checkout": (checkout.checkout, checkout.ROUNDS),
    "keyed": (keyed.keyed, keyed.ROUNDS),
}
AGAINST = ("checkout", "keyed")  # These compare with another checkout.


def run(what: str, console: Console, scratch: Path, count: int | None, **given: Path) -> int:
    """`given`: what this run alone needs."""
    runs, default = RUNS[what]
    with _progress(console) as progress:
        found = runs(progress, scratch, count or default, **given)
    content: dict[str, object] = {"machine": machine.facts(scratch), "run": what, **found}
    table = Table("figure", "value", title=what)
    for name, value in found.items():
        table.add_row(name.removesuffix("_bytes").replace("_", " "), _readable(name, value))
    console.print(table)
    name = what if count in (None, default) else f"{what}-partial"
    report.write_json(Path(__file__).parent / f"{name}.json", content)
    return 0


def _readable(name: str, value: float) -> str:
    if name.endswith("_bytes"):
        return f"{value / (1 << 20):,.1f} MiB"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3f}"


def _progress(console: Console) -> Progress:
    columns = (BarColumn(20), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console, refresh_per_second=1, transient=True)
