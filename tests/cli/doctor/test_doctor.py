"""`penstock doctor`: what it finds on real disks, ports and brokers."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

from penstock.cli.doctor import disk
from penstock.cli.doctor.finding import State
from tests.support.broker import Broker, StartBroker
from tests.support.command_line import penstock

ANY_PORT = {"PENSTOCK_HTTP_ADDRESS": "127.0.0.1:0", "PENSTOCK_LINES_ADDRESS": "127.0.0.1:0"}


def examined(*arguments: str, **variables: str) -> tuple[int, dict[str, dict[str, Any]]]:
    ended = penstock("doctor", "--json", *arguments, **(ANY_PORT | variables))
    assert ended.stderr == ""
    return ended.returncode, {finding["check"]: finding for finding in json.loads(ended.stdout)}


def url_of(broker: Broker) -> str:
    return "http://{}:{}".format(*broker.http)


def test_a_broker_that_is_well_is_found_well(broker: Broker, tmp_path: Path) -> None:
    code, found = examined("--url", url_of(broker), "--data", str(tmp_path))
    assert code == 0
    assert found["broker"]["found"].startswith(f"{url_of(broker)} is green")
    assert found["access"]["found"] == "no token: accepted"
    assert not [finding for finding in found.values() if (finding["state"] == "ok") == bool(finding["remedy"])]


def test_a_wrong_token_fails_and_names_where_it_came_from(start_broker: StartBroker) -> None:
    broker = start_broker("auth.tokens=secret")
    code, found = examined("--url", url_of(broker), PENSTOCK_TOKEN="wrong")
    assert code == 1
    assert found["access"]["found"] == "token from PENSTOCK_TOKEN: refused with 401"
    assert examined("--url", url_of(broker), "--token", "secret")[0] == 0


def test_no_broker_is_a_failure_only_if_one_was_named() -> None:
    code, found = examined("--url", "http://127.0.0.1:1")
    assert (code, found["broker"]["state"]) == (1, "fail")
    assert "penstock serve" in found["broker"]["remedy"]


def test_a_port_that_is_taken_names_the_process_that_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        _, found = examined(PENSTOCK_HTTP_ADDRESS=f"127.0.0.1:{port}")
    assert found["http.address"]["state"] == "warn"
    assert f"process {os.getpid()}" in found["http.address"]["found"]


def test_a_file_in_place_of_the_data_directory_fails(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    code, found = examined("--data", str(file))
    assert (code, found["data directory"]["state"]) == (1, "fail")


def test_a_wrong_setting_of_the_broker_is_a_usage_error() -> None:
    ended = penstock("doctor", PENSTOCK_HTTP_ADDRESS="nowhere")
    assert (ended.returncode, "PENSTOCK_HTTP_ADDRESS" in ended.stderr) == (2, True)


def test_the_speed_of_fsync_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = disk.fsync_speed(tmp_path)
    assert found.state in set(State)
    assert "of 50" in found.found
    assert not list(tmp_path.iterdir())


def test_the_file_system_of_a_directory_is_the_one_that_is_mounted_nearest() -> None:
    known = subprocess.run(["stat", "-f", "-c", "%T", "/proc"], capture_output=True, text=True, check=True).stdout
    assert disk.filesystem(Path("/proc/self")) == known.strip() == "proc"


def test_people_get_a_line_for_each_check_and_the_remedy_below_it() -> None:
    ended = penstock("doctor", **ANY_PORT)
    assert ended.stdout.startswith("ok   data directory   ")
    assert "\nok   python           3." in ended.stdout
