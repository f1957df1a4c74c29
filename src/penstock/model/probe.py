"""A question before a request is refused for another reason: see `commands`."""

from __future__ import annotations

from penstock.model.commands import (
    AwaitResult,
    Cancel,
    Command,
    CreateQueue,
    Delete,
    DeleteQueue,
    DescribeQueue,
    Extend,
    Fetch,
    Finish,
    LookUp,
    Publish,
    PublishTopics,
    Purge,
    Redrive,
    Reschedule,
    Settle,
    UpdateQueue,
)
from penstock.model.consuming import Consume
from penstock.model.schedules import DescribeSchedule, RunSchedule
from penstock.model.tokens import DescribeToken, RevokeToken, RotateToken, SetToken

OfQueues = CreateQueue | UpdateQueue | DeleteQueue | DescribeQueue | Purge | Redrive
OfMessages = (
    Publish | PublishTopics | Fetch | Consume | Finish | Settle | Extend | LookUp | Delete | Cancel | Reschedule
)
Others = AwaitResult | DescribeSchedule | RunSchedule
OfTokens = SetToken | RotateToken | RevokeToken | DescribeToken
Head = OfQueues | OfMessages | Others | OfTokens


class Probe(Command, frozen=True):
    """May the client send this command, and is there what it names? It is decided, and nothing comes of it: refused
    only for permission, and for what is missing or is there already. So whatever else is wrong with a request is said
    after that."""

    head: Head
