"""`penstock consume`: what is written is confirmed, and what fails is given back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Verb
from tests.support.broker import Broker
from tests.support.command_line import COMMAND, environment


@pytest.fixture
def fill(broker: Broker, queue: str) -> Callable[[int], None]:
    def publish(count: int) -> None:
        body = json.dumps([{"message": f"m{number}"} for number in range(count)]).encode()
        assert broker.request("POST", f"/v1/queues/{queue}/messages", body=body).status == 201

    return publish


def counts(broker: Broker, queue: str) -> dict[str, int]:
    """How many messages are ready, and how many leased."""
    found: dict[str, int] = broker.request("GET", f"/v1/queues/{queue}").json()["status"]
    return {name: found[name] for name in ("ready", "leased")}


def test_one_message_is_written_and_confirmed(
    verb: Verb, broker: Broker, queue: str, fill: Callable[[int], None]
) -> None:
    fill(2)
    ended = verb("consume", queue)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "m0\n", "")
    assert counts(broker, queue) == {"ready": 1, "leased": 0}


def test_as_many_as_wanted_or_all(verb: Verb, broker: Broker, queue: str, fill: Callable[[int], None]) -> None:
    fill(1000)
    fill(1000)
    assert verb("consume", queue, "-n", "3").stdout == "m0\nm1\nm2\n"
    assert verb("consume", queue, "--all").stdout.count("\n") == 1997
    assert counts(broker, queue) == {"ready": 0, "leased": 0}


def test_an_empty_queue_has_an_exit_code_of_its_own(verb: Verb, queue: str) -> None:
    ended = verb("consume", queue)
    assert (ended.returncode, ended.stdout) == (7, "")
    assert "no message that is ready" in ended.stderr


def test_json_has_the_facts_and_the_body(ask: Callable[..., Any], queue: str, fill: Callable[[int], None]) -> None:
    fill(1)
    (message,) = ask("consume", queue)
    assert (message["message"], message["queue"], message["receives"]) == ("m0", queue, 1)


def test_each_message_can_be_a_file(verb: Verb, queue: str, fill: Callable[[int], None], tmp_path: Path) -> None:
    fill(3)
    ended = verb("consume", queue, "--all", "--output", "files", "--dir", str(tmp_path / "out"))
    files = [Path(line) for line in ended.stdout.splitlines()]
    assert [file.read_text() for file in files] == ["m0", "m1", "m2"]
    assert sorted((tmp_path / "out").iterdir()) == sorted(files)


def test_a_command_confirms_by_its_exit_status(
    verb: Verb, broker: Broker, queue: str, fill: Callable[[int], None]
) -> None:
    fill(3)
    ended = verb("consume", queue, "-n", "3", "--exec", 'test "$(cat)" != m1')
    assert ended.returncode == 1
    assert "the command ended with 1; the message is given back" in ended.stderr
    assert "the command failed for 1 of 3 messages" in ended.stderr
    assert counts(broker, queue) == {"ready": 1, "leased": 0}


def test_a_command_gets_the_facts_in_its_environment(verb: Verb, queue: str, fill: Callable[[int], None]) -> None:
    fill(1)
    ended = verb("consume", queue, "--exec", 'echo "$(cat) $PENSTOCK_MESSAGE_QUEUE $PENSTOCK_MESSAGE_RECEIVES"')
    assert (ended.returncode, ended.stdout) == (0, f"m0 {queue} 1\n")


def test_a_reader_that_ends_early_ends_it_too_and_gives_back_what_it_did_not_get(
    broker: Broker, queue: str, fill: Callable[[int], None]
) -> None:
    fill(1)
    reading, writing = os.pipe()
    os.close(reading)
    url = "http://{}:{}".format(*broker.http)
    with os.fdopen(writing, "wb") as out:
        ended = subprocess.run(
            [*COMMAND, "consume", queue, "--url", url],
            stdout=out,
            stderr=subprocess.PIPE,
            env=environment(),
            check=False,
            timeout=60,
        )
    assert (ended.returncode, ended.stderr) == (141, b"")
    assert counts(broker, queue) == {"ready": 1, "leased": 0}


def test_it_follows_until_ctrl_c(broker: Broker, queue: str, fill: Callable[[int], None]) -> None:
    command = [*COMMAND, "consume", queue, "--follow", "--url", "http://{}:{}".format(*broker.http)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        for _ in range(2):
            fill(1)
            assert process.stdout.readline() == b"m0\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
