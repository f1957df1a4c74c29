"""One message that several shards know: it was moved to another shard, or has copies there."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from penstock.cluster.routing.asking import Asking
from penstock.errors import Fault
from penstock.limits import ARRIVAL_LOOK_SECONDS, ARRIVAL_SECONDS_MAX
from penstock.model.answers import Refused
from penstock.model.message_reports import MessageReport, TraceMessage, is_on_its_way, joined
from penstock.model.queries import NoAnswer

_NOT_HERE = (Fault.NOT_FOUND.status, Fault.MESSAGE_REMOVED.status)  # A shard that has nothing of it.


async def reported(asking: Asking, query: TraceMessage) -> MessageReport | NoAnswer:
    """The shard that the id of a message names is asked first: the message may have left it, and keeps its id, and
    one with topics may have copies in channels and queues of others."""
    home = asking.shards.of_number(query.place[0])
    others = [shard for shard in range(asking.shards.shards) if shard != home]
    found = await asking.at(home, query)
    if _status_of(found) == Fault.NOT_FOUND.status:
        return await _first_of(asking, others, query, found)  # type: ignore[no-any-return]
    if not isinstance(found, MessageReport) or not found.may_be_elsewhere:
        return found  # type: ignore[no-any-return]
    elsewhere = replace(query, is_home=False)
    time = asyncio.get_running_loop().time
    until = time() + ARRIVAL_SECONDS_MAX
    while True:
        found, *answers = await asyncio.gather(
            asking.at(home, query), *[asking.at(shard, elsewhere) for shard in others]
        )
        if not isinstance(found, MessageReport):
            return found  # type: ignore[no-any-return]
        reports = [each for each in (found, *answers) if isinstance(each, MessageReport)]
        if not is_on_its_way(reports) or time() > until:
            is_whole = all(isinstance(each, MessageReport) or _status_of(each) in _NOT_HERE for each in answers)
            return found if is_whole and len(reports) == 1 else joined(reports, is_whole=is_whole)
        await asyncio.sleep(ARRIVAL_LOOK_SECONDS)


async def _first_of(asking: Asking, shards: Sequence[int], query: TraceMessage, refused: Any) -> Any:
    """The answer of the first shard that knows the message; else that of the first one."""
    refusals = []
    for shard in shards:
        answer = await asking.at(shard, query)
        if _status_of(answer) != Fault.NOT_FOUND.status:
            return answer
        refusals.append(answer)
    return next(iter(refusals), refused)


def _status_of(answer: Any) -> int:
    """The status of the error; 0 if it is none."""
    if isinstance(answer, NoAnswer):
        return (answer.reason if isinstance(answer, Refused) else answer.error).status
    return 0
