"""Workers that have reported, and those that are missing."""

from __future__ import annotations

from typing import Any, cast

from penstock.dialects.native.workers import Report
from penstock.limits import SECOND_NS
from penstock.model.access import EVERYTHING, Access, scope_of
from penstock.server.services.workers import FORGOTTEN_SECONDS, WORKERS_MAX, WorkerReports
from penstock.server.writer.port import ServicePort

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
    workers.report("w", REPORT)
    clock.second += 30
    [row] = workers.list(EVERYTHING)
    assert row == {
        "name": "w",
        "queues": ["work", "mail"],
        "concurrency": 10,
        "running": 3,
        "since": 1000.0,
        "heard": 1000.0,
        "missing": False,
    }
    clock.second += 1
    assert (workers.list(EVERYTHING)[0]["missing"], metrics(workers)) == (True, {"working": 0, "missing": 1})
    workers.report("w", REPORT)
    [row] = workers.list(EVERYTHING)
    assert (row["since"], row["heard"], row["missing"]) == (1000.0, 1031.0, False)


def test_a_client_sees_the_workers_of_its_queues() -> None:
    workers, _ = reports()
    workers.report("w", REPORT)
    reader, stranger = (Access("x", (scope_of(scope),)) for scope in ("read:mail", "read:other"))
    assert [row["queues"] for row in workers.list(reader)] == [["mail"]]
    assert workers.list(stranger) == []


def test_old_workers_are_forgotten_and_their_number_is_limited() -> None:
    workers, clock = reports()
    for number in range(WORKERS_MAX + 5):
        workers.report(str(number), REPORT)
    assert (len(workers.list(EVERYTHING)), workers.list(EVERYTHING)[0]["name"]) == (WORKERS_MAX, "5")
    clock.second += FORGOTTEN_SECONDS + 1
    workers.report("6", REPORT)
    assert "5" not in [row["name"] for row in workers.list(EVERYTHING)]
    assert (workers.remove("6"), workers.remove("6")) == (True, False)
