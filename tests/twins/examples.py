"""A program for each entry of the list of differences, in which it occurs: the queues b and d and the channel h are
in other shards than the queue a."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.twins.programs import ADMIN, PART, Hang, Http, Pass, Say, Step


def _ask(method: str, target: str, body: Any = None) -> Step:
    return Http(ADMIN, method, target, body)


def _once(stamp: str, body: Any) -> Step:
    return Http(ADMIN, "POST", "/v1/publish", body, {"Idempotency-Key": stamp})


def _hang(stamp: str) -> Step:
    return Hang(f"a-{stamp}", 0, 40)


def _to(*topics: str) -> dict[str, Any]:
    return {"topics": [*topics], "message": "m"}


def _with_channel(stamp: str) -> tuple[Step, ...]:
    publish = _ask("POST", "/v1/publish", {"topics": [f"a-{stamp}.red"], "message": "m"})
    return (_ask("PUT", f"/v1/channels/h-{stamp}", {"topics": [f"a-{stamp}.*"]}), publish)


EXAMPLES: Final[dict[str, Callable[[str], tuple[Step, ...]]]] = {
    "dead letters leave later": lambda stamp: (
        _ask("PUT", f"/v1/queues/d-{stamp}"),
        _ask(
            "PUT", f"/v1/queues/a-{stamp}", {"redrive_policy": {"max_receives": 1, "dead_letter_queue": f"d-{stamp}"}}
        ),
        _ask("POST", f"/messages/a-{stamp}", "m"),
        _ask("GET", f"/messages/a-{stamp}"),
    ),
    "channels may have more": lambda stamp: (
        _ask("POST", "/v1/publish", 500 * [_to(f"a-{stamp}.red")]),
        _with_channel(stamp)[0],
    ),
    "ids from other queues": lambda stamp: (
        _ask("PUT", f"/v1/queues/b-{stamp}", {"message_deduplication": True}),
        _ask("POST", "/v1/publish", {"topics": [f"a-{stamp}", f"b-{stamp}"], "message": "m"}),
        _ask("GET", f"/messages/a-{stamp}"),
    ),
    "copies come after": lambda stamp: (
        _ask("PUT", f"/v1/queues/b-{stamp}"),
        _ask("POST", "/v1/publish", [_to(f"a-{stamp}", f"b-{stamp}"), _to(f"b-{stamp}")]),
        _ask("GET", f"/messages/b-{stamp}"),
    ),
    "unchanged content goes nowhere else": lambda stamp: (
        _ask("PUT", f"/v1/queues/b-{stamp}"),
        *(_ask("POST", "/v1/publish", _to(f"a-{stamp}", f"b-{stamp}") | {"key": "k"}) for _ in range(2)),
    ),
    "requests in parts": lambda stamp: (
        _ask("PUT", f"/v1/channels/h-{stamp}", {"topics": ["nothing"]}),
        _ask("PUT", f"/v1/queues/a-{stamp}"),
        _ask("POST", "/v1/publish", [_to(f"h-{stamp}"), _to(f"a-{stamp}")]),
    ),
    "pulls while one is away": lambda stamp: (
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}") for letter in "abcdefgh"),
        *(_ask("POST", f"/messages/{letter}-{stamp}", "m") for letter in "abcdefgh"),
        _hang(stamp),
        _ask(
            "POST",
            "/pull",
            {"receiver": "ann", "timeout": 0, "queues": {f"{each}-{stamp}": {} for each in "abcdefgh"}},
        ),
    ),
    "health while one is away": lambda stamp: (_hang(stamp), _ask("GET", "/health")),
    "items while one is away": lambda stamp: (
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}") for letter in "abcdefgh"),
        *(_ask("POST", f"/messages/{letter}-{stamp}", "m") for letter in "abcdefgh"),
        _hang(stamp),
        _ask("POST", "/v1/confirm", [{"id": f"{{id:{back}}}"} for back in range(8)]),
    ),
    "documents while one is away": lambda stamp: (
        *(_ask("POST", "/v1/publish", _to(f"{letter}-{stamp}.x")) for letter in "abcdefgh"),
        _hang(stamp),
        *(_ask("GET", f"/v1/messages/{{id:{back}}}") for back in range(8)),
    ),
    "unknown while one is away": lambda stamp: (
        _ask("PUT", f"/v1/queues/a-{stamp}"),
        _hang(stamp),
        _ask("POST", f"/messages/a-{stamp}", "m"),
    ),
    "schedules that move are new": lambda stamp: (
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}") for letter in "ab"),
        *(
            _ask("PUT", f"/v1/schedules/s-{stamp}", {"queue": f"{letter}-{stamp}", "cron": "0 0 1 1 *", "message": 1})
            for letter in "ab"
        ),
    ),
    "queues made together": lambda stamp: (
        _ask("POST", "/v1/publish", [_to(f"{letter}-{stamp}") for letter in "abcdefgh"]),
        _ask("GET", "/v1/queues?limit=1000"),
    ),
    "fast pops": lambda stamp: (
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}") for letter in "abcdefgh"),
        *(
            Say("glovebox 1", {"type": "pop", "queue": f"{letter}-{stamp}", "timeout": 50, "label": 1})
            for letter in "abcdefgh"
        ),
        *(
            Say("glovebox 1", {"type": "post", "queue": f"{letter}-{stamp}", "message": "m", "label": 2})
            for letter in "abcdefgh"
        ),
    ),
    "more are named": lambda stamp: (
        _ask("PUT", f"/v1/queues/b-{stamp}", {"message_deduplication": True}),
        *(_ask("POST", "/v1/publish", _to(f"a-{stamp}", f"b-{stamp}")) for _ in range(2)),
    ),
    "channels of repeated answers": lambda stamp: (
        _with_channel(stamp)[0],
        _once(stamp, _to(f"a-{stamp}.red")),
        _ask("DELETE", f"/v1/channels/h-{stamp}"),
        _once(stamp, _to(f"a-{stamp}.red")),
    ),
    "searches go by numbers": lambda stamp: (
        *(_ask("POST", "/v1/publish", _to(f"{letter}-{stamp}") | {"object": f"o-{stamp}"}) for letter in "abcdefgh"),
        _ask("GET", f"/v1/search?object=o-{stamp}"),
    ),
    "copies are like their originals": lambda stamp: (
        *_with_channel(stamp),
        _ask("GET", f"/v1/events?topic=a-{stamp}.red"),
    ),
    "at the same moment": lambda stamp: (
        _ask("POST", "/v1/publish", _to(*[f"{letter}-{stamp}.x" for letter in "abcdefgh"]) | {"expires": 2}),
        Pass(3.47),
        _ask("GET", f"/v1/events?topic=a-{stamp}.x"),
    ),
    "waits for the first queue": lambda stamp: (
        _ask("POST", "/v1/publish", _to(f"a-{stamp}", f"b-{stamp}")),
        _ask("DELETE", "/messages/{id:0}"),
        _ask("POST", "/v1/wait", {"ids": ["{id:0}"], "until": "taken", "wait": 0}),
    ),
    "unchanged content is elsewhere": lambda stamp: (
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}", {"detect_unchanged": True}) for letter in "ab"),
        *(
            _ask("POST", "/v1/publish", _to(f"{letter}-{stamp}") | {"object": f"o-{stamp}", "key": "k"})
            for letter in "ab"
        ),
        _ask("GET", "/v1/messages/{id:0}"),
    ),
    "cursors": lambda stamp: (_ask("GET", f"/v1/events?queue=a-{stamp}&from=never"),),
    "events name their shard": lambda stamp: (
        _ask("PUT", f"/v1/queues/a-{stamp}"),
        _ask("POST", f"/messages/a-{stamp}", "m"),
        _ask("GET", f"/v1/events?queue=a-{stamp}"),
    ),
    "couriers are shown": lambda stamp: (_ask("GET", f"/v1/stats?queue=a-{stamp}"),),
}

ALIKE: Final[dict[str, Callable[[str], tuple[Step, ...]]]] = {
    "queues are named in the order of topics": lambda stamp: (
        _ask("POST", "/v1/publish", _to(*[f"{letter}-{stamp}.x" for letter in "abcdefgh"])),
    ),
    "the first of several outcomes counts": lambda stamp: (
        _ask("POST", "/v1/publish", _to(f"b-{stamp}")),
        _ask("GET", f"/v1/queues/b-{stamp}/messages?consumer=ben"),
        _ask("POST", "/v1/confirm", [{"id": "{id:0}", "outcome": "retry"}, {"id": "no-id"}, {"id": "{id:0}"}]),
    ),
    "a copy that nothing has happened to is not newer than its original": lambda stamp: (
        _with_channel(stamp)[0],
        *(_ask("PUT", f"/v1/queues/{letter}-{stamp}") for letter in "ab"),
        Http(ADMIN, "GET", f"/messages/a-{stamp}", headers={"X-MQS-MAX-WAIT-TIME": "20"}, on="poll"),
        _ask("POST", "/v1/publish", _to(f"a-{stamp}.red", f"b-{stamp}")),
        _ask("GET", "/v1/messages/{id:0}"),
    ),
    "a message shows when it expires in its first queue": lambda stamp: (
        _with_channel(stamp)[0],
        _ask("POST", "/v1/publish", _to(f"a-{stamp}.red")),
        _ask("GET", "/v1/messages/{id:0}"),
    ),
    "places are in the order of topics": lambda stamp: (
        _ask("POST", "/v1/publish", _to(*[f"{letter}-{stamp}" for letter in "abcdefgh"])),
        _ask("GET", "/v1/messages/{id:0}"),
    ),
    "a message is not completed that a queue has which its client may not see": lambda stamp: (
        _with_channel(stamp)[0],
        _ask("POST", "/v1/publish", _to(f"a-{stamp}.red")),
        _ask("POST", "/v1/confirm", {"id": "{id:0}"}),
        Http(PART, "GET", "/v1/messages/{id:0}"),
    ),
}
"""Programs that were answered otherwise with several shards, and are not any more."""
