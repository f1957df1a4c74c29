"""How much of the Event Log a store with several shards keeps."""

from __future__ import annotations

from penstock.limits import COURIER_PROGRESS_BYTES
from tests.support.broker import Broker, StartBroker
from tests.support.waiting import wait_until

SHARDS = 2
RETENTION = 8 << 20
SEGMENT = 64 << 10
QUEUES = ["queue-0", "queue-1"]  # One in each shard.
BODY = b"x" * 40_000
PART = b"--b\r\nContent-Type: text/plain\r\n\r\n" + BODY + b"\r\n"
MULTIPART = {"Content-Type": "multipart/mixed; boundary=b"}


def churn(broker: Broker, messages: int) -> None:
    """Messages that come and go in all shards."""
    for name in QUEUES:
        answer = broker.request("POST", f"/messages/{name}", MULTIPART, PART * messages + b"--b--\r\n")
        assert answer.status in (200, 201), answer
        assert broker.request("DELETE", f"/v1/queues/{name}/messages").status == 200


def logs(broker: Broker) -> list[int]:
    """The size of each."""
    return [each["bytes"] for each in broker.request("GET", "/v1/log").json()["logs"]]


def test_the_size_of_the_event_log_is_that_of_all_shards(start_broker: StartBroker) -> None:
    settings = (f"log.segment_bytes={SEGMENT}", f"log.snapshot_bytes={SEGMENT}", f"log.retention_bytes={RETENTION}")
    broker = start_broker(*settings, flags=("--workers", "2", "--shards", str(SHARDS)))
    for name in QUEUES:
        broker.create_queue(name)
    for _ in range(RETENTION // len(PART * 25) + 2):
        churn(broker, 25)  # In all, more than the whole size in each shard.

    def is_within() -> bool:
        churn(broker, 4)
        return max(logs(broker)) <= RETENTION // SHARDS + COURIER_PROGRESS_BYTES + 16 * SEGMENT

    wait_until(is_within, "each shard has its part")
    assert broker.request("GET", "/v1/stats").json()["disk"]["retention_bytes"] == RETENTION
