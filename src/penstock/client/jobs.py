"""Work that the broker goes on with after it has answered: purges and redrives."""

from __future__ import annotations

import asyncio
from typing import Literal

from penstock.client.encoding import path
from penstock.client.results import Job
from penstock.client.session import Session

_LOOK_SECONDS = 0.2


async def finished(session: Session, job: Job, kind: Literal["redrive", "purges"]) -> Job:
    """Look at a job until it is over, or until the time of the client is up."""
    loop = asyncio.get_running_loop()
    end = loop.time() + session.timeout
    while job.state == "running" and loop.time() < end:
        await asyncio.sleep(_LOOK_SECONDS)
        job = await session.get(path(kind, job.job), Job)
    return job
