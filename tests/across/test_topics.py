"""What is published to topics is taken, finished and followed in every other dialect, and the other way round.

Tests of copies have one worker: with several shards copies are messages of their own, which come a moment later.
"""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest

from tests.across.test_pairs import BODY, a_followed_message, finish, letters, notice, take
from tests.support.broker import Site, StartBroker
from tests.support.dialect_clients import CLIENTS


def call(broker: Site, method: str, target: str, document: Any) -> Any:
    answer = broker.request(method, target, {"Content-Type": "application/json"}, json.dumps(document).encode())
    assert answer.status in (200, 201), answer
    return answer.json()


@pytest.mark.parametrize("taker", CLIENTS)
def test_a_copy_in_a_channel_is_a_message_to_every_dialect(start_broker: StartBroker, taker: str) -> None:
    broker = start_broker()
    call(broker, "PUT", "/v1/channels/subscriber", {"topics": ["fruit.*"], "max_attempts": 3})
    receipt = call(broker, "POST", "/v1/publish", {"topics": ["fruit.sweet"], "message": BODY})
    assert (receipt["queues"], receipt["channels"]) == (["fruit"], ["subscriber"])
    with closing(CLIENTS[taker](broker)) as other:
        for queue in ("subscriber", "fruit"):
            taken = take(other, queue)
            assert taken.body == BODY
            assert finish(other, taken, queue)
    assert letters(broker, "subscriber") == "QFSX"
    assert letters(broker, "fruit") == "LQFSX"


@pytest.mark.parametrize(
    ("outcome", "heard"),
    [("success", "finish"), ("invalid", "drop"), ("not_interested", "drop"), ("retry", "retry")],
)
def test_a_sender_hears_what_a_consumer_says(site: Site, outcome: str, heard: str) -> None:
    with a_followed_message(site) as (queue, sender):
        (message,) = site.request("GET", f"/v1/queues/{queue}/messages?consumer=c&wait=5").json()
        assert (message["message"], notice(sender)) == (BODY, "assign")
        said = {"id": message["id"], "consumer": "c", "outcome": outcome, "delay": 60}
        assert call(site, "POST", "/v1/confirm", said)["discarded"] is False
        assert notice(sender) == heard


@pytest.mark.parametrize("taker", CLIENTS)
def test_the_worker_of_any_dialect_is_one_of_several_that_confirm(start_broker: StartBroker, taker: str) -> None:
    broker = start_broker()
    call(broker, "PUT", "/v1/queues/several", {"confirmations": 2})
    call(broker, "POST", "/v1/publish", {"topics": ["several"], "message": BODY})
    (message,) = broker.request("GET", "/v1/queues/several/messages?consumer=c").json()
    with closing(CLIENTS[taker](broker)) as other:
        assert finish(other, take(other, "several"), "several")
    assert call(broker, "POST", "/v1/confirm", {"id": message["id"], "consumer": "c"})["discarded"] is False
    assert sorted(letters(broker, "several")) == sorted("LQFFSSX")
