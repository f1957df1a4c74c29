"""The engine: `decide` reads the state and changes nothing; `evolve` changes it and refuses nothing.

Live traffic and recovery use the same `evolve`, so a replay leads to the same state. Time is passed in, and every
decision is later than the last event, so no two events of a message have the same time.

The two tables below map commands to functions of `decide/`, and events to functions of `evolve/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.engine import snapshot
from penstock.engine.decide import (
    administer,
    admit,
    claims,
    damage,
    fetch,
    finish,
    move,
    publish,
    publish_once,
    publish_topics,
    pull,
    search,
    settle,
    stage,
    upkeep,
)
from penstock.engine.decide import schedules as scheduling
from penstock.engine.decide import tokens as token_changes
from penstock.engine.decide.draft import Draft, RefusedError
from penstock.engine.evolve import administration, arrivals, couriers, messages, receivers, staging
from penstock.engine.state import EngineState
from penstock.model import commands, courier_commands, events, schedules, shard_events, tokens
from penstock.model.answers import Answer, Decision, Done
from penstock.model.consuming import Consume
from penstock.model.probe import Probe
from penstock.model.values import Nanos, Position

DECIDE: dict[type[commands.Command], Callable[[Draft, Any], Answer]] = {
    commands.Publish: publish.publish,
    commands.PublishRun: publish.publish_run,
    commands.PublishTopics: publish_topics.publish_topics,
    commands.PublishOnce: publish_once.publish_once,
    commands.Fetch: fetch.fetch,
    commands.Finish: finish.finish,
    commands.FinishMany: finish.finish_many,
    commands.Release: finish.release,
    commands.Settle: settle.settle,
    commands.SettleMany: settle.settle_many,
    commands.Extend: settle.extend,
    commands.Pull: pull.pull,
    commands.Receive: pull.receive,
    Consume: pull.consume,
    commands.AwaitResult: pull.result_of,
    commands.ReadClaimed: claims.read_claimed,
    commands.FinishClaimed: claims.finish_claimed,
    commands.Tick: upkeep.tick,
    commands.Cancel: move.cancel,
    commands.Reschedule: move.reschedule,
    commands.Redrive: move.redrive,
    commands.Delete: damage.delete,
    commands.Purge: upkeep.purge,
    commands.SetAside: damage.set_aside,
    commands.Restore: damage.restore,
    commands.Carry: upkeep.carry,
    commands.Search: search.search,
    commands.ListCandidates: search.candidates,
    commands.ListHeld: search.list_held,
    commands.LookUp: search.look_up,
    commands.ListScheduled: search.scheduled,
    commands.CreateQueue: administer.create_queue,
    commands.UpdateQueue: administer.update_queue,
    commands.DeleteQueue: administer.delete_queue,
    commands.DescribeQueue: administer.describe_queue,
    commands.ListQueues: administer.list_queues,
    commands.DescribeObject: administer.describe_object,
    commands.StageRows: stage.stage_rows,
    commands.CommitBatch: stage.commit_batch,
    commands.AdmitRows: stage.admit_rows,
    commands.TakeRows: stage.take_rows,
    commands.DropStaged: stage.drop_staged,
    commands.DescribeStaged: stage.describe_staged,
    schedules.SetSchedule: scheduling.set_schedule,
    schedules.DeleteSchedule: scheduling.delete_schedule,
    schedules.DescribeSchedule: scheduling.describe_schedule,
    schedules.ListSchedules: scheduling.list_schedules,
    schedules.RunSchedule: scheduling.run_schedule,
    schedules.RunDue: scheduling.run_due,
    tokens.SetToken: token_changes.set_token,
    tokens.RotateToken: token_changes.rotate_token,
    tokens.RevokeToken: token_changes.revoke_token,
    tokens.DescribeToken: token_changes.describe_token,
    tokens.ListTokens: token_changes.list_tokens,
    commands.ForgetNames: upkeep.forget_names,
    courier_commands.ListOwed: admit.list_owed,
    courier_commands.NoteTaken: admit.note_taken,
    courier_commands.Admit: admit.admit,
    courier_commands.Locate: admit.locate,
    courier_commands.ClaimKey: publish_once.claim_key,
    courier_commands.ReleaseKey: publish_once.release_key,
    courier_commands.NoteDecided: admit.note_decided,
    courier_commands.LearnChannel: lambda *_: Done(),
    courier_commands.CheckStaged: stage.check_staged,
    courier_commands.CheckDeadLetterQueue: administer.check_dead_letter_queue,
    courier_commands.NameQueues: administer.name_queues,
}
DECIDE[Probe] = administer.probe_with(DECIDE)

EVOLVE: dict[type[events.Event], Callable[[EngineState, Any, Position], None]] = {
    events.Logged: arrivals.logged,
    events.LoggedRun: arrivals.logged_run,
    events.Queued: arrivals.queued,
    events.QueuedRun: arrivals.queued_run,
    events.Unchanged: arrivals.unchanged,
    events.UnchangedRun: arrivals.unchanged_run,
    events.Fetched: messages.fetched,
    events.FetchedRun: messages.fetched_run,
    events.HandedOver: messages.done_with,
    events.HandedOverRun: messages.handed_over_run,
    events.Succeeded: messages.done_with,
    events.SucceededRun: messages.succeeded_run,
    events.Retried: messages.retried,
    events.TimedOut: messages.timed_out,
    events.Failed: messages.done_with,
    events.DeadLettered: messages.dead_lettered,
    events.Invalidated: messages.refused,
    events.Declined: messages.refused,
    events.InvalidatedForOne: receivers.refused_for_one,
    events.DeclinedForOne: receivers.refused_for_one,
    events.Completed: messages.completed,
    events.Extended: messages.extended,
    events.Rescheduled: messages.rescheduled,
    events.Moved: messages.moved,
    events.Damaged: messages.damaged,
    events.Restored: messages.restored,
    events.Expired: messages.ended,
    events.Deleted: messages.ended,
    events.Carried: messages.carried,
    events.Delivered: receivers.delivered,
    events.DeliveredRun: receivers.delivered_run,
    events.HandedToReceiver: receivers.handed_to_receiver,
    events.HandedToReceiverRun: receivers.handed_to_receiver_run,
    events.GivenBack: receivers.given_back,
    events.FailedForAll: receivers.failed_for_all,
    events.ResultStored: receivers.result_stored,
    events.ResultCarried: receivers.result_carried,
    events.ReceiverMoved: receivers.receiver_moved,
    events.QueueCreated: administration.queue_created,
    events.QueueChanged: administration.queue_changed,
    events.QueueRemoved: administration.queue_removed,
    events.NameDefined: administration.name_defined,
    events.NameForgotten: administration.name_forgotten,
    events.Staged: staging.staged,
    events.BatchCommitted: staging.batch_committed,
    events.Admitted: staging.admitted,
    events.Unstaged: staging.unstaged,
    events.Answered: administration.answered,
    schedules.ScheduleSet: administration.schedule_set,
    schedules.ScheduleRan: administration.schedule_ran,
    schedules.ScheduleSkipped: administration.schedule_skipped,
    schedules.ScheduleRemoved: administration.schedule_removed,
    events.Sent: couriers.sent,
    events.SentAsDead: couriers.sent,
    events.Arrived: couriers.arrived,
    events.CameFrom: couriers.came_from,
    events.CopiedFrom: couriers.copied_from,
    shard_events.Routed: couriers.routed,
    shard_events.Taken: couriers.taken,
    shard_events.Collected: couriers.collected,
    shard_events.Versioned: couriers.versioned,
    shard_events.Learned: couriers.learned,
    shard_events.LearnedRun: couriers.learned_run,
    shard_events.Decided: couriers.decided,
    shard_events.Promised: couriers.promised,
    tokens.TokenSet: administration.token_set,
    tokens.TokenRevoked: administration.token_revoked,
}


class Engine(EngineState):
    """The state, and the methods that the rest of the broker calls. One more, `advance`, is in `EngineState`."""

    def decide(self, command: commands.Command, now: Nanos, wall: Nanos | None = None) -> Decision:
        """`wall`: what the clock of the machine shows, if it is not `now`."""
        assert now > self.time, "a decision is later than the last event"
        draft = Draft(self, now, now if wall is None else wall)
        try:
            answer = DECIDE[type(command)](draft, command)
        except RefusedError as error:
            return Decision((), error.refused)
        return Decision(draft.events, answer)

    def evolve(self, event: events.Event, position: Position) -> None:
        """Apply an event. `position` is where the log put its extent."""
        self.time = event.time
        EVOLVE[type(event)](self, event, position)

    def waiting(self, command: commands.Pull) -> commands.Pull:
        """The command to decide again for a client that waits: its results are already stored."""
        return pull.waiting(self, command)

    def sections(self) -> Iterator[snapshot.Section]:
        """The whole state in pieces, for `restore`."""
        return snapshot.sections_of(self)

    def restore(self, sections: Iterable[snapshot.Section]) -> None:
        """Load the state of a snapshot. The engine must be new."""
        snapshot.restore(self, sections)
