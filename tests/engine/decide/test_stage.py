"""Batches that count once and whole, through crashes at every point, against a model too simple to be wrong."""

from __future__ import annotations

import copy
import json
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.engine.engine import Engine
from penstock.errors import Reason
from penstock.limits import STAGED_QUERIES_MAX
from penstock.model.answers import Answer, Done, Refused, RowsTaken, StagedDescription
from penstock.model.commands import (
    AdmitRows,
    CommitBatch,
    CreateQueue,
    DeleteQueue,
    DescribeStaged,
    DropStaged,
    NewMessage,
    Publish,
    PublishRun,
    StageRows,
    TakeRows,
)
from penstock.model.settings import QueueSettings
from penstock.storage.memory import MemoryLog
from tests.support.effort import effort
from tests.support.engine_rig import Rig, copied_sections, state_of

LIFETIME_NS = 100
BYTES_MAX = 10_000
Rows = list[bytes]


class Driver(Rig):
    """A rig that stages rows as JSON, and lets committed ones in as the broker does."""

    def stage(self, query: str, batch: int, part: str, chunk: int, rows: Rows, bytes_max: int = BYTES_MAX) -> Answer:
        data = json.dumps([row.decode() for row in rows]).encode()
        queues = frozenset(["work"])
        return self.do(StageRows(query, batch, part, chunk, len(rows), data, queues, LIFETIME_NS, bytes_max))

    def commit(self, query: str, batch: int, **parts: int) -> Answer:
        return self.do(CommitBatch(query, batch, list(parts.items())))

    def admit(self, most: int = 100) -> None:
        """One step."""
        admission = self.engine.staging.admissions[0]
        chunk = admission.chunks[admission.chunk]
        rows = [row.encode() for row in json.loads(self.log.read(chunk.position, chunk.size))]
        end = min(admission.row + most, chunk.rows)
        publish = PublishRun("work", NewMessage(b""), rows[admission.row : end])
        at, to = (admission.chunk, admission.row), (admission.chunk, end)
        to = (admission.chunk + 1, 0) if end == chunk.rows else to
        self.do(AdmitRows(admission.query, admission.batch, at, to, publish))

    def admit_all(self, most: int = 100) -> None:
        while self.engine.staging.admissions:
            self.admit(most)

    def found(self) -> Rows:
        """The bodies of the queue, in order."""
        queue = self.engine.queue("work")
        assert queue is not None
        rows = [row for sequence in range(1, queue.last_sequence + 1) if (row := queue.rows.get(sequence))]
        return [self.log.read(row.position, row.body_bytes) for row in rows]

    def sync(self) -> None:
        if self.log.collecting:
            self.log.commit(self.now(), lambda _: None)

    def crash(self) -> None:
        """What was not synced never happened."""
        snapshot = self.log.snapshot
        self.log = MemoryLog(self.log.durable)
        self.log.snapshot = snapshot
        self.engine = Engine()
        sections, events = self.log.recover()
        if sections is not None:
            self.engine.restore(sections)
        for event, position in events:
            self.engine.evolve(event, position)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.create("work")
    return driver


# ── What holds ────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_staged_is_in_no_queue_until_it_is_committed_and_let_in(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"1", b"2"])
    driver.stage("q", 0, "a", 1, [b"3"])
    assert driver.counts("work") == (0, 0, 0)
    assert driver.commit("q", 0, a=2) == Done()
    assert driver.do(DescribeStaged("q")) == StagedDescription(committed=0, admitting=3, staged=0)
    driver.admit(most=1)
    assert driver.do(DescribeStaged("q")) == StagedDescription(committed=0, admitting=2, staged=0)
    driver.admit_all()
    assert driver.bodies("work") == [b"1", b"2", b"3"]
    assert driver.engine.staging.bytes == driver.engine.staging.chunks == 0


def test_only_the_parts_that_the_commit_names_count(driver: Driver) -> None:
    for part in ("first-try", "second-try", "twin"):
        driver.stage("q", 5, part, 0, [part.encode()])
    driver.stage("q", 4, "older", 0, [b"older"])
    driver.stage("other", 5, "first-try", 0, [b"other"])
    assert driver.do(CommitBatch("q", 5, [("second-try", 1)])) == Done()
    driver.admit_all()
    assert driver.bodies("work") == [b"second-try"]
    assert list(driver.engine.staging.batches) == [("other", 5)]


