"""The table at the top of the native API names the file of every path."""

from __future__ import annotations

import re
from typing import Any, cast

from penstock.dialects import native
from penstock.dialects.native.about import About, Cluster
from penstock.dialects.native.backup import Backup
from penstock.dialects.native.channels import Channels
from penstock.dialects.native.consume import Consuming
from penstock.dialects.native.consumers import Consumers
from penstock.dialects.native.event_log import EventLog
from penstock.dialects.native.jobs import Purges
from penstock.dialects.native.lake import Lake
from penstock.dialects.native.objects import Objects
from penstock.dialects.native.publish import Publishing
from penstock.dialects.native.queues import Queues
from penstock.dialects.native.schedules import Schedules
from penstock.dialects.native.search import Search
from penstock.dialects.native.spark.claims import Claims
from penstock.dialects.native.spark.staging import Staging
from penstock.dialects.native.stats import Stats
from penstock.dialects.native.tokens import Tokens
from penstock.dialects.native.wait import Waiting
from penstock.dialects.native.workers import Workers
from penstock.ids import MessageIds
from penstock.model.settings import QueueSettings

ANY = cast("Any", None)  # Nothing is called.
IDS = MessageIds(bytes(16))
ROOMS = (
    *(Queues(ANY), Channels(ANY, ANY), Publishing(IDS, QueueSettings(), 1, ANY), Consuming(IDS, 1, ANY)),
    *(
        Purges(ANY),
        Search(IDS, ANY, ANY, ANY),
        Waiting(ANY, IDS),
        EventLog(ANY),
    ),
    *(Objects(IDS), Schedules(ANY, IDS, QueueSettings()), Claims(IDS), Tokens(ANY, ANY, ANY, ANY)),
    *(
        Stats(ANY),
        About(ANY, ANY),
        Backup(ANY),
        Lake(ANY, ANY),
        Workers(ANY),
        Cluster(ANY),
        Consumers(ANY),
    ),
    Staging(ANY, bytes_max=1, lifetime_ns=1),
)


def test_every_route_is_in_the_table_with_its_file() -> None:
    rows = re.findall(r"^\| (/v1\S*) \| ([A-Z ]+) \| (\S+) \|$", native.__doc__ or "", re.MULTILINE)
    listed = {
        (f"v1/{segments[1]}".encode(), len(segments), method.encode(), file)
        for path, methods, file in rows
        for segments in [path[1:].split("/")]
        for method in methods.split()
    }
    served = {
        (*route, method, type(room).__module__.removeprefix("penstock.dialects.native."))
        for room in ROOMS
        for route, methods in room.routes.items()
        for method in methods
        if method != b"HEAD"
    }
    assert listed == served
