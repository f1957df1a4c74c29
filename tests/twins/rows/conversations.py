"""etzel in lines and over WebSocket, and glovebox: things said in conversations."""

from __future__ import annotations

from typing import Any

from tests.twins.programs import Draw, Http, Row, Say, Step


def _etzel(draw: Draw, command: dict[str, Any]) -> Step:
    return Say(draw.one_of(["lines 1", "lines 2", "lines part", "etzel 1"]), draw.spoilt(command))


def subscribe(draw: Draw) -> Step:
    return _etzel(draw, {"cmd": "SUB", "qname": draw.queue()})


def publish(draw: Draw) -> Step:
    times = draw.any_of(
        timeout=draw.one_of([5, 60, 1]),
        delay=draw.one_of([0, draw.seconds()]),
        expires=draw.one_of([0, 9000, draw.seconds()]),
    )
    return _etzel(draw, {"cmd": "PUB", "qname": draw.queue(), draw.one_of(["message", "msg"]): draw.text()} | times)


def fetch(draw: Draw) -> Step:
    return _etzel(draw, {"cmd": "FET", "qname": draw.queue()})


def acknowledge(draw: Draw) -> Step:
    return _etzel(draw, {"cmd": draw.one_of(["ACK", "DEL"]), "qname": draw.queue(), "uid": draw.id()})


def sleep(draw: Draw) -> Step:
    return _etzel(draw, {"cmd": "ISLP", "qname": draw.queue()})


# ── Glovebox ──────────────────────────────────────────────────────────────────────────────────────────────────


def _glovebox(draw: Draw, request: dict[str, Any]) -> Step:
    request["label"] = draw.random.randrange(1000)
    return Say(draw.one_of(["glovebox 1", "glovebox 1", "glovebox 2", "glovebox part"]), draw.spoilt(request))


def create(draw: Draw) -> Step:
    more = draw.any_of(retries=draw.one_of([0, 1, 2]), visibility_timeout=draw.seconds(), message_deduplication=True)
    return _glovebox(draw, {"type": "create", "queue": draw.queue()} | more)


def post(draw: Draw) -> Step:
    stages = draw.random.sample(
        ["ready", "write", "sync", "assign", "finish", "retry", "drop"], draw.random.randint(0, 4)
    )
    more = draw.any_of(priority=draw.one_of([0, 1, 9]), notify=stages)
    return _glovebox(draw, {"type": "post", "queue": draw.queue(), "message": draw.text()} | more)


def pop(draw: Draw) -> Step:
    return _glovebox(draw, {"type": "pop", "queue": draw.queue()} | draw.any_of(timeout=draw.one_of([0, 50])))


def take(draw: Draw) -> Step:
    more = draw.any_of(block_timeout=draw.one_of([0, 50]), work_timeout=draw.seconds())
    return _glovebox(draw, {"type": "fetch", "queue": draw.queue()} | more)


def finish(draw: Draw) -> Step:
    place = draw.back()
    about = {"queue": f"{{place_queue:{place}}}", "sequence": f"{{sequence:{place}}}", "shard": f"{{place:{place}}}"}
    return _glovebox(draw, {"type": "finish"} | about)


def status(draw: Draw) -> Step:
    return Http(draw.who(), "GET", f"/status/{draw.queue()}")


ETZEL: dict[Row, int] = {subscribe: 1, publish: 6, fetch: 5, acknowledge: 3, sleep: 2}
GLOVEBOX: dict[Row, int] = {create: 1, post: 5, pop: 3, take: 4, finish: 3, status: 1}
