"""`/v1/lake` reads the files that a pipeline has written, for those who may read the queues."""

from __future__ import annotations

from pathlib import Path

from tests.support.broker import StartBroker
from tests.support.small_lake import write_minutes

HOUR = 3600 * 400_000
SPAN = f"since={HOUR}&until={HOUR + 3600}"


def test_minutes_are_read_by_those_who_may_read_the_queue(start_broker: StartBroker, tmp_path: Path) -> None:
    write_minutes(tmp_path / "lake", ("work", HOUR, 3), ("other", HOUR, 10))
    broker = start_broker("auth.tokens=sesame", f"lake.directory={tmp_path / 'lake'}")
    admin = {"Authorization": "Bearer sesame"}
    made = broker.request("PUT", "/v1/tokens/reader", admin, b'{"scopes": ["read:work"]}').json()["token"]
    reader = {"Authorization": f"Bearer {made}"}
    found = broker.request("GET", f"/v1/lake/queue_minutes?queue=work&{SPAN}", reader).json()
    assert (found["queue"], found["step"], [row["messages_in"] for row in found["rows"]]) == ("work", 60, [3])
    assert broker.request("GET", f"/v1/lake/queue_minutes?{SPAN}", reader).status == 403
    assert broker.request("GET", f"/v1/lake/queue_minutes?queue=other&{SPAN}", reader).status == 403
    everything = broker.request("GET", f"/v1/lake/queue_minutes?{SPAN}", admin).json()
    assert [row["messages_in"] for row in everything["rows"]] == [13]


def test_a_broker_without_a_lake_says_so(start_broker: StartBroker) -> None:
    broker = start_broker()
    answer = broker.request("GET", f"/v1/lake/queue_minutes?{SPAN}")
    assert (answer.status, answer.json()["code"]) == (404, "no_lake")
    assert broker.request("GET", "/v1/lake/queue_minutes").status == 400
    assert broker.request("GET", f"/v1/lake/other?{SPAN}").status == 404
