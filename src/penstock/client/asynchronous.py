"""The client for asyncio."""

from __future__ import annotations

from types import TracebackType
from typing import Self, cast

from penstock.client.core import Core
from penstock.client.results import Confirmed, MessageFacts, Outcome, SentFacts


class AsyncSent(SentFacts, gc=False):
    """A message that was published."""

    async def result(self, timeout: float | None = None) -> Outcome:
        """Wait until the message is done with success; its result is in `text`, `json()` and `decode(Type)`."""
        return await cast("AsyncClient", self._client).result(self.id, timeout)


class AsyncMessage(MessageFacts):
    """A message that was delivered to this client."""

    async def confirm(self, result: object = None) -> Confirmed:
        """The message is done with. A result is kept with it: text as it is, anything else as JSON."""
        return await self._receiver.settle(self, "success", result=result)

    async def retry(self, delay: float | None = None, reason: str = "") -> Confirmed:
        """Give the message back: it is ready again after so many seconds, or when its queue says. The reason is kept
        in the message's life, up to 10 KiB."""
        return await self._receiver.settle(self, "retry", delay=delay, reason=reason)

    async def invalid(self, reason: str = "") -> Confirmed:
        """The message is done with, because it is not valid. The reason is kept in its life, up to 10 KiB."""
        return await self._receiver.settle(self, "invalid", reason=reason)

    async def fail(self, reason: str = "") -> Confirmed:
        """Another delivery would not help: the message goes to the dead-letter queue of its queue, or is dropped if
        there is none. The reason is kept in its life, up to 10 KiB."""
        return await self._receiver.settle(self, "failed", reason=reason)

    async def not_interested(self) -> Confirmed:
        """The message is done with, because it is not for this consumer."""
        return await self._receiver.settle(self, "not_interested")

    async def extend(self, seconds: float, *, begin: bool = False) -> None:
        """Let the lease run so long from now. `begin`: a delivery that was fetched ahead counts from now."""
        await self._receiver.extend(self, seconds, begin=begin)

    @property
    def _receiver(self) -> AsyncClient:
        return cast("AsyncClient", self._client)


class AsyncClient(Core[AsyncSent, AsyncMessage]):
    """A client of one broker, for asyncio.

    ```python
    async with AsyncClient("http://127.0.0.1:7843") as client:
        await client.queues.create("orders")
        await client.publish("orders", {"id": 17})
        async for message in client.consume("orders"):
            print(message.json())
    ```

    `url` and `token` are taken from PENSTOCK_URL and PENSTOCK_TOKEN if they are not given. `timeout` is how many
    seconds a request may take, with all its attempts. `name` is the sender of what is published, and the consumer
    that messages are delivered to.

    With `https://`, the broker's certificate is checked with the authorities of the system, or with those in the file
    `ca`. A broker may ask for a `certificate` of the client; its key is in the same file or in `certificate_key`. All
    three are taken from PENSTOCK_CA, PENSTOCK_CERTIFICATE and PENSTOCK_CERTIFICATE_KEY if they are not given.
    """

    sent_type = AsyncSent
    message_type = AsyncMessage

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
