"""The engine: `decide` reads the state and changes nothing; `evolve` changes it and asks nothing.

Live traffic and recovery use the same `evolve`, so a replay leads to the same state. Time is passed in, and every
decision is later than the last event: two things never happen to one message at the same time.

The two tables below say which function of `decide/` answers a command and which function of `evolve/` applies an
event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.engine import snapshot
from penstock.engine.decide.carry import carry
from penstock.engine.decide.claims import finish_claimed, read_claimed
from penstock.engine.decide.damage import delete, restore, set_aside
from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.decide.fetch import fetch
from penstock.engine.decide.finish import finish, finish_many, release
from penstock.engine.decide.move import cancel, redrive, reschedule
from penstock.engine.decide.names import forget_names
from penstock.engine.decide.publish import publish, publish_run
from penstock.engine.decide.publish_topics import publish_topics
from penstock.engine.decide.pull import pull, receive, result_of, waiting
from penstock.engine.decide.purge import purge
from penstock.engine.decide.queues import (
    create_queue,
    delete_queue,
    describe_object,
    describe_queue,
    list_queues,
    update_queue,
)
from penstock.engine.decide.search import candidates, list_held, look_up, scheduled, search
from penstock.engine.decide.settle import extend, settle, settle_many
from penstock.engine.decide.staging import admit_rows, commit_batch, describe_staged, drop_staged, stage_rows
from penstock.engine.decide.tick import tick
from penstock.engine.evolve import arrivals, messages, queues, receivers, staging
from penstock.engine.queue import Section
from penstock.engine.state import EngineState
from penstock.model.answers import Answer, Decision
from penstock.model.commands import (
    AdmitRows,
    AwaitResult,
    Cancel,
    Carry,
    Command,
    CommitBatch,
    CreateQueue,
    Delete,
    DeleteQueue,
    DescribeObject,
    DescribeQueue,
    DescribeStaged,
    DropStaged,
    Extend,
    Fetch,
    Finish,
    FinishClaimed,
    FinishMany,
    ForgetNames,
    ListCandidates,
    ListHeld,
    ListQueues,
    ListScheduled,
    LookUp,
    Publish,
    PublishRun,
    PublishTopics,
    Pull,
    Purge,
    ReadClaimed,
    Receive,
    Redrive,
    Release,
    Reschedule,
    Restore,
    Search,
    SetAside,
    Settle,
    SettleMany,
    StageRows,
    Tick,
    UpdateQueue,
)
from penstock.model.events import (
    Admitted,
    BatchCommitted,
    Carried,
    Completed,
    Damaged,
    DeadLettered,
    Declined,
    Deleted,
    Delivered,
    DeliveredRun,
    Event,
    Expired,
    Extended,
    Failed,
    FailedForAll,
    Fetched,
    FetchedRun,
    GivenBack,
    HandedOver,
    HandedOverRun,
    HandedToReceiver,
    HandedToReceiverRun,
    Invalidated,
    Logged,
    LoggedRun,
    Moved,
    NameDefined,
    NameForgotten,
    QueueChanged,
    QueueCreated,
    Queued,
    QueuedRun,
    QueueRemoved,
    ReceiverMoved,
    Rescheduled,
    Restored,
    ResultCarried,
    ResultStored,
    Retried,
    Staged,
    Succeeded,
    SucceededRun,
    TimedOut,
    Unchanged,
    UnchangedRun,
    Unstaged,
)
from penstock.model.values import Nanos, Position

DECIDE: dict[type[Command], Callable[[Draft, Any], Answer]] = {
    Publish: publish,
    PublishRun: publish_run,
    PublishTopics: publish_topics,
    Fetch: fetch,
    Finish: finish,
    FinishMany: finish_many,
    Release: release,
    Settle: settle,
    SettleMany: settle_many,
    Extend: extend,
    Pull: pull,
    Receive: receive,
    AwaitResult: result_of,
    ReadClaimed: read_claimed,
    FinishClaimed: finish_claimed,
    Tick: tick,
    Cancel: cancel,
    Reschedule: reschedule,
    Redrive: redrive,
    Delete: delete,
    Purge: purge,
    SetAside: set_aside,
    Restore: restore,
    Carry: carry,
    Search: search,
    ListCandidates: candidates,
    ListHeld: list_held,
    LookUp: look_up,
    ListScheduled: scheduled,
    CreateQueue: create_queue,
    UpdateQueue: update_queue,
    DeleteQueue: delete_queue,
    DescribeQueue: describe_queue,
    ListQueues: list_queues,
    DescribeObject: describe_object,
    StageRows: stage_rows,
    CommitBatch: commit_batch,
    AdmitRows: admit_rows,
    DropStaged: drop_staged,
    DescribeStaged: describe_staged,
    ForgetNames: forget_names,
}

EVOLVE: dict[type[Event], Callable[[EngineState, Any, Position], None]] = {
    Logged: arrivals.logged,
    LoggedRun: arrivals.logged_run,
    Queued: arrivals.queued,
    QueuedRun: arrivals.queued_run,
    Unchanged: arrivals.unchanged,
    UnchangedRun: arrivals.unchanged_run,
    Fetched: messages.fetched,
    FetchedRun: messages.fetched_run,
    HandedOver: messages.done_with,
    HandedOverRun: messages.handed_over_run,
    Succeeded: messages.done_with,
    SucceededRun: messages.succeeded_run,
    Retried: messages.retried,
    TimedOut: messages.retried,
    Failed: messages.done_with,
    DeadLettered: messages.dead_lettered,
    Invalidated: messages.refused,
    Declined: messages.refused,
    Completed: messages.completed,
    Extended: messages.extended,
    Rescheduled: messages.rescheduled,
    Moved: messages.moved,
    Damaged: messages.damaged,
    Restored: messages.restored,
    Expired: messages.ended,
    Deleted: messages.ended,
    Carried: messages.carried,
    Delivered: receivers.delivered,
    DeliveredRun: receivers.delivered_run,
    HandedToReceiver: receivers.handed_to_receiver,
    HandedToReceiverRun: receivers.handed_to_receiver_run,
    GivenBack: receivers.given_back,
    FailedForAll: receivers.failed_for_all,
    ResultStored: receivers.result_stored,
    ResultCarried: receivers.result_carried,
    ReceiverMoved: receivers.receiver_moved,
    QueueCreated: queues.queue_created,
    QueueChanged: queues.queue_changed,
    QueueRemoved: queues.queue_removed,
    NameDefined: queues.name_defined,
    NameForgotten: queues.name_forgotten,
    Staged: staging.staged,
    BatchCommitted: staging.batch_committed,
    Admitted: staging.admitted,
    Unstaged: staging.unstaged,
}


class Engine(EngineState):
    """The state, and the calls that the rest of the broker needs. `advance` is a call too: see `EngineState`."""

    def decide(self, command: Command, now: Nanos) -> Decision:
        assert now > self.time, "a decision is later than the last event"
        draft = Draft(self, now)
        try:
            answer = DECIDE[type(command)](draft, command)
        except RefusedError as error:
            return Decision((), error.refused)
        return Decision(draft.events, answer)

    def evolve(self, event: Event, position: Position) -> None:
        """Apply an event. `position` is where the log put its extent."""
        self.time = event.time
        EVOLVE[type(event)](self, event, position)

    def waiting(self, command: Pull) -> Pull:
        """The pull of a client that waits after a first look, which has stored its results."""
        return waiting(self, command)

    def sections(self) -> Iterator[Section]:
        """The whole state, in pieces: what `restore` takes."""
        return snapshot.sections_of(self)

    def restore(self, sections: Iterable[Section]) -> None:
        """Take the state of a snapshot. The engine must be new."""
        snapshot.restore(self, sections)
