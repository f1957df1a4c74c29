"""NQ without a broker: requests in, commands out; answers in, responses out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.dialects.nq import FORM, Nq, PullDefaults
from penstock.dialects.wire.http import Call, Request, Response
from penstock.errors import ProtocolError, Reason
from penstock.limits import (
    BODY_BYTES_MAX,
    NEVER_NS,
    POST_MESSAGES_MAX,
    PULL_QUEUES_MAX,
    RESULTS_MAX,
    RUN_MESSAGES_MIN,
    SECOND_NS,
)
from penstock.model.answers import Answer, Drawn, Pulled, Receipt, Receipts, Refused, StoredResult, WrongResult
from penstock.model.commands import AwaitResult, Draw, NewMessage, Publish, PublishRun, Pull
from penstock.model.kept_headers import decode_headers
from penstock.model.settings import QueueSettings
from tests.support.effort import effort

KEEPS = QueueSettings(keep="all")
TEXT = "text/plain; charset=utf-8"
NQ = Nq(settings=KEEPS, defaults=PullDefaults(), empty_status=404, request_bytes_max=1 << 24)
CREATED = 1_767_225_600_123_456_789


def handled(method: str, target: str, body: bytes = b"", nq: Nq = NQ) -> Any:
    path = target.partition("?")[0][1:].split("/")
    route = ("/".join(path[:2]) if path[0] == "v1" else path[0]).encode()
    request = Request(method.encode(), target.encode(), {}, body)
    try:
        return nq.routes[route, len(path)][method.encode()](request, path[-1].encode())
    except ProtocolError as error:
        return FORM.bad_request(error)


def post(value: object) -> Any:
    return handled("POST", "/post", json.dumps(value).encode())


def pull(value: object, nq: Nq = NQ) -> Any:
    return handled("POST", "/pull", json.dumps(value).encode(), nq)


def told(result: Any, *answers: Answer) -> tuple[int, Any]:
    if isinstance(result, Call):
        result = result.render(*answers)
    assert isinstance(result, Response)
    return result.status, json.loads(result.body) if result.body else None


def refused(result: Any) -> str:
    status, body = told(result)
    assert status == 400
    assert body.keys() == {"_error"}
    error: str = body["_error"]
    return error


# ── Post ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_few_messages_are_published_one_by_one() -> None:
    call = post({"sender": "me", "messages": {"q": ["a", "b"]}})
    new = [NewMessage(b"a", TEXT, sender="me"), NewMessage(b"b", TEXT, sender="me")]
    assert call.command == Publish("q", new, KEEPS)
    assert told(call, [Receipt(1, 7, True), Receipt(1, 8, True)]) == (200, {"q": [7, 8]})


def test_many_messages_are_published_as_a_run() -> None:
    texts = [f"{number} ü" for number in range(RUN_MESSAGES_MIN)]
    call = post({"sender": "me", "messages": {"q": texts}})
    assert call.command == PublishRun(
        "q", NewMessage(b"", TEXT, sender="me"), [text.encode() for text in texts], KEEPS
    )
    assert told(call, Receipts(1, 7, 3)) == (200, {"q": [7, 8, 9]})


def test_an_error_half_way_through_a_post_comes_with_what_was_stored_before_it() -> None:
    call = post({"messages": {"a": ["1"], "empty": [], "b": ["2"], "c": ["3"]}})
    assert [publish.queue for publish in call.command.publishes] == ["a", "b", "c"]
    stored, failed = [Receipt(1, 1, True)], Refused(Reason.UNAVAILABLE, "no disk")
    in_turn: Any = [stored, stored, stored]
    assert told(call, in_turn) == (200, {"a": [1], "empty": [], "b": [1], "c": [1]})
    in_turn = [stored, failed]
    assert told(call, in_turn) == (503, {"a": [1], "_error": "messages.b: unavailable now: no disk"})
    assert told(call, failed) == (503, {"_error": "messages.a: unavailable now: no disk"})


def test_a_post_to_several_queues_that_is_forbidden_names_the_right_one() -> None:
    call = post({"messages": {"a": ["1"], "b": ["2"]}})
    status, body = told(call, Refused(Reason.FORBIDDEN, "publish on b"))
    assert (status, body["_error"].partition(";")[0]) == (403, "access denied: publish on b")


def test_too_many_queues_is_the_brokers_limit() -> None:
    status, body = told(post({"messages": {"q": ["x"]}}), Refused(Reason.TOO_MANY_QUEUES))
    assert (status, body.keys()) == (503, {"_error"})


@pytest.mark.parametrize("messages", [{}, {"q": []}, {"q": [], "r": []}])
def test_a_post_of_nothing_is_refused(messages: object) -> None:
    assert "messages: a post needs at least one message" in refused(post({"messages": messages}))


@pytest.mark.parametrize(("written", "kept"), [('"4"', b"4"), ("4", b"4"), ("4.50", b"4.50"), ("-1e9", b"-1e9")])
def test_a_tag_is_text_or_the_text_of_a_number(written: str, kept: bytes) -> None:
    body = b'{"messages": {"q": [{"message": "x", "tag": %b}]}}' % written.encode()
    (message,) = handled("POST", "/post", body).command.messages
    assert decode_headers(message.headers) == {b"tag": kept}


def test_a_delay_goes_with_the_message() -> None:
    command = post({"messages": {"q": [{"message": "x", "delay": 1.5}, {"message": "y", "delay": 0}, "z"]}}).command
    assert [message.delay_ns for message in command.messages] == [3 * SECOND_NS // 2, 0, None]


@pytest.mark.parametrize("name", ["a/b", "/", "a%2Fb", "ü/🐎", "x" * 250])
def test_any_name_that_json_can_hold_is_a_queue(name: str) -> None:
    assert post({"messages": {name: ["x"]}}).command.queue == name
    assert pull({"receiver": "r", "queues": {name: {}}}).command.draws[0].queue == name


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": {"q": "x"}}, "messages"),
        ({"messages": {"q": [None]}}, "messages"),
        ({"messages": {"q": [{"tag": "x"}]}}, "message"),
        ({"messages": {"q": [{"message": "x", "tagg": "x"}]}}, "tagg"),
        ({"messages": {"q": [{"message": "x", "tag": "\n"}]}}, "messages.q[0].tag"),
        ({"messages": {"q": ["x"] * (POST_MESSAGES_MAX + 1)}}, "messages"),
        ({"messages": {"q": ["fine", "x" * (BODY_BYTES_MAX + 1)]}}, "messages.q[1]"),
        ({"messages": {"q": ["fine", {"message": "ü" * (BODY_BYTES_MAX // 2 + 1)}]}}, "messages.q[1]"),
        ({"messages": {"q": [{"message": "x", "delay": -1}]}}, "delay"),
        ({"messages": {"q": [{"message": "x", "tag": True}]}}, "messages.q[0].tag"),
        ({"messages": {"q": [{"message": "x", "tag": None}]}}, "messages.q[0].tag"),
        ({"messages": {"q": [{"message": "x", "tag": {}}]}}, "messages.q[0].tag"),
        ({"messages": {"\x7f": ["x"]}}, "messages"),
        ({"messages": {"_error": ["x"]}}, "messages"),
        ({"messages": {"ü" * 126: ["x"]}}, "messages"),
        ({"messages": {"q": ["x"]}, "sender": 1}, "sender"),
        ({"messages": {"q": ["x"]}, "sender": "s" * 251}, "sender"),
        ({"messages": {"q": ["x"]}, "sendr": "s"}, "sendr"),
    ],
    ids=range(20),
)
def test_a_bad_post_is_refused_by_the_field(body: object, named: str) -> None:
    assert named in refused(post(body))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"\xff", b'{"messages": {"q": ["\xff"]}}', b'{"messages": {"q": ["\\ud800"]}}', b"null"],
)
@pytest.mark.parametrize("path", ["/post", "/pull"])
def test_what_is_not_such_a_document_is_refused(path: str, body: bytes) -> None:
    assert refused(handled("POST", path, body))


# ── Pull ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pull_has_defaults() -> None:
    call = pull({"receiver": "r", "queues": {"q": {}}})
    assert call.command == Pull("r", [Draw("q", 0, 1, 0, 120 * SECOND_NS, leases=True)], [], 60 * SECOND_NS)


def test_its_defaults_are_settings() -> None:
    nq = Nq(settings=KEEPS, defaults=PullDefaults(2, 0.5, 0.25), empty_status=404, request_bytes_max=1)
    call = pull({"receiver": "r", "queues": {"q": {}, "s": {"retry_num": 0, "fail_timeout": 1}}}, nq)
    draws = [Draw("q", 0, 1, 2, SECOND_NS // 2, leases=True), Draw("s", 0, 1, 0, SECOND_NS)]
    assert call.command == Pull("r", draws, [], SECOND_NS // 4)


def test_a_pull_says_what_it_wants() -> None:
    wanted = {"start": -1, "max": 7, "retry_num": 0, "fail_timeout": 0.5}
    call = pull({"receiver": "r", "timeout": 0.25, "queues": {"a": wanted, "b": {"start": 9}}})
    draws = [Draw("a", -1, 7, 0, SECOND_NS // 2), Draw("b", 9, 1, 0, 120 * SECOND_NS, leases=True)]
    assert call.command == Pull("r", draws, [], SECOND_NS // 4)


def test_results_alone_wait_for_nothing() -> None:
    call = pull({"receiver": "r", "timeout": 9, "results": {"a": {"1": "x", "20": ""}, "b": {"1": "ü"}}})
    assert call.command == Pull("r", [], [("a", 1, b"x"), ("a", 20, b""), ("b", 1, "ü".encode())], 0)
    assert told(call, Pulled()) == (200, {})


def test_messages_are_told_by_queue() -> None:
    plain = Drawn("a", [1, 2], [0, 5], [3, 4], [0, 0], [0, 0], ["me", ""], [CREATED] * 2, [b"one", "zwö".encode()])
    call = pull({"receiver": "r", "queues": {"a": {}}})
    time = "2026-01-01T00:00:00.123456Z"
    messages = [
        {"id": 1, "sender": "me", "message": "one", "created_time": time},
        {"id": 2, "sender": "", "message": "zwö", "created_time": time},
    ]
    assert told(call, Pulled([plain])) == (200, {"messages": {"a": messages}})


def test_a_tag_and_bytes_that_are_no_text_are_told_where_there_are_some() -> None:
    tagged = post({"messages": {"q": [{"message": "x", "tag": "blue"}]}}).command.messages[0]
    assert (tagged.body, tagged.content_type) == (b"x", TEXT)
    headers = [tagged.headers, b"", b""]
    sizes = ([1, 2, 0], [0] * 3, [len(each) for each in headers])
    drawn = Drawn("q", [1, 2, 3], [0] * 3, *sizes, [""] * 3, [CREATED] * 3, [b"x", b"\xff\xfe", b""], headers)
    status, body = told(pull({"receiver": "r", "queues": {"q": {}}}), Pulled([drawn]))
    first, second, third = body["messages"]["q"]
    assert (status, first["tag"], first["message"]) == (200, "blue", "x")
    assert second["message_base64"] == "//4="
    assert (third["message"], third.keys()) == ("", {"id", "sender", "message", "created_time"})


def test_an_empty_pull_tells_the_last_ids_or_nothing() -> None:
    body = {"receiver": "r", "queues": {"a": {}, "b": {}}}
    assert told(pull(body), Pulled(last={"a": 8, "b": 0})) == (404, {"a": 8, "b": 0})
    silent = Nq(settings=KEEPS, defaults=PullDefaults(), empty_status=204, request_bytes_max=1)
    assert told(pull(body, silent), Pulled(last={"a": 8, "b": 0})) == (204, None)


def test_wrong_results_are_named() -> None:
    wrong = [WrongResult("q", 5, Refused(Reason.NO_MESSAGE)), WrongResult("w", 1, Refused(Reason.LEASE_GONE))]
    wanted: list[dict[str, Any]] = [{}, {"q": {}}]
    for queues in wanted:
        call = pull({"receiver": "r", "queues": queues, "results": {"q": {"5": "x"}, "w": {"1": "y"}}})
        error = "results.q.5: the message does not exist; results.w.1: the message is not leased to this consumer"
        assert told(call, Pulled(wrong=wrong)) == (400, {"_error": error})


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.NO_CURSOR, 400),
        (Reason.TOO_MANY_RECEIVERS, 503),
        (Reason.UNAVAILABLE, 503),
        (Reason.DAMAGED, 500),
    ],
)
def test_a_refused_pull_is_told_with_its_reason(reason: Reason, status: int) -> None:
    bodies: list[dict[str, Any]] = [{"queues": {"q": {}}}, {"results": {"q": {"1": "x"}}}]
    for body in bodies:
        answered, told_body = told(pull({"receiver": "r"} | body), Refused(reason, "q"))
        assert (answered, told_body.keys()) == (status, {"_error"})
        assert reason.sentence in told_body["_error"]
        assert told_body["_error"].startswith("queues.q.start: ") is (reason is Reason.NO_CURSOR)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"queues": {"q": {}}}, "receiver"),
        ({"receiver": "", "queues": {"q": {}}}, "receiver"),
        ({"receiver": "ü" * 126, "queues": {"q": {}}}, "receiver"),
        ({"receiver": "r"}, "queues"),
        ({"receiver": "r", "queues": {}, "results": {}}, "queues"),
        ({"receiver": "r", "queues": {"q": None}}, "queues"),
        ({"receiver": "r", "queues": {str(number): {} for number in range(PULL_QUEUES_MAX + 1)}}, "queues"),
        ({"receiver": "r", "timeout": "1", "queues": {"q": {}}}, "timeout"),
        ({"receiver": "r", "timeout": 3600.1, "queues": {"q": {}}}, "timeout"),
        ({"receiver": "r", "queues": {"q": {"start": 1.5}}}, "start"),
        ({"receiver": "r", "queues": {"q": {"start": 1 << 44}}}, "start"),
        ({"receiver": "r", "queues": {"q": {"max": 1001}}}, "max"),
        ({"receiver": "r", "queues": {"q": {"retry_num": 1001}}}, "retry_num"),
        ({"receiver": "r", "queues": {"q": {"fail_timeout": NEVER_NS}}}, "fail_timeout"),
        ({"receiver": "r", "results": {"q": {"0": "x"}}}, "results.q"),
        ({"receiver": "r", "results": {"q": {"01": "x"}}}, "results.q"),
        ({"receiver": "r", "results": {"q": {"-1": "x"}}}, "results.q"),
        ({"receiver": "r", "results": {"q": {"\u0661": "x"}}}, "results.q"),
        ({"receiver": "r", "results": {"a\nb": {"1": "x"}}}, "results"),
        ({"receiver": "r", "results": {"q": {"1": None}}}, "results"),
        ({"receiver": "r", "results": {"q": {str(number + 1): "" for number in range(RESULTS_MAX + 1)}}}, "results"),
    ],
    ids=range(21),
)
def test_a_bad_pull_is_refused_by_the_field(body: object, named: str) -> None:
    assert named in refused(pull(body))


@effort(200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["receiver", "timeout", "queues", "results", "messages", "sender", "start", "max", "q"]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_brings_it_down(document: object) -> None:
    for path in ("/post", "/pull"):
        result = handled("POST", path, json.dumps(document).encode())
        assert isinstance(result, Call) or told(result)[0] in (200, 400)


# ── Results ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_is_asked_for_by_queue_id_and_receiver() -> None:
    call = handled("GET", "/v1/results/a%20b/17?receiver=me%C3%BC&timeout=1.5")
    assert call.command == AwaitResult("a b", 17, "meü", 3 * SECOND_NS // 2)
    assert handled("GET", "/v1/results/q/1").command == AwaitResult("q", 1, "", 60 * SECOND_NS)
    stored = StoredResult("meü", 5, 2, b"42")
    assert told(call, stored) == (200, {"id": 17, "receiver": "meü", "result": "42"})
    assert told(call, ()) == (404, {"_error": "no result arrived in time"})


@pytest.mark.parametrize("reason", [Reason.NO_QUEUE, Reason.NO_MESSAGE, Reason.NO_RESULTS])
def test_a_result_that_cannot_be_there_is_not_found(reason: Reason) -> None:
    status, body = told(handled("GET", "/v1/results/q/1"), Refused(reason))
    assert (status, body) == (404, {"_error": reason.sentence})


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("/v1/results/q/0", "id"),
        ("/v1/results/q/-1", "id"),
        ("/v1/results/q/", "id"),
        ("/v1/results/%00/1", "queue name"),
        ("/v1/results/q/1?timeout=-1", "timeout"),
        ("/v1/results/q/1?timeout=nan", "timeout"),
        ("/v1/results/q/1?timeout=", "timeout"),
        ("/v1/results/q/1?receiver=%00", "receiver"),
        ("/v1/results/q/1?receiver=%ff", "query"),
        ("/v1/results/q/1?wait=1", "wait"),
    ],
)
def test_a_bad_question_is_refused_by_what_is_wrong(target: str, named: str) -> None:
    assert named in refused(handled("GET", target))
