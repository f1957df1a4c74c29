"""A broker that goes away in the middle: what is half read never counts as whole."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.cli.backup.broker_source import BrokerSource
from penstock.cli.exits import CommandError, Exit
from penstock.client.trust import Trust

DATA = bytes(range(256)) * 400


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that gives each connection one answer, and closes it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for answer in answers:
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def head(size: int) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size


def source(url: str) -> BrokerSource:
    return BrokerSource(url, "", Trust())


@pytest.mark.parametrize("sent", [0, 1, len(DATA) - 1])
def test_a_snapshot_that_breaks_off_is_an_error(sent: int) -> None:
    with answering(head(len(DATA)) + DATA[:sent]) as url, source(url) as broker:
        with pytest.raises(CommandError, match="broke off") as error:
            list(broker.snapshot(1))
        assert error.value.exit is Exit.UNREACHABLE


def test_a_history_that_breaks_off_is_an_error() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400\r\n" + DATA[:1024] + b"\r\n"
    with answering(chunked) as url, source(url) as broker, pytest.raises(CommandError, match="broke off"):
        list(broker.history())


def test_the_log_is_continued_where_it_broke_off() -> None:
    first, rest = DATA[:1000], DATA[1000:]
    with answering(head(len(DATA)) + first, head(len(rest)) + rest) as url, source(url) as broker:
        assert b"".join(broker.log(0, len(DATA))) == DATA


def test_a_log_that_never_comes_is_given_up() -> None:
    with answering(*[head(len(DATA))] * 5) as url, source(url) as broker, pytest.raises(CommandError):
        list(broker.log(0, len(DATA)))
