"""What the audit records: who acts, from where, and which commands are administrative acts."""

from __future__ import annotations

from typing import NamedTuple

from penstock.model import commands, schedules, tokens
from penstock.model.client import Client
from penstock.model.commands import Command

AUDIT_QUEUE = "_audit"

ACTS: dict[type[Command], str] = {
    commands.CreateQueue: "queue.create",
    commands.UpdateQueue: "queue.update",
    commands.DeleteQueue: "queue.delete",
    commands.Purge: "queue.purge",
    commands.Redrive: "queue.redrive",
    schedules.SetSchedule: "schedule.set",
    schedules.DeleteSchedule: "schedule.delete",
    schedules.RunSchedule: "schedule.run",
    tokens.SetToken: "token.set",
    tokens.RotateToken: "token.rotate",
    tokens.RevokeToken: "token.revoke",
    commands.Delete: "message.delete",
    commands.Cancel: "message.cancel",
    commands.Reschedule: "message.reschedule",
}
"""The commands that are recorded. Purges and redrives, which are many commands each, are recorded when they begin and
when they end; all other commands only if the client may not send them."""

ENDS: dict[type[Command], str] = {commands.Purge: "purged", commands.Redrive: "redriven"}
"""The names of these acts when they have ended."""


class Actor(NamedTuple):
    """Who acts, and from where."""

    who: str
    identity: str  # What kind of identity that is.
    address: str  # Without a port, which is another one for each connection.
    dialect: str


def actor_of(client: Client) -> Actor:
    access = client.access
    return Actor(access.name or "anonymous", access.kind, client.address, client.dialect)
