"""A broker whose disk and clock fail on command: each fault does what it says, and ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.torture.inside import Faults, State
from penstock.torture.process import Process
from penstock.torture.traffic.wire import Http, Response

QUEUE = "/v1/queues/q"


async def ask(process: Process, method: str, target: str, body: bytes | None = None) -> Response:
    http = await Http.open(process)
    try:
        return await http.request(method, target, body, {"Content-Type": "application/json"})
    finally:
        http.close()


def with_broker(path: Path, story: Callable[[Process], Awaitable[None]]) -> None:
    async def run() -> None:
        process = Process(path / "data", {}, path / "broker.log")
        await process.start()
        try:
            await ask(process, "PUT", QUEUE)
            await story(process)
        finally:
            await process.kill()

    asyncio.run(run())


async def publish(process: Process) -> int:
    return (await ask(process, "POST", f"{QUEUE}/messages", b'{"message": "hello"}')).status


async def until_healthy(process: Process) -> None:
    while (await ask(process, "GET", "/health")).status != 200:  # noqa: ASYNC110 - It is another process.
        await asyncio.sleep(0.01)


async def until_published_with(process: Process, status: int) -> None:
    """A command arrives a little later than it is sent."""
    while await publish(process) != status:  # noqa: ASYNC110 - As above.
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("fault", [{"full": True}, {"sync_fails": 1}])
def test_a_disk_that_fails_refuses_publishes_until_the_fault_is_over(fault: dict[str, bool], tmp_path: Path) -> None:
    async def story(process: Process) -> None:
        await process.command(**fault)
        await until_published_with(process, 503)
        await process.command(full=False, sync_fails=0)
        await until_healthy(process)
        assert await publish(process) == 201

    with_broker(tmp_path, story)


def test_a_torn_write_kills_the_broker_and_the_next_one_starts(tmp_path: Path) -> None:
    async def story(process: Process) -> None:
        assert await publish(process) == 201
        await process.command(torn=0.5)
        with pytest.raises(ConnectionError):
            await until_published_with(process, 0)
        assert await process.ended_within(60)
        await process.command(torn=None)
        await process.start()
        assert (await ask(process, "GET", QUEUE)).json()["status"]["messages"] >= 1
        assert "torn_tail_cut" in "\n".join(process.log)

    with_broker(tmp_path, story)


def test_a_clock_that_is_set_is_noticed(tmp_path: Path) -> None:
    async def story(process: Process) -> None:
        await process.command(clock=100.0)
        while "clock_set" not in "\n".join(process.log):  # noqa: ASYNC110 - As above.
            await asyncio.sleep(0.05)

    with_broker(tmp_path, story)


def test_the_clock_of_a_process_is_moved_by_what_the_state_says() -> None:
    faults = Faults(State(clock=1000.0))
    assert faults.time() - time.time() == pytest.approx(1000, abs=1)
    assert faults.time_ns() - time.time_ns() == pytest.approx(1e12, abs=1e9)


def test_a_broker_ends_with_the_torture_that_started_it(tmp_path: Path) -> None:
    async def story(process: Process) -> None:
        assert process._process is not None
        assert process._process.stdin is not None
        process._process.stdin.close()
        assert await process.ended_within(60)

    with_broker(tmp_path, story)
