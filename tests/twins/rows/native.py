"""The native API: queues, channels, topics, messages and their history."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.twins.programs import Draw, Http, Row, Step


def _policy(draw: Draw) -> dict[str, Any] | None:
    return draw.one_of([None, {"max_receives": draw.one_of([1, 2, 3]), "dead_letter_queue": draw.queue()}])


def _settings(draw: Draw) -> dict[str, Any]:
    return draw.any_of(
        **{draw.one_of(["lease", "visibility_timeout"]): draw.seconds()},
        redrive_policy=_policy(draw),
        **{draw.one_of(["max_attempts", "retries"]): draw.one_of([1, 2])},
        retry_delay=draw.one_of([0, draw.seconds()]),
        keep=draw.one_of(["finished", "all"]),
        message_deduplication=draw.one_of([True, False]),
        detect_unchanged=draw.one_of([True, False]),
    )


def put_queue(draw: Draw) -> Step:
    return Http(draw.who(), "PUT", f"/v1/queues/{draw.queue()}", draw.spoilt(_settings(draw)))


def patch_queue(draw: Draw) -> Step:
    settings = _settings(draw) | draw.any_of(confirmations=draw.one_of([1, 2]))
    return Http(draw.who(), "PATCH", f"/v1/queues/{draw.queue()}", draw.spoilt(settings))


def show_queue(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/queues/{draw.queue()}")


def delete_queue(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/queues/{draw.queue()}")


def list_queues(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), "/v1/queues" + draw.one_of(["", "?limit=1000", "?limit=0"]))


def put_channel(draw: Draw) -> Step:
    patterns = [draw.pattern() for _ in range(draw.random.randint(1, 2))]
    settings = draw.any_of(
        retries=draw.one_of([1, 2]), confirm=draw.one_of([True, False]), redrive_policy=_policy(draw)
    )
    return Http(draw.who(), "PUT", f"/v1/channels/{draw.channel()}", draw.spoilt({"topics": patterns} | settings))


def show_channel(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/channels/{draw.channel()}")


def delete_channel(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/channels/{draw.channel()}")


def list_channels(draw: Draw) -> Step:
    return Http(
        draw.who(), draw.one_of(["GET", "HEAD"]), "/v1/channels" + draw.one_of(["", "?limit=1000", "?offset=x"])
    )


def _message(draw: Draw) -> dict[str, Any]:
    about = draw.any_of(object=draw.one_of([draw.name("o"), draw.queue()]), key=draw.one_of(["k1", "k1", "k2", "ü"]))
    more = draw.any_of(
        priority=draw.one_of([0, 1, 9]),
        delay=draw.one_of([0, 0, draw.seconds()]),
        expires=draw.one_of([9000, draw.seconds()]),
        sender=draw.one_of(["ann", "ben"]),
        headers={"x-colour": "red"},
        mimeType=draw.one_of(["text/plain", "a/b"]),
    )
    return {"message": draw.content()} | about | (more if draw.chance() < 0.4 else {})


def _messages(draw: Draw, *, topics: bool) -> Any:
    def one() -> dict[str, Any]:
        named = (
            {"topics": [draw.topic() for _ in range(draw.one_of([1, 1, 2]))]}
            if topics and draw.chance() < 0.95
            else {}
        )
        return _message(draw) | named

    if draw.chance() < 0.6:
        return draw.spoilt(one())
    return [draw.spoilt(one(), 0.02) for _ in range(draw.random.randint(0, 4))]


def _keyed(draw: Draw) -> dict[str, str]:
    return {"Idempotency-Key": f"{draw.stamp}-{draw.random.randrange(3)}"} if draw.chance() < 0.15 else {}


def publish(draw: Draw) -> Step:
    return Http(draw.who(), "POST", "/v1/publish", _messages(draw, topics=True), _keyed(draw))


def publish_again(draw: Draw) -> Step:
    """One key and one content in all programs of a seed, so that it is often the same request."""
    body = {"topics": [draw.name("a") + ".red", draw.name("b")], "message": "again"}
    return Http(
        "admin",
        "POST",
        "/v1/publish",
        [body, {"topics": [draw.name("c")], "message": "c"}],
        {"Idempotency-Key": draw.stamp},
    )


def publish_object(draw: Draw) -> Step:
    """Versions of few things through several roots."""
    body = {
        "topics": [draw.topic()],
        "object": draw.name("o"),
        "key": draw.one_of(["k1", "k2"]),
        "message": draw.one_of(["A", "B"]),
    }
    return Http("admin", "POST", "/v1/publish", body)


def publish_raw(draw: Draw) -> Step:
    target = f"/v1/publish?topic={draw.topic()}" + draw.one_of(
        ["", "&priority=3", "&priority=x", f"&object={draw.name('o')}&key=k1"]
    )
    return Http(draw.who(), "POST", target, draw.text(), {"Content-Type": draw.one_of(["image/png", "text/plain"])})


def publish_to_queue(draw: Draw) -> Step:
    name = draw.one_of([draw.queue(), draw.queue(), draw.channel()])
    return Http(
        draw.who(), "POST", f"/v1/queues/{name}/messages", _messages(draw, topics=draw.chance() < 0.1), _keyed(draw)
    )


def _consumer(draw: Draw) -> str:
    return draw.one_of(["", "&consumer=ann", "&consumer=ben"])


def receive(draw: Draw) -> Step:
    place = draw.one_of([f"queues/{draw.queue()}", f"queues/{draw.queue()}", f"channels/{draw.channel()}"])
    lease = draw.one_of(["", f"&lease={draw.seconds()}"])
    return Http(
        draw.who(), "GET", f"/v1/{place}/messages?max={draw.one_of([1, 1, 3, 10, 0])}{_consumer(draw)}{lease}"
    )


def receive_and_wait(draw: Draw) -> Step:
    target = f"/v1/queues/{draw.queue()}/messages?wait=20{_consumer(draw)}"
    return Http(draw.who(), "GET", target, on=draw.one_of(["poll 1", "poll 2"]))


def _confirmation(draw: Draw) -> dict[str, Any]:
    more = draw.any_of(
        outcome=draw.one_of(["success", "invalid", "not_interested", "retry"]),
        consumer=draw.one_of(["ann", "ben"]),
        delivery=draw.one_of([1, 2]),
        delay=draw.one_of([0, draw.seconds()]),
        result=draw.content(),
        reason="because",
    )
    return {"id": draw.id()} | (more if draw.chance() < 0.7 else {})


def _one_or_more(draw: Draw, one: dict[str, Any], other: dict[str, Any], third: dict[str, Any]) -> Any:
    return draw.one_of([draw.spoilt(one), draw.spoilt(one), [one, other], [one, other, third], []])


def confirm(draw: Draw) -> Step:
    return Http(draw.who(), "POST", "/v1/confirm", _one_or_more(draw, *(_confirmation(draw) for _ in range(3))))


def extend(draw: Draw) -> Step:
    wishes = [
        {"id": draw.id(), "seconds": draw.seconds()} | draw.any_of(consumer="ann", delivery=1) for _ in range(3)
    ]
    return Http(draw.who(), "POST", "/v1/extend", _one_or_more(draw, *wishes))


def show_message(draw: Draw) -> Step:
    return Http(
        draw.who(), draw.one_of(["GET", "GET", "HEAD"]), f"/v1/messages/{draw.id()}" + draw.one_of(["", "?raw=true"])
    )


def delete_message(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/messages/{draw.id()}")


def wait(draw: Draw) -> Step:
    ids = [draw.id()] * draw.random.randint(0, 2)
    return Http(
        draw.who(), "POST", "/v1/wait", draw.spoilt({"ids": ids, "until": draw.one_of(["taken", "done"]), "wait": 0})
    )


def wait_long(draw: Draw) -> Step:
    return Http(
        draw.who(), "POST", "/v1/wait", {"ids": [draw.id()], "wait": 26}, on=draw.one_of(["poll 5", "poll 6"])
    )


def search(draw: Draw) -> Step:
    wishes = draw.any_of(
        queue=draw.queue(),
        topic=draw.pattern(),
        state=draw.one_of(["ready", "delayed", "leased", "kept", "Q,R", "F", "zzz"]),
        object=draw.name("o"),
        key="k1",
        text=draw.one_of(["one", "t"]),
        limit=draw.one_of([1, 2, 1000]),
        bodies=draw.one_of(["false", "true"]),
    )
    wishes |= {"queue": draw.name("a")} if not wishes.keys() & {"queue", "topic", "object"} else {}
    return Http(draw.who(), draw.one_of(["GET", "GET", "HEAD"]), _target("/v1/search", wishes))


def _target(path: str, wishes: dict[str, Any]) -> str:
    return path + "?" + "&".join(f"{name}={quote(str(value))}" for name, value in wishes.items())


def search_on(draw: Draw) -> Step:
    return Http("admin", "GET", f"/v1/search?topic={draw.name('a')}.*&limit=2&cursor={{cursor:0}}")


def list_delayed(draw: Draw) -> Step:
    return Http(draw.who(), "GET", f"/v1/schedule?queue={draw.queue()}&limit={draw.one_of([1, 100])}")


def move_delayed(draw: Draw) -> Step:
    at = draw.one_of(["2020-01-01T00:00:00Z", 4000000000, "soon"])
    return Http(draw.who(), "PATCH", f"/v1/schedule/{draw.id()}", draw.spoilt({"visible_at": at}))


def cancel_delayed(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/schedule/{draw.id()}")


def redrive(draw: Draw) -> Step:
    body = {"from": draw.one_of([draw.name("d"), draw.name("d"), draw.queue()])}
    more = draw.any_of(
        to=draw.queue(),
        dry_run=True,
        filter=draw.one_of([{"text": "one"}, {"origin": draw.queue()}, {"state": "ready"}]),
    )
    return Http(draw.who(), "POST", "/v1/redrive", draw.spoilt(body | more))


def purge(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/queues/{draw.queue()}/messages")


def job(draw: Draw) -> Step:
    method, kind = draw.one_of(["GET", "GET", "DELETE"]), draw.one_of(["redrive", "purges"])
    return Http(draw.who(), method, f"/v1/{kind}/{draw.one_of(['{job:0}', '{job:1}', '0123456789abcdef'])}")


def show_object(draw: Draw) -> Step:
    about = draw.one_of([draw.name("o"), draw.name("o"), draw.queue()])
    limit = draw.one_of(["", "?limit=1", "?limit=0"])
    return Http(
        draw.who(),
        draw.one_of(["GET", "GET", "HEAD"]),
        f"/v1/objects/{about}/{draw.one_of(['k1', 'k2', '%C3%BC'])}{limit}",
    )


def read_events(draw: Draw) -> Step:
    which = draw.one_of(
        [
            "queue={}",
            "topic={}.*",
            "queue={}&bodies=false",
            "queue={}&state=LQ",
            "queue={}&limit=3",
            "topic={}.red&raw=true",
        ]
    )
    start = draw.one_of(["", "", "&from=earliest", "&from=0", "&from=latest", "&from={next:0}", "&from=never"])
    return Http(draw.who(), draw.one_of(["GET", "GET", "HEAD"]), "/v1/events?" + which.format(draw.queue()) + start)


def events_as_sse(draw: Draw) -> Step:
    return Http(draw.who(), "GET", f"/v1/events?queue={draw.queue()}", headers={"Accept": "text/event-stream"})


NATIVE: dict[Row, int] = {
    **dict.fromkeys((put_queue, patch_queue, show_queue, put_channel), 3),
    **dict.fromkeys((delete_queue, list_queues, show_channel, delete_channel, list_channels), 1),
    publish: 14,
    publish_again: 2,
    publish_object: 5,
    publish_raw: 3,
    publish_to_queue: 6,
    receive: 12,
    receive_and_wait: 1,
    confirm: 10,
    extend: 3,
    **dict.fromkeys((show_message, search, read_events, show_object, redrive, wait), 4),
    **dict.fromkeys((delete_message, wait_long, search_on, list_delayed, move_delayed, cancel_delayed), 2),
    **dict.fromkeys((purge, job, events_as_sse), 1),
}
