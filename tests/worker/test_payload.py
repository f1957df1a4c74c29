"""A job in a message: readable, in JSON or msgpack."""

from __future__ import annotations

import msgspec
import pytest

from penstock.worker import payload
from penstock.worker.payload import Format, Next


def test_a_job_is_written_so_that_anyone_can_publish_one() -> None:
    assert payload.encode("resize", {"image": "a.png"}) == b'{"task":"resize","args":{"image":"a.png"}}'


@pytest.mark.parametrize("form", ["json", "msgpack"])
def test_a_job_with_a_chain_comes_back_as_it_was(form: Format) -> None:
    then = (Next("store", "images", "data", {"where": "s3"}, 5),)
    read = payload.decode(payload.encode("resize", {"image": 1}, then, form), as_json=form == "json")
    assert (read.task, tuple(read.then)) == ("resize", then)


DEEP = b'{"task":"resize","then":[{"task":"a","queue":"b","into":"c","args":{"a":' + b"[" * 5000


@pytest.mark.parametrize(
    "body", [b"", b"text", b"[]", b'{"args":{}}', b'{"task":5}', b"\x80", b'{"task":"\xff"}', DEEP]
)
def test_what_is_no_job_is_refused(body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        payload.decode(body, as_json=True)


def test_a_job_without_arguments_may_leave_them_out() -> None:
    assert bytes(payload.decode(b'{"task":"sweep"}', as_json=True).args) == b"{}"


def test_the_next_job_of_a_chain_gets_the_result_and_the_rest_of_the_chain() -> None:
    then = [Next("store", "images", "data", {"where": "s3"}), Next("tell", "mail", "where")]
    first, body = payload.follow_up(then, '"pixels"')
    assert first.queue == "images"
    assert msgspec.json.decode(body) == {
        "task": "store",
        "args": {"where": "s3", "data": "pixels"},
        "then": [{"task": "tell", "queue": "mail", "into": "where"}],
    }


def test_no_result_is_stored_as_nothing() -> None:
    assert payload.encode_result(None) == ""
    assert payload.decode_result("", int) is None
    assert payload.decode_result(payload.encode_result({"a": 1}), dict[str, int]) == {"a": 1}
