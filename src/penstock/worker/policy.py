"""The settings of the queues that an app makes: how often a job is tried, how long it waits in between, its lease.

Retries and delays are the broker's work. A worker gives a failed job back and forgets it; nothing sleeps with a job.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Literal, TypedDict

from msgspec import Struct, structs

from penstock.client.results import QueueSettings
from penstock.limits import INT32_MAX
from penstock.worker.errors import TaskError

OWN = ""  # As a dead-letter queue: one for this queue alone, made with it.
FAILED_SETTINGS: QueueSettings = {"retention_timeout": 14 * 86_400}  # Of a dead-letter queue that is made.
_WITHOUT_END = INT32_MAX
Backoff = Literal["fixed", "linear", "exponential"]


class PolicyOptions(TypedDict, total=False):
    """What a task may say about its queue."""

    max_attempts: int | None
    retry_backoff: Backoff
    retry_delay: float
    retry_delay_max: float | None
    retry_jitter: float
    lease: float
    dead_letter_queue: str | None


class Policy(Struct, frozen=True):
    """How a queue treats the jobs of its tasks."""

    max_attempts: int | None = 6  # With the first one. None: without end.
    retry_backoff: Backoff = "exponential"
    retry_delay: float = 1.0  # Seconds before the second attempt.
    retry_delay_max: float | None = 3600.0
    retry_jitter: float = 0.1  # The share of a delay that is taken off at random.
    lease: float = 30.0  # Seconds after which a job of a worker that died is given to another one.
    dead_letter_queue: str | None = OWN  # None: jobs that have failed are dropped.

    def dead_letters_of(self, queue: str) -> str | None:
        """Where jobs of this queue go that have failed for good."""
        return f"{queue}.failed" if self.dead_letter_queue == OWN else self.dead_letter_queue

    def settings(self, queue: str) -> QueueSettings:
        """Of this queue, as the broker has them."""
        redrive = None
        if dead_letters := self.dead_letters_of(queue):
            redrive = {"max_receives": self.max_attempts or _WITHOUT_END, "dead_letter_queue": dead_letters}
        settings: dict[str, Any] = {
            "lease": self.lease,
            "max_attempts": self.max_attempts,
            "retry_delay": self.retry_delay,
            "retry_backoff": self.retry_backoff,
            "retry_delay_max": self.retry_delay_max,
            "retry_jitter": self.retry_jitter,
            "redrive_policy": redrive,
        }
        return settings  # type: ignore[return-value]


class Policies:
    """The policy of each queue: what its tasks have said, and the defaults for the rest."""

    def __init__(self) -> None:
        self._given: dict[str, dict[str, tuple[Any, str]]] = {}  # With the task that said it first.

    def add(self, queue: str, task: str, options: PolicyOptions) -> None:
        given = self._given.setdefault(queue, {})
        for name in options.keys() & PolicyOptions.__annotations__.keys():
            value: Any = options[name]  # type: ignore[literal-required]
            known, first = given.setdefault(name, (value, task))
            if known != value:
                raise TaskError(
                    f"tasks {first} and {task} share the queue {queue}, but their {name} differs ({known}, {value});"
                    " use the same value, leave it out in one of them, or give one a queue of its own"
                )
        self.of(queue)

    def of(self, queue: str) -> Policy:
        options = {name: value for name, (value, _) in self._given.get(queue, {}).items()}
        policy = structs.replace(Policy(), **options)
        if policy.lease < 1:
            raise TaskError(
                f"queue {queue}: a lease of {policy.lease:g} s is too short to be extended; use 1 or more"
            )
        if policy.max_attempts is not None and policy.max_attempts < 1:
            raise TaskError(f"queue {queue}: max_attempts is 1 or more, got {policy.max_attempts}")
        return policy


def differences(wanted: QueueSettings, found: object, *, besides: Collection[str] = ()) -> list[str]:
    """What a queue that exists has otherwise than an app wants it, for people."""
    lines = []
    for name, value in wanted.items():
        if name in besides:
            continue
        actual = getattr(found, name)
        if actual != value:
            lines.append(f"{name} is {actual}, the app wants {value}")
    return lines
