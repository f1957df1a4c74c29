"""Schedules, tokens, workers, claims, figures and the broker's own pages."""

from __future__ import annotations

from typing import Any

from tests.twins.programs import Draw, Http, Row, Step


def _schedule(draw: Draw) -> str:
    return draw.one_of([draw.name("a-s"), draw.name("s"), draw.name("t")])


def put_schedule(draw: Draw) -> Step:
    target: dict[str, Any] = draw.one_of([{"queue": draw.queue()}, {"topics": [draw.topic()]}])
    every = {"every": 1} if draw.is_timed and draw.chance() < 0.5 else {"every": 86400, "start": 4000000000}
    when: dict[str, Any] = draw.one_of([every, {"cron": "0 0 1 1 *"}, {"cron": "no"}])
    more = draw.any_of(
        paused=draw.one_of([True, False]), priority=1, time_zone=draw.one_of(["Europe/Berlin", "Mars/Base"])
    )
    return Http(
        draw.who(),
        "PUT",
        f"/v1/schedules/{_schedule(draw)}",
        draw.spoilt({"message": draw.content()} | target | when | more),
    )


def patch_schedule(draw: Draw) -> Step:
    change: dict[str, Any] = draw.one_of(
        [
            {"paused": True},
            {"paused": False},
            {"message": "new"},
            {"queue": draw.queue()},
            {"topics": [draw.topic()], "queue": None},
        ]
    )
    return Http(draw.who(), "PATCH", f"/v1/schedules/{_schedule(draw)}", draw.spoilt(change))


def show_schedule(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/schedules/{_schedule(draw)}")


def list_schedules(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), "/v1/schedules?limit=1000")


def delete_schedule(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/schedules/{_schedule(draw)}")


def run_schedule(draw: Draw) -> Step:
    return Http(draw.who(), "POST", f"/v1/schedules/{_schedule(draw)}/run")


def put_token(draw: Draw) -> Step:
    body = {"scopes": draw.one_of([["publish:*"], ["nothing"], ["read:a-*", "consume:x"]])}
    return Http(
        draw.who(), "PUT", f"/v1/tokens/{draw.name('t')}", draw.spoilt(body | draw.any_of(expires=4000000000))
    )


def patch_token(draw: Draw) -> Step:
    return Http(draw.who(), "PATCH", f"/v1/tokens/{draw.name('t')}", draw.spoilt({"scopes": ["read:b-*"]}))


def show_token(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/tokens/{draw.name('t')}")


def list_tokens(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), "/v1/tokens?limit=1000")


def rotate_token(draw: Draw) -> Step:
    return Http(
        draw.who(), "POST", f"/v1/tokens/{draw.name('t')}/rotate", draw.one_of([None, {"grace": 60}, {"grace": -1}])
    )


def revoke_token(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/tokens/{draw.name('t')}")


def put_worker(draw: Draw) -> Step:
    body = {"queues": [draw.queue()], "concurrency": 2, "running": 1, "seconds": 3600}
    return Http(draw.who(), "PUT", f"/v1/workers/{draw.name('w')}", draw.spoilt(body))


def list_workers(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), "/v1/workers")


def delete_worker(draw: Draw) -> Step:
    return Http(draw.who(), "DELETE", f"/v1/workers/{draw.name('w')}")


def claim(draw: Draw) -> Step:
    body = {"consumer": "spark", "lease": draw.seconds(), "count": draw.one_of([1, 3])}
    return Http(draw.who(), "POST", f"/v1/claims/{draw.queue()}", draw.spoilt(body))


def act_on_claim(draw: Draw) -> Step:
    verb = draw.one_of(["finish", "finish", "other"])
    body: dict[str, Any] = {"consumer": "spark", "claimed": draw.one_of(["{claimed}", []]), "lease": draw.seconds()}
    return Http(draw.who(), "POST", f"/v1/claims/{draw.queue()}/{verb}", draw.spoilt(body))


def staging(draw: Draw) -> Step:
    query = draw.name("q")
    ways: list[tuple[str, str, Any]] = [
        ("GET", f"/v1/stage/{query}", None),
        ("DELETE", f"/v1/stage/{query}/0", None),
        ("POST", f"/v1/stage/{query}/0/commit", {"parts": [{"part": "a", "chunks": 1}]}),
        ("POST", f"/v1/stage/{query}/0/commit", {"parts": []}),
        ("POST", f"/v1/stage/{query}/0/a?chunk=0", "no arrow"),
    ]
    return Http(draw.who(), *draw.one_of(ways))


def stats(draw: Draw) -> Step:
    wishes = draw.one_of(
        [
            f"?queue={draw.queue()}",
            f"?name={draw.stamp}&sort=name",
            f"?name={draw.stamp}&dead_letters=true",
            "?sort=x",
        ]
    )
    return Http(draw.who(), draw.one_of(["GET", "GET", "HEAD"]), f"/v1/stats{wishes}")


def consumers(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/consumers?queue={draw.queue()}&sort=consumer")


def connections(draw: Draw) -> Step:
    return Http(draw.who(), draw.one_of(["GET", "HEAD"]), f"/v1/connections?queue={draw.queue()}")


def page(draw: Draw) -> Step:
    pages = [
        "/health",
        "/openapi.json",
        "/asyncapi.json",
        "/",
        "/console",
        "/console/none.js",
        "/v1/lake/queue_minutes",
    ]
    pages += ["/v1/redrive", "/v1/purges", "/v1/log/batches?from=x&shard=0"]
    return Http(draw.who(), draw.one_of(["GET", "GET", "HEAD"]), draw.one_of(pages))


ADMINISTRATION: dict[Row, int] = {
    **dict.fromkeys((put_schedule, run_schedule, stats, page), 3),
    **dict.fromkeys((patch_schedule, show_schedule, list_schedules, delete_schedule, staging, connections), 1),
    **dict.fromkeys((put_token, patch_token, show_token, list_tokens, rotate_token, revoke_token), 1),
    **dict.fromkeys((put_worker, list_workers, delete_worker, claim, act_on_claim, consumers), 1),
}
