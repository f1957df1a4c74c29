"""What a person at a terminal meets in the first hour: help, mistakes that are easy to make, and answers to read."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.support.broker import Broker, refused_start
from tests.support.command_line import Terminal, penstock

MQS = {"retention_timeout": 60, "visibility_timeout": 5, "message_deduplication": False}
NEEDS = [
    *product([("pipeline", "run"), ("pipeline", "compact")], ["pyspark", "deltalake"]),
    *product([("pipeline", "status"), ("pipeline", "tables"), ("sql", "select 1")], ["deltalake"]),
]


@pytest.mark.parametrize(("command", "library"), NEEDS)
def test_a_command_without_its_extra_says_what_to_install(
    command: tuple[str, ...], library: str, tmp_path: Path
) -> None:
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('it is not there', name={library!r})\n")
    lake = ("--lake", str(tmp_path / "lake"))
    ended = penstock(*command, *lake, PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1
    assert ended.stderr == f"penstock: {library} is not installed; run: pip install 'penstock[spark]'\n"


def test_a_fault_in_another_import_is_not_hidden(tmp_path: Path) -> None:
    (tmp_path / "pyspark.py").write_text("import nothing_of_this_name\n")
    ended = penstock("pipeline", "run", PYTHONPATH=str(tmp_path))
    assert "No module named 'nothing_of_this_name'" in ended.stderr


def test_variables_of_client_commands_do_not_stop_a_broker(tmp_path: Path) -> None:
    variables = {
        "PENSTOCK_LAKE": "elsewhere",
        "PENSTOCK_URL": "http://127.0.0.1:1",
        "PENSTOCK_TOKEN": "secret",
        "PENSTOCK_PROFILE": "production",
    }
    # With a wrong setting on top, since a broker that starts does not end.
    ended = penstock("serve", "--set", "nq.timeout=never", **variables)
    assert (ended.returncode, "nq.timeout" in ended.stderr, "PENSTOCK_" in ended.stderr) == (2, True, False)


def test_the_pipeline_reads_from_the_broker_that_the_environment_names(tmp_path: Path) -> None:
    lake = ("--lake", str(tmp_path / "lake"))
    there = {"PENSTOCK_URL": "http://127.0.0.1:1"}
    assert "http://127.0.0.1:1 " in penstock("pipeline", "run", *lake, **there).stderr
    assert "http://127.0.0.1:2 " in penstock("pipeline", "run", *lake, "--url", "http://127.0.0.1:2", **there).stderr
    nothing = str(tmp_path / "nothing")
    assert nothing in penstock("pipeline", "run", *lake, "--data", nothing, **there).stderr


@pytest.mark.parametrize("within", ["", "deeper/still"])
def test_a_file_where_the_data_directory_should_be_is_named(tmp_path: Path, within: str) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    code, said = refused_start(file / within)
    assert (code, "Traceback" in said) == (1, False)
    assert f"{file} is not a directory" in said
    assert "choose another path" in said
    assert "Errno" not in said
    pipeline = penstock("pipeline", "run", "--data", str(file / within), "--lake", str(tmp_path / "lake"))
    assert (pipeline.returncode, pipeline.stderr.count("\n")) == (1, 1)
    assert f"{file} is not a directory" in pipeline.stderr


def test_times_of_queues_are_shown_in_plain_numbers(start_and_stop: Broker) -> None:
    shown = penstock("log", "inspect", str(start_and_stop.data)).stdout
    assert "retention 1,209,600 s" in shown
    assert "visibility 1.5 s" in shown
    assert "e+" not in shown


@pytest.fixture
def start_and_stop(start_broker: object) -> Broker:
    broker: Broker = start_broker()  # type: ignore[operator]
    settings = {"retention_timeout": 1_209_600, "visibility_timeout": 1.5}
    assert broker.request("PUT", "/v1/queues/long", body=json.dumps(settings).encode()).status == 201
    broker.stop()
    return broker


@pytest.mark.parametrize(
    "request_line",
    [
        "PUT /queues/empty",
        "PUT /v1/channels/empty",
        "PATCH /v1/queues/present",
        "POST /post",
        "POST /pull",
        "POST /v1/publish",
        "POST /v1/confirm",
        "POST /v1/extend",
        "POST /v1/redrive",
        "POST /v1/queues/present/messages",
        "POST /v1/claims/present",
    ],
)
@pytest.mark.parametrize("body", [b"", b'{"retention'], ids=["empty", "cut"])
def test_an_empty_or_cut_body_is_named_as_such(broker: Broker, request_line: str, body: bytes) -> None:
    broker.request("PUT", "/v1/queues/present", body=b"{}")
    method, path = request_line.split()
    response = broker.request(method, path, {"Content-Type": "application/json"}, body)
    assert response.status == 400
    sentence = "the body is empty or ends too early; expected JSON"
    code = response.header("X-Penstock-Code")  # NQ has it there.
    assert response.json() == ({"_error": sentence} if code else {"error": sentence, "code": "bad_json"})
    assert code in (None, "bad_json")


def test_every_json_answer_ends_with_a_newline(broker: Broker) -> None:
    asked = [
        ("PUT", "/queues/lines", MQS),
        ("PUT", "/queues/lines", MQS),  # 409
        ("GET", "/queues", None),
        ("GET", "/queues/nothing", None),
        ("GET", "/status/lines", None),
        ("GET", "/status/nothing", None),
        ("POST", "/post", {"messages": {"lines": ["a", "b"]}}),
        ("POST", "/post", {"messages": {"lines": ["a"], "more": ["b"]}}),
        ("POST", "/pull", {"receiver": "r", "queues": {"lines": {}}}),
        ("POST", "/pull", {"receiver": "r", "timeout": 0, "queues": {"nothing": {}}}),
        ("POST", "/pull", {"receiver": "r", "results": {"more": {"1": "x"}}}),
        ("POST", "/pull", {}),
        ("POST", "/v1/publish", {"message": "x", "topics": ["lines.x"]}),
        ("POST", "/v1/publish", [{"message": "x"}]),
        ("POST", "/v1/publish", []),
        ("GET", "/v1/queues", None),
        ("GET", "/v1/queues/lines", None),
        ("GET", "/v1/queues/lines/messages?consumer=c", None),
        ("GET", "/v1/search?queue=lines", None),
        ("GET", "/v1/schedule?queue=lines", None),
        ("GET", "/v1/redrive", None),
        ("GET", "/v1/log", None),
        ("GET", "/nothing", None),
        ("DELETE", "/health", None),
        ("GET", "/openapi.json", None),
        ("GET", "/asyncapi.json", None),
    ]
    for method, path, document in asked:
        body = b"" if document is None else json.dumps(document).encode()
        response = broker.request(method, path, {"Content-Type": "application/json"}, body)
        assert response.header("Content-Type") == "application/json", (path, response)
        assert response.body.endswith((b"}\n", b"]\n")), (path, response)


# ── At a real terminal ────────────────────────────────────────────────────────────────────────────────────


def at_terminal(broker: Broker, *arguments: str) -> Terminal:
    return Terminal(*arguments, "--url", "http://{}:{}".format(*broker.http))


def make_queue(broker: Broker, name: str, *messages: str) -> str:
    broker.request("PUT", f"/v1/queues/{name}", body=b"{}")
    for message in messages:
        assert broker.request("POST", f"/v1/queues/{name}/messages?priority=0", body=message.encode()).status == 201
    return name


def test_tables_are_drawn_and_letters_coloured(broker: Broker) -> None:
    name = make_queue(broker, "screen-colours", "hello")
    listed = at_terminal(broker, "queues", "list")
    assert (listed.end(), "───" in listed.shown, name in listed.shown) == (0, True, True)
    tail = at_terminal(broker, "tail", "--from", "earliest", "--no-follow", "--queue", name)
    assert (tail.end(), "\x1b[34mL\x1b[0m" in tail.shown) == (0, True)


def test_a_question_is_asked_before_messages_are_lost(broker: Broker) -> None:
    name = make_queue(broker, "screen-question", "precious")
    for answer, code, status in (("n", 1, 200), ("y", 0, 404)):
        verb = at_terminal(broker, "queues", "delete", name)
        verb.wait_for("Delete the queue screen-question with 1 messages? [y/N]")
        verb.press(f"{answer}\r")
        assert (verb.end(), broker.request("GET", f"/v1/queues/{name}").status) == (code, status)


def test_top_shows_the_queues_and_q_quits(broker: Broker) -> None:
    name = make_queue(broker, "screen-top", "a", "b")
    top = at_terminal(broker, "top", "--every", "0.2")
    top.wait_for(name)
    top.press("q")
    assert top.end() == 0
    assert top.shown.rindex("\x1b[?1049l") > top.shown.rindex(name)  # The screen is as it was before.


@pytest.mark.parametrize("verb", [("queues", "list", "--watch", "0.1"), ("tail",), ("consume", "screen-empty", "-f")])
def test_ctrl_c_ends_what_goes_on_and_leaves_no_trace_of_itself(broker: Broker, verb: tuple[str, ...]) -> None:
    name = make_queue(broker, "screen-empty")
    running = at_terminal(broker, *verb)
    expected = name if verb[0] == "queues" else "message for"
    body = f"message for {verb[0]}".encode()
    running.wait_for(expected, lambda: broker.request("POST", f"/v1/queues/{name}/messages?priority=0", body=body))
    running.press("\x03")
    assert (running.end(), "Traceback" in running.shown) == (130, False)


def test_a_large_file_shows_how_far_it_is(broker: Broker, tmp_path: Path) -> None:
    name = make_queue(broker, "screen-progress")
    file = tmp_path / "lines"
    file.write_text("x" * 50 + "\n" + "line\n" * 200_000)
    publish = at_terminal(broker, "publish", name, f"@{file}", "--lines")
    publish.wait_for("publishing")
    assert (publish.end(), "200,001 messages published in" in publish.shown) == (0, True)
