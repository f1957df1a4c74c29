"""Workers that have reported, and those that are missing."""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec
import pytest

from penstock.broker.services.workers import FORGOTTEN_SECONDS, WORKERS_MAX, WorkerReports
from penstock.broker.writer.port import ServicePort
from penstock.limits import SECOND_NS
from penstock.model.access import EVERYTHING, Access, scope_of
from penstock.model.permissions import NotAllowedError
from penstock.model.workers import Report

REPORT = Report(queues=["work", "mail"], concurrency=10, running=3, seconds=10)


class Clock:
    """A writer of which only the clock is used."""

    second = 1000

    def now(self) -> int:
        return self.second * SECOND_NS


def reports() -> tuple[WorkerReports, Clock]:
    clock = Clock()
    return WorkerReports(cast("ServicePort", clock)), clock


def metrics(workers: WorkerReports) -> dict[str, Any]:
    [(_, samples)] = workers.state()
    return {state: count for (state,), count in samples}


def test_a_worker_is_missing_after_three_reports() -> None:
    workers, clock = reports()
    workers.report("w", REPORT, EVERYTHING)
    clock.second += 30
    [row] = workers.seen_by(EVERYTHING)
    assert msgspec.to_builtins(row) == {
        "name": "w",
        "queues": ["work", "mail"],
        "concurrency": 10,
        "running": 3,
        "since": 1000.0,
        "heard": 1000.0,
        "missing": False,
    }
    clock.second += 1
    assert (workers.seen_by(EVERYTHING)[0].missing, metrics(workers)) == (True, {"working": 0, "missing": 1})
    workers.report("w", REPORT, EVERYTHING)
    [row] = workers.seen_by(EVERYTHING)
    assert (row.since, row.heard, row.missing) == (1000.0, 1031.0, False)


def test_a_client_sees_the_workers_of_its_queues() -> None:
    workers, _ = reports()
    workers.report("w", REPORT, EVERYTHING)
    reader, stranger = (Access("x", (scope_of(scope),)) for scope in ("read:mail", "read:other"))
    assert [row.queues for row in workers.seen_by(reader)] == [["mail"]]
    assert workers.seen_by(stranger) == []


def test_old_workers_are_forgotten_and_their_number_is_limited() -> None:
    workers, clock = reports()
    for number in range(WORKERS_MAX + 5):
        workers.report(str(number), REPORT, EVERYTHING)
    assert (len(workers.seen_by(EVERYTHING)), workers.seen_by(EVERYTHING)[0].name) == (WORKERS_MAX, "5")
    clock.second += FORGOTTEN_SECONDS + 1
    workers.report("6", REPORT, EVERYTHING)
    assert "5" not in [row.name for row in workers.seen_by(EVERYTHING)]
    assert (workers.remove("6", EVERYTHING), workers.remove("6", EVERYTHING)) == (True, False)


def client(name: str, *scopes: str) -> Access:
    return Access(name, map(scope_of, scopes))


def test_a_worker_of_others_is_to_a_client_that_does_not_see_it_as_one_that_is_not_there() -> None:
    workers, _ = reports()
    owner, stranger = client("owner", "consume:work,mail"), client("stranger", "consume:other")
    workers.report("w", REPORT, owner)
    assert workers.remove("w", stranger) is workers.remove("none", stranger) is False
    workers.report("w", Report(["other"], 1, 0, 10), stranger)
    assert [row.queues for row in workers.seen_by(owner)] == [["work", "mail"]]
    assert [row.queues for row in workers.seen_by(stranger)] == [["other"]]
    assert workers.remove("w", owner)
    assert [row.queues for row in workers.seen_by(EVERYTHING)] == [["other"]]


@pytest.mark.parametrize(
    ("scopes", "missing"), [(("read:work,mail",), "consume on work"), (("consume:mail",), "consume on *")]
)
def test_who_sees_a_worker_and_may_not_remove_it_hears_why_and_no_name_that_it_does_not_see(
    scopes: tuple[str, ...], missing: str
) -> None:
    workers, _ = reports()
    workers.report("w", REPORT, client("owner", "consume:work,mail"))
    with pytest.raises(NotAllowedError, match=re.escape(missing)):
        workers.remove("w", client("other", *scopes))
    assert len(workers.seen_by(EVERYTHING)) == 1


def test_a_worker_that_comes_back_with_another_token_is_the_same_worker() -> None:
    workers, clock = reports()
    workers.report("w", REPORT, client("old", "consume:work,mail"))
    clock.second += 5
    workers.report("w", REPORT, client("new", "consume:*"))
    assert [(row.since, row.heard) for row in workers.seen_by(EVERYTHING)] == [(1000.0, 1005.0)]