def test_a_batch_that_is_not_newer_changes_nothing(driver: Driver) -> None:
    driver.stage("q", 7, "a", 0, [b"once"])
    driver.commit("q", 7, a=1)
    driver.admit_all()
    before = state_of(driver.engine)
    for batch in (7, 6, 0):
        assert driver.stage("q", batch, "b", 0, [b"again"]) == Done()
        assert driver.commit("q", batch, b=1) == Done()
        assert driver.do(DropStaged("q", batch)) == Done()
    assert state_of(driver.engine) == before


def test_a_chunk_is_kept_once_and_in_order(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"1"])
    assert driver.stage("q", 0, "a", 0, [b"1"]) == Done()
    refused = driver.stage("q", 0, "a", 2, [b"3"])
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NOT_STAGED
    driver.stage("q", 0, "a", 1, [b"2"])
    driver.commit("q", 0, a=2)
    driver.admit_all()
    assert driver.bodies("work") == [b"1", b"2"]


@pytest.mark.parametrize("parts", [{"a": 2}, {"a": 0}, {"a": 1, "b": 1}])
def test_a_commit_of_what_is_not_there_is_refused_whole(driver: Driver, parts: dict[str, int]) -> None:
    driver.stage("q", 0, "a", 0, [b"1"])
    refused = driver.commit("q", 0, **parts)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NOT_STAGED
    assert not driver.engine.staging.committed


def test_an_empty_batch_counts(driver: Driver) -> None:
    assert driver.commit("q", 3, a=0) == Done()
    assert driver.do(DescribeStaged("q")) == StagedDescription(committed=3, admitting=0, staged=0)


def test_rows_need_a_queue_and_room(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"x" * 100])
    full = driver.stage("q", 0, "a", 1, [b"x" * 100], bytes_max=150)
    assert isinstance(full, Refused)
    assert full.reason is Reason.STAGING_FULL
    driver.do(DeleteQueue("work"))
    assert driver.stage("q", 0, "a", 1, [b"x"]) == Refused(Reason.NO_QUEUE, "work")


def test_rows_for_a_queue_that_is_removed_meanwhile_go_with_it(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"1", b"2"])
    driver.commit("q", 0, a=1)
    driver.admit(most=1)
    driver.do(DeleteQueue("work"))
    driver.admit_all()
    assert not driver.engine.staging.admissions
    driver.create("work")
    assert driver.bodies("work") == []


def test_what_nobody_commits_goes_when_its_time_is_over(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"1"])
    driver.clock = driver.now() + LIFETIME_NS // 2
    driver.stage("q", 0, "b", 0, [b"2"])  # The batch lives as long as something comes.
    driver.clock = driver.now() + LIFETIME_NS // 2
    driver.do(DropStaged())
    assert driver.engine.staging.chunks == 2
    driver.clock = driver.now() + LIFETIME_NS
    driver.do(DropStaged())
    assert driver.engine.staging.bytes == driver.engine.staging.chunks == 0
    assert isinstance(driver.commit("q", 0, a=1), Refused)


def test_the_query_that_has_not_committed_for_the_longest_time_is_forgotten_first(driver: Driver) -> None:
    staging = driver.engine.staging
    staging.committed.update({str(number): 0 for number in range(STAGED_QUERIES_MAX)})
    driver.commit("0", 1)
    driver.commit("new", 0)
    assert len(staging.committed) == STAGED_QUERIES_MAX
    assert "1" not in staging.committed
    assert staging.committed["0"] == 1


def test_a_step_that_comes_twice_is_refused(driver: Driver) -> None:
    driver.stage("q", 0, "a", 0, [b"1", b"2"])
    driver.commit("q", 0, a=1)
    step = AdmitRows("q", 0, (0, 0), (0, 1), Publish("work", [NewMessage(b"1")]))
    driver.do(step)
    assert driver.do(step) == Refused(Reason.NOT_STAGED)
    driver.admit_all()
    assert driver.bodies("work") == [b"1", b"2"]


