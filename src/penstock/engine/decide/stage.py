"""Stage, commit and drop batches of stream processors, and admit their rows to queues step by step."""

from __future__ import annotations

from penstock.engine.decide.draft import Draft
from penstock.engine.decide.publish import publish, publish_run
from penstock.engine.decide.publish_topics import publish_topics
from penstock.errors import Reason
from penstock.limits import STAGED_CHUNKS_MAX
from penstock.model.answers import Answer, Done, Refused, RowsTaken, StagedDescription
from penstock.model.commands import (
    AdmitRows,
    CommitBatch,
    DescribeStaged,
    DropStaged,
    Publish,
    PublishRun,
    PublishTopics,
    StageRows,
    TakeRows,
)
from penstock.model.courier_commands import CheckStaged
from penstock.model.events import Admitted, BatchCommitted, Staged, Unstaged
from penstock.model.staging import roots_of

_DONE = Done()


def stage_rows(draft: Draft, command: StageRows) -> Done | Refused:
    staging = draft.state.staging
    if staging.is_committed(command.query, command.batch):
        return _DONE
    batch = staging.batches.get((command.query, command.batch))
    there = len(batch.parts.get(command.part, ())) if batch else 0
    if command.chunk < there:
        return _DONE
    if command.chunk > there:
        return Refused(Reason.NOT_STAGED, f"part {command.part} continues with chunk {there}, got {command.chunk}")
    if staging.bytes + len(command.data) > command.bytes_max or staging.chunks >= STAGED_CHUNKS_MAX:
        return Refused(Reason.STAGING_FULL, f"{command.bytes_max >> 20} MiB, {STAGED_CHUNKS_MAX} chunks")
    if refused := _refusal(draft, command.queues - command.elsewhere, roots_of(command.topics)):
        return refused
    what = (command.query, command.batch, command.part, command.chunk, command.rows)
    draft.events.append(Staged(draft.now, *what, draft.now + command.lifetime_ns, command.data))
    return _DONE


def check_staged(draft: Draft, command: CheckStaged) -> Done | Refused:
    return _refusal(draft, command.queues, command.roots) or _DONE


def _refusal(draft: Draft, queues: frozenset[str], roots: frozenset[str]) -> Refused | None:
    if missing := queues.difference(draft.state.numbers):
        return Refused(Reason.NO_QUEUE, min(missing))
    channels = [root for root in roots if draft.state.is_channel(root)]
    return Refused(Reason.IS_CHANNEL, min(channels)) if channels else None


def commit_batch(draft: Draft, command: CommitBatch) -> Done | Refused:
    staging = draft.state.staging
    if staging.is_committed(command.query, command.batch):
        return _DONE
    batch = staging.batches.get((command.query, command.batch))
    for part, chunks in command.parts:
        there = len(batch.parts.get(part, ())) if batch else 0
        if there != chunks:
            return Refused(Reason.NOT_STAGED, f"part {part} has {there} chunks of {chunks}")
    parts = tuple(part for part, chunks in command.parts if chunks)
    draft.events.append(BatchCommitted(draft.now, command.query, command.batch, parts))
    return _DONE


def admit_rows(draft: Draft, command: AdmitRows) -> Answer:
    """Publish rows and record the progress of the batch, in one decision. Rows for a queue that was removed meanwhile
    are skipped; rows that are refused for another reason wait until they are accepted."""
    if not draft.state.staging.stands_at(command.query, command.batch, command.at):
        return Refused(Reason.NOT_STAGED)
    answer = _publish(draft, command.publish) if command.publish else _DONE
    if not isinstance(answer, Refused) or answer.reason is Reason.NO_QUEUE:
        draft.events.append(Admitted(draft.now, command.query, command.batch, *command.to))
    return answer


def take_rows(draft: Draft, command: TakeRows) -> Answer:
    """Publish rows that another shard has sent, once: it sends them again until it has recorded that they are here,
    and may cut them otherwise then."""
    at = command.batch, *command.at
    batch, *reached = draft.state.staging.taken.get(command.query, at)
    if (batch, *reached) > at:
        return RowsTaken(*(reached if batch == command.batch else command.to))
    answer = _publish(draft, command.publish)
    if isinstance(answer, Refused) and answer.reason is not Reason.NO_QUEUE:
        return answer
    draft.events.append(Admitted(draft.now, command.query, command.batch, *command.to))
    return answer if isinstance(answer, Refused) else RowsTaken(*command.to)


def _publish(draft: Draft, command: Publish | PublishRun | PublishTopics) -> Answer:
    if isinstance(command, PublishTopics):
        return publish_topics(draft, command)
    if isinstance(command, PublishRun):
        return publish_run(draft, command)
    return publish(draft, command)


def drop_staged(draft: Draft, command: DropStaged) -> Done:
    batches = draft.state.staging.batches
    if command.query:
        late = [batches[each] for each in [(command.query, command.batch)] if each in batches]
    else:
        late = [batch for batch in batches.values() if batch.expires_at <= draft.now]
    draft.events += [Unstaged(draft.now, batch.query, batch.batch) for batch in late]
    return _DONE


def describe_staged(draft: Draft, command: DescribeStaged) -> StagedDescription:
    staging = draft.state.staging
    admitting = sum(each.rows_left for each in staging.admissions if each.query == command.query)
    staged = [each.parts.values() for each in staging.batches.values() if each.query == command.query]
    rows = sum(chunk.rows for parts in staged for chunks in parts for chunk in chunks)
    return StagedDescription(staging.committed.get(command.query), admitting, rows)
