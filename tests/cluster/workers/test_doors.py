"""Where the workers of one machine accept connections."""

from __future__ import annotations

import select
import socket
from contextlib import ExitStack

import pytest

from penstock.cluster.workers.doors import make_doors
from penstock.config.config import Address
from penstock.errors import InUseError
from tests.support.ports import free_port

ANY = Address("127.0.0.1", 0)
CONNECTIONS, WORKERS = 1000, 3


def test_every_worker_gets_its_share_of_the_connections() -> None:
    doors = make_doors(ANY, ANY, WORKERS)
    accepted = [0] * WORKERS
    with ExitStack() as stack:
        stack.callback(doors.close)
        for door in doors.all:
            door.http.listen(CONNECTIONS)
            door.http.setblocking(False)
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection(doors.http))
        for worker, door in enumerate(doors.all):
            while select.select([door.http], [], [], 0)[0]:
                stack.enter_context(door.http.accept()[0])
                accepted[worker] += 1
    assert sum(accepted) == CONNECTIONS
    assert max(accepted) <= 1.3 * CONNECTIONS / WORKERS, accepted


def test_connections_that_have_just_ended_do_not_keep_a_port() -> None:
    """The end that closes first remembers a connection for a minute."""
    where = Address("127.0.0.1", free_port())
    with socket.create_server(where, reuse_port=False) as earlier, socket.create_connection(where) as client:
        earlier.accept()[0].close()
        assert client.recv(1) == b""
    make_doors(where, ANY, WORKERS).close()


def test_who_listens_on_an_address_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InUseError, match=r"listens there\. Stop it"):
        make_doors(Address(*other.getsockname()), ANY, WORKERS)


def test_nobody_is_named_who_does_not_listen() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(InUseError, match="nobody listens there"):
            make_doors(ANY, Address(*other.getsockname()), WORKERS)
