"""What can be set for three of the dialects. With `config.py`, everything that can be set."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from penstock import limits
from penstock.config.types import above_0, between, described
from penstock.model.settings import QueueSettings

_DAY_SECONDS = 86_400


class MqsConfig(Struct, frozen=True, kw_only=True):
    oversize: Annotated[
        Literal["cut", "reject"],
        described("What happens to a body over 1 MiB: it is truncated to that size, or refused with 413."),
    ] = "cut"
    delete_status: Annotated[
        Literal[204, 200],
        described("Status of the answer when a message is deleted: 204 as documented, 200 for the origin's client."),
    ] = 204


class GloveboxConfig(Struct, frozen=True, kw_only=True):
    create_queues: Annotated[bool, described("Whether clients may create queues.")] = True
    errors: Annotated[
        Literal["all", "origin"],
        described(
            "Error codes that clients get: all, or only those that the origin's clients understand (PermissionDenied"
            " instead of BadRequest and Unavailable)."
        ),
    ] = "all"
    followed_max: Annotated[int, between(0, 1 << 20, "Messages that one session can follow at once.")] = 10_000
    sessions_max: Annotated[int, between(0, 1 << 20, "Durable sessions that are kept while disconnected.")] = 1000
    session_seconds: Annotated[float, above_0(_DAY_SECONDS, "How long a disconnected durable session is kept.")] = (
        300.0
    )
    session_replies_max: Annotated[
        int, between(1, 1 << 20, "Messages and notices that are kept for a disconnected durable session.")
    ] = 10_000
    session_bytes_max: Annotated[int, between(1 << 16, 1 << 30, "Size of these messages and notices.")] = 8 << 20


class NqConfig(Struct, frozen=True, kw_only=True):
    empty_status: Annotated[
        Literal[404, 204],
        described("Status of a pull that found nothing: 404 with the last ids, or 204 without content."),
    ] = 404
    retry_num: Annotated[
        int,
        between(0, limits.RETRIES_MAX, "Default of a pull: how often a message without a result is delivered again."),
    ] = 0
    fail_timeout: Annotated[
        float, between(0.001, limits.FAIL_SECONDS_MAX, "Default of a pull: seconds until it is delivered again.")
    ] = 120.0
    timeout: Annotated[
        float, between(0, limits.PULL_SECONDS_MAX, "Default of a pull: seconds that it waits for a first message.")
    ] = 60.0
    retention_seconds: Annotated[
        int, between(1, limits.INT32_MAX, "How long messages stay in a queue that was created by a post.")
    ] = 7 * _DAY_SECONDS

    @property
    def new_queue(self) -> QueueSettings:
        """The settings of a queue that a post creates."""
        return QueueSettings(keep="all", retention_ns=self.retention_seconds * limits.SECOND_NS)
