"""Rows as Spark stages them."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

Rows = dict[str, Any]


def arrow(rows: Rows, compression: str | None = None) -> bytes:
    table = pa.table(rows)
    buffer = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(buffer, table.schema, options=options) as stream:
        stream.write_table(table)
    return buffer.getvalue()
