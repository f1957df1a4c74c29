"""Nothing is pushed to an address of this machine, on whichever interface it is.

The addresses are those of the documentation's networks, assigned in a network namespace without routes: nothing could
leave it. Making one takes root; without it these tests are skipped, and say so.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

OWN = ("203.0.113.7", "2001:db8::7")
NOT_OWN = ("203.0.113.8", "2001:db8::8")
_ADDRESSES = "".join(f" && ip addr add {address}/{'128' if ':' in address else '32'} dev lo" for address in OWN)
_PREPARE = "ip link set lo up" + _ADDRESSES


def in_a_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that sees the addresses above as this machine's, and no way out."""
    script = f'{_PREPARE} && exec "$@"'
    arguments = ["unshare", "--net", "sh", "-c", script, "sh", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module", autouse=True)
def _namespaces() -> None:
    if not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace takes the programs unshare and ip")
    made = in_a_namespace("true")
    if made.returncode:
        pytest.skip(f"no network namespace can be made here: {made.stderr.strip()}")


def in_python(function: str, *arguments: str) -> Any:
    code = f"import json, {__name__} as here; print(json.dumps(here.{function}({', '.join(map(repr, arguments))})))"
    ran = in_a_namespace(sys.executable, "-c", code)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def judged() -> dict[str, bool]:
    from penstock.broker.own_addresses import is_own

    return {text: is_own(ip_address(text)) for text in (*OWN, *NOT_OWN, "::ffff:203.0.113.7", "127.0.0.1")}


def test_an_address_on_an_interface_is_ours_and_its_neighbour_is_not() -> None:
    ours = dict.fromkeys((*OWN, "::ffff:203.0.113.7", "127.0.0.1"), True)
    assert in_python("judged") == ours | dict.fromkeys(NOT_OWN, False)


def connected(url: str) -> str:
    from penstock.broker.services.push_connections import Connections
    from penstock.broker.services.push_messages import parse_url
    from penstock.errors import ProtocolError

    async def connect() -> str:
        connections = Connections(parse_url(url), lambda: None, False, lambda: None)  # type: ignore[arg-type, return-value]
        try:
            await connections.connect()
        except ProtocolError as error:
            return str(error)
        return "connected"

    return asyncio.run(connect())


@pytest.mark.parametrize("url", ["http://203.0.113.7/", "http://[2001:db8::7]/", "http://[::ffff:203.0.113.7]/"])
def test_what_is_on_an_interface_is_refused_when_it_is_connected_to(url: str) -> None:
    assert "is an address of this machine" in in_python("connected", url)


def put_channels(data: str) -> list[tuple[int, str]]:
    from tests.support.broker import Broker

    broker = Broker(Path(data)).start()
    try:
        answers = []
        for host in ("203.0.113.7", "[2001:db8::7]", "203.0.113.8"):
            body = {"topics": ["a"], "push": {"url": f"http://{host}/"}}
            answer = broker.request("PUT", "/v1/channels/c", body=json.dumps(body).encode())
            answers.append((answer.status, answer.json()["error"]))
        return answers
    finally:
        broker.stop()


def test_a_channel_to_an_address_of_this_machine_is_refused_by_a_broker(tmp_path: Path) -> None:
    first, second, neighbour = in_python("put_channels", str(tmp_path / "data"))
    assert (first[0], second[0], neighbour[0]) == (400, 400, 400)
    assert "203.0.113.7 is an address of this machine" in first[1]
    assert "2001:db8::7 is an address of this machine" in second[1]
    assert "203.0.113.8 is this machine or in a private or reserved network" in neighbour[1]
