"""A job that was sent: where it is, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from penstock.client.errors import Conflict, MessageFailed, NotFound, QueueNotFound, Timeout
from penstock.client.results import Outcome
from penstock.client.runner import Blocking, blocking
from penstock.decoding import convert, decode_json
from penstock.worker import payload
from penstock.worker.context import Progress

if TYPE_CHECKING:
    from penstock.worker.app import App

Status = Literal["waiting", "delayed", "running", "done", "failed", "cancelled"]

_STATUSES: dict[str, Status] = {"ready": "waiting", "delayed": "delayed", "leased": "running"}


class _Document(Struct):
    """What a message document says about a job."""

    status: str
    state: str
    success: bool = False
    failed: str | None = None


class AsyncHandle:
    """A job, for asyncio. `id` is the id of its message: search, the Event Log and the console know it by that."""

    def __init__(self, app: App, id: str, task: str, kind: Any) -> None:
        self.id = id
        self.task = task
        self._app = app
        self._kind = kind  # The type of the result.

    async def status(self) -> Status:
        """Where the job is: `waiting`, `delayed`, `running`, `done`, `failed` or `cancelled`."""
        return _status(await self._document())

    async def result(self, timeout: float | None = None) -> Any:
        """What the task returned. Raises `MessageFailed` if the job has ended without success, and TimeoutError."""
        outcome = await self._outcome(timeout)
        if not outcome.success:
            raise MessageFailed.with_outcome(await self._explain(outcome.outcome or ""), outcome)
        return payload.decode_result(outcome.text, self._kind)

    async def cancel(self) -> bool:
        """Take the job away if it has not begun. False: it runs or has ended."""
        try:
            await self._app.broker.client().delete_message(self.id)
        except (Conflict, NotFound):
            return False
        return True

    async def progress(self) -> Progress | None:
        """The last thing that the task reported, if it is not too long ago (`App.progress_seconds`)."""
        broker = self._app.broker
        try:
            found = [each async for each in broker.client().search(queue=broker.progress_queue, key=self.id)]
        except QueueNotFound:  # No task of this app has ever reported anything.
            return None
        return decode_json(found[-1].body, Progress) if found else None

    async def _document(self) -> _Document:
        return convert(await self._app.broker.client().message(self.id), _Document)

    async def _outcome(self, timeout: float | None) -> Outcome:
        client = self._app.broker.client()
        while True:
            try:
                return (await client.wait([self.id], "done", timeout))[0]
            except Timeout:
                if timeout is not None:
                    raise TimeoutError(
                        f"job {self.id} of task {self.task} has not ended within {timeout:g} s"
                    ) from None

    async def _explain(self, outcome: str) -> str:
        subject = f"job {self.id} of task {self.task}"
        if outcome == "deleted":
            return f"{subject} was cancelled"
        last = await self.progress()
        return f"{subject} has failed: {last.text if last and last.failed else outcome}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, task={self.task!r})"


class Handle(Blocking[AsyncHandle]):
    """A job. `id` is the id of its message: search, the Event Log and the console know it by that."""

    status = blocking(AsyncHandle.status)
    result = blocking(AsyncHandle.result)
    cancel = blocking(AsyncHandle.cancel)
    progress = blocking(AsyncHandle.progress)

    @property
    def id(self) -> str:
        return self._asynchronous.id

    @property
    def task(self) -> str:
        return self._asynchronous.task

    def __repr__(self) -> str:
        return f"Handle(id={self.id!r}, task={self.task!r})"


def _status(document: _Document) -> Status:
    # The last attempt runs while the message is in the dead-letter queue already: it has not failed yet.
    if document.failed and document.status not in ("leased", "delayed"):
        return "failed"
    if document.status in _STATUSES:
        return _STATUSES[document.status]
    if document.success:
        return "done"
    return "cancelled" if document.state == "D" else "failed"
