"""The limit of the design: a hand-wired server with the same guarantee and no engine.

It uses uvloop, httptools and group commit, stores one record for each request, and answers only after the fdatasync
that covers the record. It keeps no queue, so the difference to Penstock is the cost of being a broker.
Run as `python -m bench.bare PORT DIRECTORY [CERTIFICATE KEY]`. With a certificate it uses the TLS of uvloop.
"""

import asyncio
import os
import queue
import ssl
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httptools
import uvloop

from bench.driver import HOST

PIECE_BYTES = 32 << 20
BACKLOG = 1024
RECORD = struct.Struct("<IBQ")  # Length of the body, kind, sequence.
STORED_BODY = b"x" * 200

# A UUID with a counter in it: the cheapest valid id.
ID = b"x-mqs-message-id: 00000000-0000-4000-8000-%012x\r\n"
CREATED = b"HTTP/1.1 201 Created\r\n" + ID + b"content-length: 0\r\n\r\n"
RECEIVED = (
    b"HTTP/1.1 200 OK\r\n"
    + ID
    + b"content-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n" % len(STORED_BODY)
    + STORED_BODY
)
DELETED = b"HTTP/1.1 204 No Content\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
KINDS = {b"POST": 1, b"GET": 2, b"DELETE": 3}


class Segment:
    """An append-only file whose space is allocated ahead of the writes.

    After a write to space that is already allocated, fdatasync has far less metadata to store.
    """

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
        self.position = 0
        self.allocated = 0
        self._allocate()
        os.fsync(self.descriptor)

    def append(self, data: bytes) -> None:
        while self.position + len(data) > self.allocated:
            self._allocate()
        written = os.pwrite(self.descriptor, data, self.position)
        if written != len(data):
            raise OSError(f"wrote {written} of {len(data)} bytes")
        self.position += written
        os.fdatasync(self.descriptor)

    def _allocate(self) -> None:
        os.posix_fallocate(self.descriptor, self.allocated, PIECE_BYTES)
        self.allocated += PIECE_BYTES


Answer = tuple["Connection", bytes]


class GroupCommit:
    """Collects records while a sync is in flight; the next sync covers all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, segment: Segment) -> None:
        self.loop = loop
        self.segment = segment
        self.sequence = 0
        self.records: list[bytes] = []
        self.answers: list[Answer] = []
        self.busy = False  # A sync is in flight, or due at the end of this turn.
        self.batches: queue.SimpleQueue[tuple[list[bytes], list[Answer]]] = queue.SimpleQueue()
        threading.Thread(target=self._sync_forever, name="sync", daemon=True).start()

    def begin(self) -> None:
        """Hand the collected records to the thread that syncs them."""
        self.batches.put((self.records, self.answers))
        self.records, self.answers = [], []

    def _sync_forever(self) -> None:
        while True:
            records, answers = self.batches.get()
            try:
                self.segment.append(b"".join(records))
            except OSError as error:
                # What was not stored is never acknowledged.
                print(f"the log cannot be written: {error}", file=sys.stderr, flush=True)
                os._exit(1)
            self.loop.call_soon_threadsafe(self._synced, answers)

    def _synced(self, answers: list[Answer]) -> None:
        if self.records:
            # Begun after the answers, so that requests read in this turn join the batch (7 % more a second).
            self.loop.call_soon(self.begin)
        else:
            self.busy = False
        for connection, answer in answers:
            connection.write(answer)


class Connection(asyncio.Protocol):
    """One client. It reads what any HTTP server must read: the target, the headers, the body."""

    def __init__(self, commit: GroupCommit) -> None:
        self.commit = commit
        self.target = b""
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.parser = httptools.HttpRequestParser(self)
        self.data_received = self.parser.feed_data  # type: ignore[method-assign]  # One call less a read.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write: Callable[[bytes], object] = transport.write  # type: ignore[attr-defined]

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.write = len  # The record is stored anyway, but nobody waits for its answer.

    def on_url(self, url: bytes) -> None:
        self.target = url
        self.headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        self.body = self.body + body if self.body else body

    def on_message_complete(self) -> None:
        commit, body = self.commit, self.body
        commit.sequence = sequence = commit.sequence + 1
        method = self.parser.get_method()
        if not self.target.startswith(b"/messages/"):
            answer = NOT_FOUND
        elif method == b"POST":
            self.body = b""
            answer = CREATED % sequence
        elif method == b"GET":
            answer = RECEIVED % sequence
        else:
            answer = DELETED
        commit.records.append(RECORD.pack(len(body), KINDS.get(method, 0), sequence))
        commit.records.append(body)
        commit.answers.append((self, answer))
        if not commit.busy:
            commit.busy = True
            commit.loop.call_soon(commit.begin)


async def serve(port: int, directory: Path, *pair: str) -> None:
    loop = asyncio.get_running_loop()
    commit = GroupCommit(loop, Segment(directory / "segment"))
    tls = None
    if pair:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*pair)
    server = await loop.create_server(lambda: Connection(commit), HOST, port, backlog=BACKLOG, ssl=tls)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
