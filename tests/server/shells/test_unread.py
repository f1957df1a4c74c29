"""Answers that nobody reads are bounded, for all connections together."""

from __future__ import annotations

import json

from penstock.server.shells.unread import Unread
from tests.support.broker import Broker, StartBroker
from tests.support.http_client import Connection

LIMIT = 16 << 20
BODY = b"x" * (1 << 20)
CLIENTS = 12
EACH = 16


class Client:
    def __init__(self) -> None:
        self.closed = False

    def abort(self) -> None:
        self.closed = True


def test_the_connection_with_the_most_is_closed_when_all_together_hold_too_much() -> None:
    unread = Unread(100)
    modest, greedy, late = Client(), Client(), Client()
    unread.note(modest, 10)
    unread.note(greedy, 80)
    unread.note(late, 10)
    assert (unread.bytes, unread.closed) == (100, 0)
    unread.note(late, 11)
    assert [modest.closed, greedy.closed, late.closed] == [False, True, False]
    assert (unread.bytes, unread.closed) == (21, 1)


def test_what_was_read_counts_no_more() -> None:
    unread = Unread(100)
    first, second = Client(), Client()
    unread.note(first, 90)
    unread.note(first, 20)
    unread.note(first, 0)
    unread.note(second, 100)
    assert not second.closed


def requests_that_ask(broker: Broker) -> Connection:
    connection = broker.connect()
    for _ in range(EACH):
        connection.send_request("GET", "/messages/large")
    return connection


def test_clients_that_do_not_read_are_closed_before_they_cost_more_than_is_allowed(start_broker: StartBroker) -> None:
    broker = start_broker(f"unread_bytes_max={LIMIT}")
    broker.create_queue("large", visibility_timeout=0)
    with broker.connect() as connection:
        for _ in range(EACH):
            assert connection.request("POST", "/messages/large", body=BODY).status == 201
    clients = [requests_that_ask(broker) for _ in range(CLIENTS)]
    broker.wait_until_logged("unread_answers_dropped")
    metrics = broker.request("GET", "/metrics").body.decode()
    figures = dict(line.split(" ") for line in metrics.splitlines() if line.startswith("penstock_unread"))
    assert float(figures["penstock_unread_bytes"]) <= LIMIT
    assert float(figures["penstock_unread_closed_total"]) >= 1
    for client in clients:
        client.close()
    assert json.loads(broker.request("GET", "/v1/queues").body)["total"] == 1
