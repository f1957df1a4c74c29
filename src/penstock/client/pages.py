"""Things that arrive some at a time, and are looped over one by one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Generic, TypeVar

T = TypeVar("T")


class Pages(Generic[T]):
    """Loop over it with `async for`. `aclose` ends it early; so does leaving the loop, a little later."""

    def __init__(self, pages: AsyncGenerator[list[T], None]) -> None:
        self.pages = pages

    async def __aiter__(self) -> AsyncIterator[T]:
        async with aclosing(self.pages) as pages:
            async for page in pages:
                for each in page:
                    yield each

    async def aclose(self) -> None:
        await self.pages.aclose()
