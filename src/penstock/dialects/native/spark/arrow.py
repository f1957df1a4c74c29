"""What stream processors exchange in Arrow, loaded when it is first needed: a broker works without pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import Fault, ProtocolError
from penstock.ids import MessageIds
from penstock.model.answers import Delivery

if TYPE_CHECKING:
    from penstock.dialects.native.spark.staged_rows import StagedRows


def check_arrow() -> None:
    """Raises `ProtocolError` where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401 - Only whether it is there.
    except ModuleNotFoundError:
        raise ProtocolError(Fault.NO_ARROW.sentence, Fault.NO_ARROW) from None


def staged_rows(data: bytes, *, trusted: bool = True) -> StagedRows:
    """The rows of an Arrow stream. Raises `ProtocolError` if it cannot be read. Not `trusted`: it comes from a
    client, and was not checked before."""
    check_arrow()
    from penstock.dialects.native.spark.staged_rows import StagedRows

    return StagedRows(data, trusted=trusted)


def claimed_rows(deliveries: list[Delivery], ids: MessageIds) -> bytes:
    """The deliveries as an Arrow stream."""
    from penstock.dialects.native.spark.claimed_rows import encoded

    return encoded(deliveries, ids)
