"""`penstock publish`: arguments, files, pipes and lines."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path

import pytest

from penstock.cli.exits import CommandError
from penstock.cli.publish import chunks
from tests.cli.conftest import Verb
from tests.support.broker import Broker
from tests.support.command_line import COMMAND, environment


def bodies(broker: Broker, queue: str) -> list[str]:
    found = broker.request("GET", f"/v1/search?queue={queue}&raw=true&limit=1000").json()["messages"]
    return [message.get("message", message.get("message_base64")) for message in found]


def test_a_message_is_published_and_its_id_printed(verb: Verb, broker: Broker, queue: str) -> None:
    ended = verb("publish", queue, "paint the fence")
    assert (ended.returncode, ended.stderr, bodies(broker, queue)) == (0, "", ["paint the fence"])
    assert broker.request("GET", f"/v1/messages/{ended.stdout.strip()}").status == 200


def test_a_pipe_is_one_message_to_the_byte(verb: Verb, broker: Broker, queue: str) -> None:
    assert verb("publish", queue, given="two\nlines\n").returncode == 0
    assert verb("publish", queue, "-", given="dash").returncode == 0
    assert bodies(broker, queue) == ["two\nlines\n", "dash"]


def test_a_pipe_through_which_nothing_came_publishes_nothing(verb: Verb, broker: Broker, queue: str) -> None:
    for source in ((), ("-",)):
        ended = verb("publish", queue, *source, given="")
        assert (ended.returncode, "for an empty message write ''" in ended.stderr) == (2, True)
    assert verb("publish", queue, "").returncode == 0
    assert broker.request("GET", f"/v1/queues/{queue}").json()["status"]["messages"] == 1


def test_a_file_is_one_message_whatever_is_in_it(verb: Verb, broker: Broker, queue: str, tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(b"\xff\xd8\x00")
    assert verb("publish", queue, f"@{tmp_path}/photo").returncode == 0
    assert bodies(broker, queue) == ["/9gA"]


def test_every_line_is_a_message(verb: Verb, broker: Broker, queue: str, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("c\nd")
    ended = verb("publish", queue, "--lines", given="a\n\nb\n")
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr.startswith("3 messages published in ")
    verb("publish", queue, f"@{tmp_path}/list.txt", "--lines")
    assert bodies(broker, queue) == ["a", "", "b", "c", "d"]


def test_all_that_can_be_said_of_a_message_arrives(verb: Verb, broker: Broker, queue: str) -> None:
    facts = ("--delay", "60", "--priority", "7", "--key", "k", "--object", "fence", "--expires", "600")
    ended = verb("publish", queue, '{"a": 1}', *facts, "--type", "application/json", "--json")
    found = json.loads(broker.request("GET", f"/v1/messages/{json.loads(ended.stdout)['id']}").body)
    assert (found["status"], found["priority"], found["object"], found["key"]) == ("delayed", 7, "fence", "k")
    assert (found["message"], found["mimeType"]) == ({"a": 1}, "application/json")
    assert found["expires_at"] is not None


def test_a_topic_takes_the_place_of_the_queue(verb: Verb) -> None:
    sent = json.loads(verb("publish", "--topic", "cli-fruit.sweet", "12 apples", "--json").stdout)
    assert sent["queues"] == ["cli-fruit"]
    both = verb("publish", "queue", "message", "--topic", "fruit")
    assert (both.returncode, "not both" in both.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name a queue, or a --topic"),
        (("q", "@/nonexistent/file"), "/nonexistent/file cannot be read: No such file"),
        (("q", "x", "--header", "wrong"), "NAME=VALUE"),
        (("q", "x", "--lines", "--key", "k"), "are for one message"),
    ],
)
def test_a_mistake_is_a_usage_error(verb: Verb, arguments: tuple[str, ...], complaint: str) -> None:
    ended = verb("publish", *arguments)
    assert (ended.returncode, ended.stdout, complaint in ended.stderr) == (2, "", True)


def test_a_queue_that_does_not_exist_is_not_found_and_the_remedy_is_a_command(verb: Verb) -> None:
    ended = verb("publish", "cli-nowhere", "x")
    assert (ended.returncode, ended.stdout) == (4, "")
    assert "the queue does not exist: cli-nowhere; create it with `penstock queues create" in ended.stderr


def test_lines_are_cut_wherever_the_pipe_cuts_them() -> None:
    class OneByteAtATime(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return self.read(1)

    assert [line for lines in chunks(OneByteAtATime(b"a\nbc\n\nd")) for line in lines] == [b"a", b"bc", b"", b"d"]
    with pytest.raises(CommandError, match="leave out --lines"):
        list(chunks(io.BytesIO(b"x" * (3 << 20))))


def test_it_waits_until_the_message_is_done_and_prints_the_outcome(broker: Broker, queue: str) -> None:
    url = "http://{}:{}".format(*broker.http)
    command = [*COMMAND, "publish", queue, "2 + 2", "--wait", "done", "--url", url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as publish:
        (message,) = broker.request("GET", f"/v1/queues/{queue}/messages?wait=20").json()
        outcome = json.dumps({"id": message["id"], "outcome": "success", "result": "4"}).encode()
        assert broker.request("POST", "/v1/confirm", body=outcome).status == 200
        assert publish.communicate(timeout=60)[0] == f"{message['id']} success 4\n"
    assert publish.returncode == 0


def test_a_message_that_nobody_takes_in_time_has_its_exit_code(verb: Verb, queue: str) -> None:
    ended = verb("publish", queue, "lonely", "--wait", "taken", "--timeout", "0.2")
    assert ended.returncode == 7
