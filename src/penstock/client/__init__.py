"""The Python client: `Client` for plain code and threads, `AsyncClient` for asyncio.

It knows nothing of the broker but its public API (`docs/native.md`).
"""

from __future__ import annotations

from penstock.client.asynchronous import AsyncClient, AsyncMessage, AsyncSent
from penstock.client.blocking import Client, Message, Sent
from penstock.client.causes import caused_by
from penstock.client.results import Confirmed, Event, Found, Health, Job, Outcome, Queue

__all__ = [
    "AsyncClient",
    "AsyncMessage",
    "AsyncSent",
    "Client",
    "Confirmed",
    "Event",
    "Found",
    "Health",
    "Job",
    "Message",
    "Outcome",
    "Queue",
    "Sent",
    "caused_by",
]
