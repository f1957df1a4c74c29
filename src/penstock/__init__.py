"""Penstock: one durable message queue that five kinds of client already know how to talk to."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.client import AsyncClient, Client
    from penstock.client.errors import MessageFailed
    from penstock.embedded import local
    from penstock.pipeline.lake.reading import LakeReader
    from penstock.worker import App, Reject, Retry, current_job

__version__ = "0.2.0"
__all__ = ["App", "AsyncClient", "Client", "MessageFailed", "Reject", "Retry", "current_job", "lake", "local"]

# Imported when they are first used, so that `import penstock` stays quick.
_LATE = {
    **dict.fromkeys(("AsyncClient", "Client"), "penstock.client"),
    **dict.fromkeys(("App", "Reject", "Retry", "current_job"), "penstock.worker"),
    "MessageFailed": "penstock.client.errors",
    "local": "penstock.embedded",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        from penstock.renamed import by_old_name

        return by_old_name(__name__, name, __getattr__)
    value = getattr(importlib.import_module(_LATE[name]), name)
    globals()[name] = value
    return value


def lake(path: str | Path) -> LakeReader:
    """The tables that `penstock pipeline` keeps in a directory.

    `penstock.lake("lake").table("messages").to_pandas()`. This needs the extra `penstock[spark]`, but starts neither
    Spark nor Java. Raises `penstock.errors.LakeError` where there is no lake.
    """
    try:
        from penstock.pipeline.lake.reading import open_lake
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f'{error.name} is missing: pip install "penstock[spark]"', name=error.name
        ) from None
    return open_lake(path)
