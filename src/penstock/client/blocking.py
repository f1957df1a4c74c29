"""The client for code without asyncio: the same logic, run on a thread with an event loop."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakSet

from penstock.client.administration import AsyncChannels, AsyncQueues
from penstock.client.core import Core
from penstock.client.results import Confirmed, MessageFacts, Outcome, SentFacts
from penstock.client.runner import Blocking, Runner, blocking, iterating
from penstock.client.schedules import AsyncSchedules
from penstock.client.tokens import AsyncTokens
from penstock.client.trust import FilePath
from penstock.client.workers import AsyncWorkers
from penstock.renamed import has_old_names


class Sent(SentFacts, gc=False):
    """A message that was published."""

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait until the message is done with success; its result is in `text`, `json()` and `decode(Type)`."""
        return cast("Client", self._client).result(self.id, timeout)


class Message(MessageFacts):
    """A message that was delivered to this client."""

    def confirm(self, result: object = None) -> Confirmed:
        """The message is done with. A result is kept with it: text as it is, anything else as JSON."""
        return self._receiver.settle(self, "success", result=result)

    def retry(self, delay: float | None = None, reason: str = "") -> Confirmed:
        """Give the message back: it is ready again after so many seconds, or when its queue says. The reason is kept
        in the message's life, up to 10 KiB."""
        return self._receiver.settle(self, "retry", delay=delay, reason=reason)

    def invalid(self, reason: str = "") -> Confirmed:
        """The message is done with, because it is not valid. The reason is kept in its life, up to 10 KiB."""
        return self._receiver.settle(self, "invalid", reason=reason)

    def fail(self, reason: str = "") -> Confirmed:
        """Another delivery would not help: the message goes to the dead-letter queue of its queue, or is dropped if
        there is none. The reason is kept in its life, up to 10 KiB."""
        return self._receiver.settle(self, "failed", reason=reason)

    def not_interested(self) -> Confirmed:
        """The message is done with, because it is not for this consumer."""
        return self._receiver.settle(self, "not_interested")

    def extend(self, seconds: float, *, begin: bool = False) -> None:
        """Let the lease run so long from now. `begin`: a delivery that was fetched ahead counts from now."""
        self._receiver.extend(self, seconds, begin=begin)

    @property
    def _receiver(self) -> Client:
        return cast("Client", self._client)


class _Core(Core[Sent, Message]):
    sent_type = Sent
    message_type = Message


class Queues(Blocking[AsyncQueues]):
    """`client.queues`."""

    get = blocking(AsyncQueues.get)
    create = blocking(AsyncQueues.create)
    change = blocking(AsyncQueues.change)
    delete = blocking(AsyncQueues.delete)
    purge = blocking(AsyncQueues.purge)
    list = blocking(AsyncQueues.list)


@has_old_names("client.channels.")
class Channels(Blocking[AsyncChannels]):
    """`client.channels`."""

    get = blocking(AsyncChannels.get)
    create = blocking(AsyncChannels.create)
    change = blocking(AsyncChannels.change)
    delete = blocking(AsyncChannels.delete)
    list = blocking(AsyncChannels.list)


@has_old_names("client.schedules.")
class Schedules(Blocking[AsyncSchedules]):
    """`client.schedules`."""

    create = blocking(AsyncSchedules.create)
    change = blocking(AsyncSchedules.change)
    get = blocking(AsyncSchedules.get)
    delete = blocking(AsyncSchedules.delete)
    run = blocking(AsyncSchedules.run)
    list = blocking(AsyncSchedules.list)


@has_old_names("client.tokens.")
class Tokens(Blocking[AsyncTokens]):
    """`client.tokens`."""

    create = blocking(AsyncTokens.create)
    change = blocking(AsyncTokens.change)
    rotate = blocking(AsyncTokens.rotate)
    get = blocking(AsyncTokens.get)
    delete = blocking(AsyncTokens.delete)
    list = blocking(AsyncTokens.list)


@has_old_names("client.workers.")
class Workers(Blocking[AsyncWorkers]):
    """`client.workers`."""

    report = blocking(AsyncWorkers.report)
    list = blocking(AsyncWorkers.list)
    delete = blocking(AsyncWorkers.delete)


class Client(Blocking[Core[Sent, Message]]):
    """A client of one broker. It may be used by many threads at once.

    ```python
    with Client("http://127.0.0.1:7843") as client:
        client.queues.create("orders")
        client.publish("orders", {"id": 17})
        for message in client.consume("orders"):
            print(message.json())
    ```

    `url` and `token` are taken from PENSTOCK_URL and PENSTOCK_TOKEN if they are not given. `timeout` is how many
    seconds a request may take, with all its attempts. `name` is the sender of what is published, and the consumer
    that messages are delivered to.

    With `https://`, the broker's certificate is checked with the authorities of the system, or with those in the file
    `ca`. A broker may ask for a `certificate` of the client; its key is in the same file or in `certificate_key`. All
    three are taken from PENSTOCK_CA, PENSTOCK_CERTIFICATE and PENSTOCK_CERTIFICATE_KEY if they are not given.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        ca: FilePath = "",
        certificate: FilePath = "",
        certificate_key: FilePath = "",
        timeout: float = 30,
        name: str | None = None,
    ) -> None:
        self._options: dict[str, Any] = {"url": url, "token": token, "timeout": timeout, "name": name}
        self._options |= {"ca": ca, "certificate": certificate, "certificate_key": certificate_key}
        self._begin()
        _clients.add(self)

    def _begin(self) -> None:
        core = _Core(**self._options)
        core.owner = self
        runner = Runner(f"penstock client of {core.url}")
        super().__init__(core, runner)
        self.url = core.url
        self.queues = Queues(core.queues, runner)
        self.channels = Channels(core.channels, runner)
        self.schedules = Schedules(core.schedules, runner)
        self.tokens = Tokens(core.tokens, runner)
        self.workers = Workers(core.workers, runner)

    publish = blocking(_Core.publish)
    publish_to = blocking(_Core.publish_to)
    publish_many = blocking(_Core.publish_many)
    publish_many_to = blocking(_Core.publish_many_to)
    receive = blocking(_Core.receive)
    consume = iterating(_Core.consume)
    confirm_many = blocking(_Core.confirm_many)
    settle = blocking(_Core.settle)
    extend = blocking(_Core.extend)
    wait = blocking(_Core.wait)
    result = blocking(_Core.result)
    events = iterating(_Core.events)
    search = iterating(_Core.search)
    message = blocking(_Core.message)
    delete_message = blocking(_Core.delete_message)
    redrive = blocking(_Core.redrive)
    troubles = blocking(_Core.troubles)
    consumers = blocking(_Core.consumers)
    queue_names = blocking(_Core.queue_names)
    health = blocking(_Core.health)
    metrics = blocking(_Core.metrics)

    def close(self) -> None:
        """Send what is still to be sent, close the connections, and end the thread."""
        if not self._runner.stopped:
            self._runner.run(self._asynchronous.close())
            self._runner.stop()

    def after_fork(self) -> None:
        """In a forked child, without the thread: begin anew. The connections are the parent's, so they stay open."""
        self._before_fork = (self._asynchronous, self._runner)
        self._begin()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_clients: WeakSet[Client] = WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client.after_fork()


os.register_at_fork(after_in_child=_after_fork)
