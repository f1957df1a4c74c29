"""Schedules: messages that the broker publishes again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Unpack

import msgspec
from msgspec import Struct

from penstock.client.encoding import PublishDocument, content_of, path, query
from penstock.client.results import Schedule, ScheduleChanges, SentFacts
from penstock.client.session import Session
from penstock.client.transport import Request
from penstock.limits import SEARCH_PAGE_MAX
from penstock.renamed import has_old_names

CatchUp = Literal["one", "all", "none"]


class _Document(PublishDocument, omit_defaults=True, kw_only=True):
    queue: str = ""
    cron: str = ""
    time_zone: str = ""
    every: float | None = None
    start: datetime | None = None
    catch_up: CatchUp = "one"
    paused: bool = False


class _Page(Struct):
    schedules: list[Schedule]
    next: int | None = None


@has_old_names("client.schedules.")
class AsyncSchedules:
    """`client.schedules`."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def create(
        self,
        name: str,
        message: object,
        *,
        queue: str | None = None,
        topics: Sequence[str] | None = None,
        cron: str | None = None,
        time_zone: str | None = None,
        every: float | None = None,
        start: datetime | None = None,
        catch_up: CatchUp = "one",
        paused: bool = False,
        priority: int = 0,
        delay: float | None = None,
        expires: float | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> Schedule:
        """Make a schedule, or replace it: one message at each tick, by the calendar or at an interval.

        `client.schedules.create("nightly", {"report": "sales"}, queue="reports", cron="30 2 * * *")`
        """
        text, in_base64, media_type = content_of(message, content_type)
        document = _Document(
            message=text,
            message_base64=in_base64,
            mimeType=media_type,
            queue=queue or "",
            topics=topics or (),
            cron=cron or "",
            time_zone=time_zone or "",
            every=every,
            start=start,
            catch_up=catch_up,
            paused=paused,
            priority=priority,
            delay=delay,
            expires=expires,
            headers=headers,
        )
        return await self._session.change("PUT", path("schedules", name), Schedule, document)

    async def change(self, name: str, **changes: Unpack[ScheduleChanges]) -> Schedule:
        """Change some fields of a schedule.

        `client.schedules.change("nightly", paused=True)`
        """
        document: dict[str, Any] = dict(changes)
        if "message" in document:
            text, in_base64, media_type = content_of(document.pop("message"), None)
            document |= {"message": text} if in_base64 is msgspec.UNSET else {"message_base64": in_base64}
            document |= {"mimeType": media_type} if media_type else {}
        return await self._session.change("PATCH", path("schedules", name), Schedule, document)

    async def get(self, name: str) -> Schedule:
        """A schedule, with its last and next run.

        `client.schedules.get("nightly").next_run`
        """
        return await self._session.get(path("schedules", name), Schedule)

    async def delete(self, name: str) -> None:
        """Remove a schedule. The messages that it has published stay."""
        await self._session.delete(path("schedules", name))

    async def run(self, name: str) -> str:
        """Publish the message of a schedule now, out of turn; the id of the message.

        If the answer is lost, this is not tried again: the message would be published twice.
        """
        request = Request("POST", path("schedules", name, "run"), repeatable=False)
        reply = await self._session.ask(request)
        return self._session.decoded(request, reply, msgspec.json.Decoder(SentFacts).decode).id

    async def list(self) -> list[Schedule]:
        """All schedules, the oldest first."""
        found: list[Schedule] = []
        offset: int | None = 0
        while offset is not None:
            page = await self._session.get(path("schedules") + query(offset=offset, limit=SEARCH_PAGE_MAX), _Page)
            found += page.schedules
            offset = page.next
        return found
