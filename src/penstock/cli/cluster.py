"""`penstock cluster`: the brokers on a store in PostgreSQL, and who has what. It needs the store, and no broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.exits import CommandError, Exit
from penstock.cli.store import Url, connected

if TYPE_CHECKING:
    from penstock.storage.postgres.nodes import Node, Nodes, NodeTables, Owned

app = typer.Typer(help="Show the brokers on a store in PostgreSQL, and move what they serve.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="For programs: one JSON object.")]
Name = Annotated[str, typer.Argument(metavar="NODE", help="A name or an address that `cluster status` shows.")]


@app.command()
def status(url: Url, as_json: AsJson = False, watch: output.Watch = None) -> None:
    """Show all brokers on the store, who has which shard, how large its log is, and how long the oldest message waits
    that another shard owes to it."""
    from penstock.storage.postgres.status import sizes

    with _tables(url) as tables, connected(url) as connection:
        output.repeat(watch, lambda: _show(tables.read(), sizes(connection), as_json))


@app.command()
def drain(
    url: Url,
    node: Name,
    undo: Annotated[bool, typer.Option("--undo", help="Let it serve again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a broker hand over everything that it serves, and wait. It serves on if there is no other broker."""
    with _tables(url) as tables:
        found = _found(tables.read(), node)
        tables.drain(found.name, not undo)
    sentence = f"{found.name} takes part again." if undo else f"{found.name} hands over what it serves, and waits."
    output.done(as_json, {"node": found.name, "draining": not undo}, sentence)


@app.command()
def move(
    url: Url,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="All queues of its shard move with it.")],
    node: Annotated[str | None, typer.Argument(metavar="NODE", help="A name or an address.")] = None,
    anywhere: Annotated[bool, typer.Option("--anywhere", help="Let the cluster choose again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Move the shard of a queue to a broker, and keep it there as long as that broker is there."""
    from penstock.broker.shard_map import ShardMap

    if (node is None) is not anywhere:
        raise CommandError("give either a NODE or --anywhere", Exit.USAGE)
    with _tables(url) as tables:
        found = tables.read()
        shard = ShardMap(len(found.shards), tables.elsewhere()).of_name(queue)
        target = _present(_found(found, node)).name if node else None
        tables.pin(shard, target)
    where = f"{target} will have shard {shard}" if target else f"shard {shard} may be anywhere"
    output.done(as_json, {"shard": shard, "node": target}, f"{where}, with the queue {queue}.")


@contextmanager
def _tables(url: str) -> Iterator[NodeTables]:
    from penstock.storage.postgres.nodes import NodeTables
    from penstock.storage.postgres.schema import identity_of

    with connected(url) as connection:
        identity_of(connection)
        yield NodeTables(connection)


def _found(found: Nodes, text: str) -> Node:
    """The node that a person means."""
    nodes = [node for node in found.nodes if text in (node.name, node.address)]
    if len(nodes) > 1:
        raise CommandError(f"{len(nodes)} brokers have the address {text}; give the name of one", Exit.USAGE)
    if not nodes:
        known = ", ".join(node.name for node in found.nodes) or "none"
        raise CommandError(f"the store knows no broker {text}; it knows {known}", Exit.NOT_FOUND)
    return nodes[0]


def _present(node: Node) -> Node:
    if node.is_draining or not node.is_there:
        why = "is draining" if node.is_draining else f"was last seen {_ago(node)}"
        raise CommandError(f"{node.name} {why}, and would not take it", Exit.REFUSED)
    return node


def _show(found: Nodes, sizes: dict[int, int], as_json: bool) -> None:
    nodes = [_node_row(node, found) for node in found.nodes]
    if as_json:
        shards = [each._asdict() | {"bytes": sizes[each.shard]} for each in found.shards]
        output.emit({"nodes": [dict(zip(_NODE, row, strict=True)) for row in nodes], "shards": shards})
        return
    output.table(_NODE, nodes)
    print()
    output.table(_SHARD, _shard_rows(found, sizes))


_NODE = ("node", "address", "state", "shards", "seen")
_SHARD = ("node", "shard", "epoch", "batches", "MiB", "lag", "moved to")


def _node_row(node: Node, found: Nodes) -> tuple[Any, ...]:
    return node.name, node.address, found.state_of(node), found.held_by(node), _ago(node)


def _ago(node: Node) -> str:
    return f"{node.unseen_seconds:.0f} s ago" if node.unseen_seconds < 86_400 else "more than a day ago"


def _shard_rows(found: Nodes, sizes: dict[int, int]) -> Iterator[tuple[Any, ...]]:
    """The shards of each node together, those without an owner first. A node is named once."""
    before: str | None = None
    for shard in sorted(found.shards, key=lambda each: (_owner(each), each.shard)):
        owner, size = _owner(shard), round(sizes[shard.shard] / (1 << 20), 1)
        moved = "here" if shard.pinned == owner else shard.pinned
        named = "" if owner == before else owner or "nobody"
        yield named, shard.shard, shard.epoch, shard.last_batch, size, _lag(shard), moved
        before = owner


def _lag(shard: Owned) -> str:
    return "" if shard.lag_seconds is None or not shard.is_leased else f"{shard.lag_seconds:.1f} s"


def _owner(shard: Owned) -> str:
    return shard.owner or "" if shard.is_leased else ""