# ── A crash at every point ────────────────────────────────────────────────────────────────────────────────────


def whole_job(driver: Driver, attempt: int) -> None:
    """Two batches of a query, from the start: what a driver does that finds nothing in its checkpoint."""
    for batch in (0, 1):
        for part in ("a", "b"):
            for chunk in (0, 1):
                rows = [f"{batch}{part}{chunk}{row}".encode() for row in (0, 1, 2)]
                driver.stage("q", batch, f"{part}{attempt}", chunk, rows)
                driver.sync()
        driver.do(CommitBatch("q", batch, [(f"a{attempt}", 2), (f"b{attempt}", 2)]))
        driver.sync()
        while driver.engine.staging.admissions:
            driver.admit(most=2)
            driver.sync()


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_job_that_is_killed_anywhere_and_starts_again_writes_every_row_once(snapshots: bool) -> None:
    first = Driver()
    first.create("work")
    whole_job(first, attempt=0)
    expected, commits = first.found(), len(first.log.durable)
    assert len(expected) == len(set(expected)) == 24
    for survived in range(1, commits + 1):
        again = Driver()
        again.log = MemoryLog(first.log.durable[:survived])
        again.crash()
        if snapshots:
            restored = Engine()
            restored.restore(copied_sections(again.engine))
            assert state_of(restored) == state_of(again.engine)
            again.engine = restored
        again.admit_all(most=2)  # What the broker does at its start.
        whole_job(again, attempt=1)
        assert again.found() == expected, f"after a crash behind commit {survived}"
        assert again.engine.staging.bytes == 0


# ── The model ─────────────────────────────────────────────────────────────────────────────────────────────────

queries = st.sampled_from(["p", "q"])
parts = st.sampled_from(["a", "b", "c"])
batches = st.integers(0, 3)


class Model:
    def __init__(self) -> None:
        self.staged: dict[tuple[str, int], dict[str, list[Rows]]] = defaultdict(lambda: defaultdict(list))
        self.touched: dict[tuple[str, int], int] = {}
        self.committed: dict[str, int] = {}
        self.admitting: Rows = []
        self.queue: Rows = []

    def forget(self, query: str, batch: int) -> None:
        self.staged.pop((query, batch), None)
        self.touched.pop((query, batch), None)


class StagingMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.driver = Driver()
        self.driver.create("work")
        self.model = Model()
        self.number = 0
        self.sync()

    @rule(query=queries, batch=batches, part=parts, chunk=st.integers(0, 2), count=st.integers(1, 15))
    def stage(self, query: str, batch: int, part: str, chunk: int, count: int) -> None:
        self.number += 1
        rows = [f"{query}{batch}{part}{self.number}-{row}".encode() for row in range(count)]
        answer = self.driver.stage(query, batch, part, chunk, rows)
        if self.model.committed.get(query, -1) >= batch:
            assert answer == Done()
            return
        there = self.model.staged.get((query, batch), {}).get(part, [])
        assert isinstance(answer, Refused) == (chunk > len(there))
        if chunk == len(there):
            self.model.staged[query, batch][part].append(rows)
            self.model.touched[query, batch] = self.driver.engine.time

    @rule(query=queries, batch=batches, chosen=st.sets(parts), really=st.booleans())
    def commit(self, query: str, batch: int, chosen: set[str], really: bool) -> None:
        staged = self.model.staged.get((query, batch), {})
        named = [(part, len(staged.get(part, ())) + (not really)) for part in sorted(chosen)]
        answer = self.driver.do(CommitBatch(query, batch, named))
        if self.model.committed.get(query, -1) >= batch:
            assert answer == Done()
            return
        if chosen and not really:
            assert isinstance(answer, Refused)
            return
        assert answer == Done()
        self.model.admitting += [row for part in sorted(chosen) for rows in staged.get(part, ()) for row in rows]
        self.model.committed[query] = batch
        for each in [each for each in self.model.staged if each[0] == query and each[1] <= batch]:
            self.model.forget(*each)

    @rule(query=queries, batch=batches)
    def drop(self, query: str, batch: int) -> None:
        assert self.driver.do(DropStaged(query, batch)) == Done()
        self.model.forget(query, batch)

    @rule(most=st.integers(1, 14))
    @precondition(lambda self: self.driver.engine.staging.admissions)
    def admit(self, most: int) -> None:
        before = len(self.driver.found())
        self.driver.admit(most)
        taken = len(self.driver.found()) - before
        self.model.queue += self.model.admitting[:taken]
        del self.model.admitting[:taken]

    @rule(ns=st.integers(1, 60))
    def expire(self, ns: int) -> None:
        self.driver.clock = self.driver.now() + ns
        now = self.driver.clock
        self.driver.do(DropStaged())
        for place in [place for place, time in self.model.touched.items() if time + LIFETIME_NS <= now]:
            self.model.forget(*place)

    @rule()
    def sync(self) -> None:
        self.driver.sync()
        self.durable = copy.deepcopy(self.model)

    @rule()
    def snapshot(self) -> None:
        self.sync()
        self.driver.take_snapshot()

    @rule()
    def crash(self) -> None:
        self.driver.crash()
        self.model = copy.deepcopy(self.durable)

    @invariant()
    def agree(self) -> None:
        staging = self.driver.engine.staging
        assert self.driver.found() == self.model.queue
        assert staging.committed == self.model.committed
        assert sum(admission.rows_left for admission in staging.admissions) == len(self.model.admitting)
        assert {
            place: {part: len(chunks) for part, chunks in batch.parts.items()}
            for place, batch in staging.batches.items()
        } == {
            place: {part: len(chunks) for part, chunks in parts.items()} for place, parts in self.model.staged.items()
        }
        live = [chunk for batch in staging.batches.values() for chunks in batch.parts.values() for chunk in chunks]
        live += [chunk for each in staging.admissions for chunk in each.chunks[each.chunk :]]
        assert (staging.chunks, staging.bytes) == (len(live), sum(chunk.size for chunk in live))


StagingMachine.TestCase.settings = effort(60, steps=50)
test_staging_behaves_like_the_model = StagingMachine.TestCase


def test_create_queue_is_needed_only_where_rows_go() -> None:
    driver = Driver()
    driver.do(CreateQueue("elsewhere", QueueSettings()))
    assert driver.stage("q", 0, "a", 0, [b"1"]) == Refused(Reason.NO_QUEUE, "work")


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(1, 30), st.booleans()), max_size=20))
def test_rows_that_another_shard_sends_count_once_however_they_are_cut_and_repeated(
    count: int, steps: list[tuple[int, bool]]
) -> None:
    """The other shard sends a step again if it does not get the answer, and may cut it otherwise then."""
    rows = [b"%d" % number for number in range(count)]
    driver = Driver()
    driver.do(CreateQueue("work", QueueSettings()))
    at = 0
    for size, is_lost in [*steps, (count, False), (count, False)]:
        end = min(count, at + size)
        publish = PublishRun("work", NewMessage(b""), rows[at:end])
        answer = driver.do(TakeRows("query", 7, (0, at), (0, end), publish)) if at < count else RowsTaken(0, count)
        assert isinstance(answer, RowsTaken)
        at = at if is_lost else answer.row
    assert at == count
    restored = Engine()
    restored.restore(copied_sections(driver.engine))
    assert restored.staging.taken == driver.engine.staging.taken == {"query": (7, 0, count)}
    assert driver.found() == rows
    late = TakeRows("query", 6, (0, 0), (1, 0), PublishRun("work", NewMessage(b""), [b"late"]))
    assert driver.do(late) == RowsTaken(1, 0), "a batch before the last one is here"
    assert driver.found() == rows


def test_rows_of_another_shard_for_a_queue_that_is_gone_are_skipped_once() -> None:
    driver = Driver()
    step = TakeRows("query", 0, (0, 0), (1, 0), PublishRun("work", NewMessage(b""), [b"row"]))
    refused = driver.do(step)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.NO_QUEUE
    driver.do(CreateQueue("work", QueueSettings()))
    assert driver.do(step) == RowsTaken(1, 0)
    assert driver.found() == []
