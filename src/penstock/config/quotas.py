"""What can be set about quotas."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from penstock.config.types import between

_COUNT_MAX = 1 << 40


class QuotaLimits(Struct, frozen=True, kw_only=True):
    """What one account may use. 0: no limit."""

    connections: Annotated[int, between(0, 1_000_000, "Open connections; further ones are refused.")] = 0
    connections_per_second: Annotated[
        int, between(0, _COUNT_MAX, "New connections in a second; further ones are refused.")
    ] = 0
    bytes_per_second: Annotated[int, between(0, _COUNT_MAX, "Bytes that the broker reads in a second.")] = 0
    requests_per_second: Annotated[
        int, between(0, _COUNT_MAX, "HTTP requests, JSON lines and WebSocket messages in a second.")
    ] = 0
    published_per_second: Annotated[int, between(0, _COUNT_MAX, "Messages published in a second.")] = 0
    received_per_second: Annotated[int, between(0, _COUNT_MAX, "Messages received in a second.")] = 0
    queues_per_minute: Annotated[int, between(0, _COUNT_MAX, "Queues and channels created in a minute.")] = 0
    waiting: Annotated[
        int, between(0, 1_000_000, "Requests that wait at once: long polls, sleeping workers, pulls, waits.")
    ] = 0
    unread_bytes: Annotated[
        int, between(0, _COUNT_MAX, "Size of answers that are not read; above it, the connection is closed.")
    ] = 0
    work_seconds_per_second: Annotated[
        float,
        between(
            0, 60, "Seconds of work in a second for pipelined and large requests, lists and metrics; then they wait."
        ),
    ] = 0.0
    search_seconds_per_minute: Annotated[
        float, between(0, 600, "Seconds of work in a minute for searches and documents of messages.")
    ] = 0.0
    replay_seconds_per_minute: Annotated[
        float, between(0, 600, "Seconds of work in a minute for readers of the Event Log; then they pause.")
    ] = 0.0


class QuotaConfig(Struct, frozen=True, kw_only=True):
    """Each quota exists for every identity and for every address of clients."""

    identity: QuotaLimits = QuotaLimits()
    address: QuotaLimits = QuotaLimits()
