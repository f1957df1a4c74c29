"""A message whose bytes have rotted on the disk is refused, never delivered as something else."""

from __future__ import annotations

import json
from pathlib import Path

from tests.broker import StartBroker

SETTINGS = json.dumps({"retention_timeout": 600, "visibility_timeout": 600, "message_deduplication": False}).encode()


def test_a_flipped_bit_before_the_snapshot_is_noticed_when_the_message_is_read(start_broker: StartBroker) -> None:
    broker = start_broker("log.segment_bytes=65536")
    assert broker.request("PUT", "/queues/old", body=SETTINGS).status == 201
    for number in range(40):
        assert broker.request("POST", "/messages/old", body=b"%04d" % number * 1000).status == 201
    broker.stop()
    flip_a_bit(broker.data, b"0003" * 1000)
    broker.start()
    answer = broker.request("GET", "/messages/old")
    assert answer.status == 500
    assert b"damaged" in answer.body
    assert b"00000000000000000000.log" in answer.body
    status = json.loads(broker.request("GET", "/queues/old").body)["status"]
    assert (status["messages"], status["visible_messages"]) == (40, 40), "nothing was counted as received"


def test_whole_segments_before_the_snapshot_are_read_as_they_were(start_broker: StartBroker) -> None:
    broker = start_broker("log.segment_bytes=65536")
    assert broker.request("PUT", "/queues/old", body=SETTINGS).status == 201
    for number in range(40):
        assert broker.request("POST", "/messages/old", body=b"%04d" % number * 1000).status == 201
    broker.stop()
    broker.start()
    for number in range(40):
        assert broker.request("GET", "/messages/old").body == b"%04d" % number * 1000


def flip_a_bit(data: Path, body: bytes) -> None:
    """In the middle of this body, in the oldest segment."""
    oldest = min((data / "log").glob("*.log"))
    content = bytearray(oldest.read_bytes())
    at = content.index(body) + len(body) // 2
    content[at] ^= 1
    oldest.write_bytes(content)
