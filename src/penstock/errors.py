"""The closed list of errors: whose fault, what happens next.

A refusal that a client can cause is a value (`Reason`, carried by `model.Refused`), not an exception: a dialect
turns it into its own words. The exceptions below end a request, a start-up, or the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class Reason(Enum):
    """Why a command was refused. The client's business: it is answered in its dialect and nothing changed."""

    NO_QUEUE = "the queue does not exist"
    QUEUE_EXISTS = "a queue with this name already exists"
    IS_CHANNEL = "this is a channel, which gets only what it has subscribed to; publish to one of its topics"
    NO_DEAD_LETTER_QUEUE = "the dead-letter queue does not exist"
    NOT_TOGETHER = "these settings do not go together"
    CONFIRMATIONS_COUNT = "confirmations cannot be lowered while consumers have messages or have settled some"
    NO_MESSAGE = "the message does not exist"
    NO_OBJECT = "nothing is known of this object and key"
    LEASE_GONE = "the message is not leased to this consumer"
    LEASED = "a consumer has the message"
    NOT_DELAYED = "the message is not delayed"
    NO_CURSOR = "the queue hands its messages to workers, who have no cursor"
    NO_RESULTS = "the queue keeps no results: they leave with their messages"
    TOO_MANY_RECEIVERS = "the queue has as many receivers as it may"
    TOO_MANY_DELIVERIES = "the messages would go to more places than one publish may fill"
    TOO_MANY_QUEUES = "the broker holds as many queues as it may"
    TOO_MANY_NAMES = "name limit reached"
    TOO_MANY_KEYS = "the Object History holds as many keys as it may"
    HISTORY_BEHIND = "the Object History cannot be written as fast as it changes"
    NOT_STAGED = "not all of what is to be committed is staged"
    STAGING_FULL = "the broker holds as many rows of batches that are not committed as it may"
    UNAVAILABLE = "the log cannot be written"
    DAMAGED = "the log is damaged"


class PenstockError(Exception):
    """The base of every error raised on purpose."""


class ProtocolError(PenstockError):
    """The peer's fault: what it sent cannot be understood. Answered in its dialect."""


class ConfigError(PenstockError):
    """The operator's fault: a setting is wrong. The broker does not start."""


class DataDirectoryError(PenstockError):
    """The data directory cannot be used: it cannot be read or written, or is not ours. The broker does not start."""


class InUseError(PenstockError):
    """Another process has the port or the directory. The command does not start, and names that process."""


class DamagedLogError(PenstockError):
    """Bytes that were once whole are not any more. If a start has to replay them, it stops and names what is lost."""


class DamagedHeaderError(DamagedLogError):
    """The header of a segment is damaged. A start needs it only if it replays the segment."""


class DamagedExtentError(DamagedLogError):
    """Bytes of messages that lie in a damaged part of the log. The broker sets those messages aside and goes on."""

    def __init__(self, text: str, ranges: Sequence[tuple[int, int]]) -> None:
        super().__init__(text)
        self.ranges = ranges  # Positions, from and to: every damaged part of the same segment.


class HistoryError(PenstockError):
    """The Object History cannot be used: it is missing, damaged, or not that of this log. The broker does not start,
    and says how to rebuild it."""


class EventsRemovedError(PenstockError):
    """Events that were asked for are past the Event Log's retention. The reader goes on from what is left, or not."""

    def __init__(self, earliest: int) -> None:
        super().__init__(f"events before offset {earliest} are no longer there")
        self.earliest = earliest


class LogFailedError(PenstockError):
    """A write or an fsync failed. What waits is failed, nothing more is written, recovery replays the log."""


class OptionError(PenstockError):
    """The fault of who wrote a Spark job: an option is wrong or missing. The query does not start."""


class EventsLostError(PenstockError):
    """Events that a Spark job is to read are not there, or not the same any more. The query ends, unless it was told
    to go on with what is left."""


class MessagesLostError(PenstockError):
    """Messages of a batch that a Spark job reads again are with other consumers now. The query ends, unless it was
    told to go on without them."""


class BrokerError(PenstockError):
    """A broker cannot be reached, or refuses. The task of the Spark job fails; Spark may try it again."""


class SparkError(PenstockError):
    """Spark does not start, or a job of ours has failed. The command ends."""


class LakeError(PenstockError):
    """A lake is not there, is another log's, or is used by somebody else. The command ends."""
