"""Looking at what queues hold, page by page."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from penstock.client.encoding import query
from penstock.client.results import Found, FoundPage
from penstock.client.session import Session
from penstock.limits import SEARCH_PAGE_MAX


async def found_pages(session: Session, wanted: str) -> AsyncGenerator[list[Found], None]:
    """The messages that a query finds. A page that the broker left empty is not the last one."""
    target = f"/v1/search{wanted}&limit={SEARCH_PAGE_MAX}"
    page = await session.get(target, FoundPage)
    while True:
        if page.messages:
            yield page.messages
        if page.next is None:
            return
        page = await session.get(target + query(cursor=page.next).replace("?", "&"), FoundPage)
