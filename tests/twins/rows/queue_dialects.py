"""mqs and NQ: requests about queues by their names."""

from __future__ import annotations

from typing import Any

from tests.support.http_client import encode_multipart
from tests.twins.programs import Draw, Http, Row, Step

_BOUNDARY = "penstock-test"  # Of `encode_multipart`.


def _settings(draw: Draw) -> dict[str, Any]:
    fields = {"retention_timeout": 100_000, "visibility_timeout": draw.seconds(), "message_deduplication": False}
    fields["message_deduplication"] = draw.chance() < 0.3
    policy = {"max_receives": draw.one_of([1, 2, 3]), "dead_letter_queue": draw.queue()}
    more = draw.any_of(
        message_delay=draw.one_of([0, 0, int(draw.seconds())]), redrive_policy=draw.one_of([None, policy])
    )
    return fields | more


def create(draw: Draw) -> Step:
    return Http(draw.who(), "PUT", f"/queues/{draw.queue()}", draw.spoilt(_settings(draw)))


def change(draw: Draw) -> Step:
    return Http(draw.who(), "POST", f"/queues/{draw.queue()}", draw.spoilt(_settings(draw)))


def delete(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/queues/{draw.queue()}")


def show(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "GET", "HEAD"]), f"/queues/{draw.queue()}")


def list_all(draw: Draw) -> Step:
    return Http(
        draw.who(),
        draw.one_of(["GET", "HEAD"]),
        "/queues" + draw.one_of(["", "", "?offset=0&limit=900", "?limit=0", "?x=1"]),
    )


def publish(draw: Draw) -> Step:
    headers = draw.any_of(**{"Content-Type": draw.one_of(["text/plain", "application/json", "text/\x01"])})
    headers |= draw.any_of(**{"X-TRACE-ID": draw.one_of(["0b5cbd3c-8a1e-4b6a-9d0e-0c2b6f1d7f11", "no-uuid"])})
    return Http(draw.who(), "POST", f"/messages/{draw.queue()}", draw.text(), headers)


def publish_many(draw: Draw) -> Step:
    parts = [({"Content-Type": "text/plain"}, draw.text().encode()) for _ in range(draw.random.randint(1, 4))]
    headers = {"Content-Type": f"multipart/mixed; boundary={_BOUNDARY}"}
    body = encode_multipart(parts, _BOUNDARY).decode()
    return Http(draw.who(), "POST", f"/messages/{draw.queue()}", body if draw.chance() < 0.9 else body[:-9], headers)


def receive(draw: Draw) -> Step:
    headers = draw.any_of(**{"X-MQS-MAX-MESSAGES": draw.one_of(["1", "3", "10", "0", "many"])})
    return Http(draw.who(), "GET", f"/messages/{draw.queue()}", None, headers)


def receive_and_wait(draw: Draw) -> Step:
    headers = {"X-MQS-MAX-WAIT-TIME": draw.one_of(["20", "20", "20", "21"])}
    return Http(draw.who(), "GET", f"/messages/{draw.queue()}", None, headers, on=draw.one_of(["poll 1", "poll 2"]))


def finish(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/messages/{draw.id()}")


def no_such_way(draw: Draw) -> Step:
    method, target = draw.one_of(
        [
            ("PATCH", "/messages/a"),
            ("DELETE", "/queues"),
            ("GET", "/post"),
            ("GET", "/nothing"),
            ("PUT", "/v1/publish"),
            ("GET", "/v1/confirm"),
        ]
    )
    return Http(draw.who(), method, target)


# ── NQ ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _queues(draw: Draw) -> list[str]:
    return [draw.queue() for _ in range(draw.one_of([1, 1, 1, 2, 3]))]


def _nq_message(draw: Draw) -> Any:
    text = draw.text()
    tags = draw.any_of(tag=draw.one_of(["red", 7, 1.5]), delay=draw.one_of([0, draw.seconds()]))
    return draw.one_of([text, text, {"message": text} | tags])


def post(draw: Draw) -> Step:
    messages = {name: [_nq_message(draw) for _ in range(draw.random.randint(0, 3))] for name in _queues(draw)}
    body = {"messages": messages} | draw.any_of(sender=draw.one_of(["ann", "ben"]))
    return Http(draw.who(), "POST", "/post", draw.spoilt(body))


def pull(draw: Draw) -> Step:
    queues = {name: _pulled(draw) for name in _queues(draw)}
    body: dict[str, Any] = {"receiver": draw.one_of(["ann", "ben"]), "timeout": 0, "queues": queues}
    if draw.chance() < 0.3:
        body["results"] = {draw.queue(): {str(draw.random.randint(1, 3)): draw.text()}}
    if draw.chance() < 0.1:
        del body["queues"]
    return Http(draw.who(), "POST", "/pull", draw.spoilt(body))


def pull_and_wait(draw: Draw) -> Step:
    body = {
        "receiver": draw.one_of(["ann", "ben"]),
        "timeout": 27,  # Not as long as a lease.
        "queues": {name: _pulled(draw) for name in _queues(draw)},
    }
    return Http(draw.who(), "POST", "/pull", body, on=draw.one_of(["poll 3", "poll 4"]))


def _pulled(draw: Draw) -> dict[str, Any]:
    start = draw.one_of([0, 0, 0, 1, 2, -1])
    return draw.any_of(
        max=draw.one_of([1, 3, 10]), start=start, retry_num=draw.one_of([0, 1, 2]), fail_timeout=draw.seconds()
    )


def result(draw: Draw) -> Step:
    receiver = draw.one_of(["", "&receiver=ann", "&receiver=ben"])
    return Http(draw.who(), "GET", f"/v1/results/{draw.queue()}/{draw.one_of([1, 2, 3, 0, 'x'])}?timeout=0{receiver}")


MQS: dict[Row, int] = {create: 2, change: 2, delete: 1, show: 2, list_all: 1, publish: 8, publish_many: 2, receive: 8}
MQS |= {receive_and_wait: 1, finish: 4, no_such_way: 1}
NQ: dict[Row, int] = {post: 6, pull: 6, pull_and_wait: 1, result: 2}
