"""The thread that runs coroutines for blocking callers: forks, interruptions and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextvars import ContextVar

import pytest

from penstock import Client
from penstock.client import errors
from penstock.client.runner import Runner
from tests.support.broker import Broker
from tests.support.waiting import wait_until


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_goes_on_with_the_same_client(broker: Broker) -> None:
    with Client(broker.url) as client:
        client.queues.create("runner-fork")
        client.publish("runner-fork", "parent")
        child = os.fork()
        if not child:
            client.publish("runner-fork", "child")
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        client.publish("runner-fork", "parent again")
        assert [message.text for message in client.receive("runner-fork", 3)] == ["parent", "child", "parent again"]


def test_closing_a_client_ends_calls_of_other_threads(broker: Broker) -> None:
    raised: list[BaseException] = []

    def wait(client: Client) -> None:
        try:
            client.receive("runner-closed", wait=20)
        except errors.ClientError as error:
            raised.append(error)

    with Client(broker.url) as client:
        client.queues.create("runner-closed")
        thread = threading.Thread(target=wait, args=(client,))
        thread.start()
        client.queues.get("runner-closed")
    thread.join(10)
    assert len(raised) == 1
    with pytest.raises(errors.ClientError, match="the client is closed; make a new one"):
        client.queues.list()
    client.close()


def test_each_caller_has_its_own_context_though_one_wake_up_of_the_loop_serves_all() -> None:
    runner, own, found = Runner("test"), ContextVar("own", default=-1), dict[int, int]()
    is_busy, may_go_on = threading.Event(), threading.Event()

    async def block() -> None:
        is_busy.set()
        may_go_on.wait(60)

    async def read() -> int:
        return own.get()

    def call(number: int) -> None:
        own.set(number)
        found[number] = runner.run(read())

    blocking = threading.Thread(target=lambda: runner.run(block()))
    blocking.start()
    is_busy.wait(60)
    callers = [threading.Thread(target=call, args=(number,)) for number in range(5)]
    for caller in callers:
        caller.start()
    wait_until(lambda: len(runner._calls) == len(callers), "all of them wait for the loop")
    may_go_on.set()
    for thread in (blocking, *callers):
        thread.join()
    runner.stop()
    assert found == {number: number for number in range(5)}


def test_ctrl_c_ends_a_wait(broker: Broker) -> None:
    code = f"""
import penstock
client = penstock.Client({broker.url!r})
client.queues.create("runner-interrupted")
print("ready", flush=True)
client.receive("runner-interrupted", wait=20)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode != 0
    assert said.rstrip().endswith("KeyboardInterrupt")


def test_ctrl_c_ends_a_loop_that_takes_a_moment_to_end() -> None:
    code = """
import asyncio, os, signal
from penstock.client.pages import Pages
from penstock.client.runner import Blocking, Runner, iterating

async def pages():
    yield [1]
    try:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0.2)

class Asynchronous:
    def numbers(self):
        return Pages(pages())

class Plain(Blocking):
    numbers = iterating(Asynchronous.numbers)

try:
    list(Plain(Asynchronous(), Runner("test")).numbers())
except KeyboardInterrupt:
    print("interrupted")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")


def test_a_program_may_end_without_closing_its_client(broker: Broker) -> None:
    code = f"""
import penstock
client = penstock.Client({broker.url!r})
client.queues.create("runner-left")
client.publish("runner-left", "x")
for message in client.consume("runner-left"):
    break
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
