"""NATS JetStream with `sync_interval: always`: publish with acknowledgement; then a push consumer that
acknowledges each message, with at most 256 outstanding."""

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.cores import on_load_core
from bench.driver import Count, StoppedError, closed_loop, connect, until_finished
from bench.load import BODY, Tally
from bench.servers import accepts, free_port, running, scratch_directory
from bench.targets import IN_FLIGHT, Figures, Plan, Target, check_supply, program

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\n'
CONNECTIONS = 8
STREAM = {
    "name": "BENCH",
    "subjects": ["bench"],
    "storage": "file",
    "num_replicas": 1,
}
CONSUMER = {
    "stream_name": "BENCH",
    "config": {
        "deliver_subject": "deliver",
        "durable_name": "c",
        "ack_policy": "explicit",
        "max_ack_pending": IN_FLIGHT,
    },
}
# Messages stored for each second of consuming: more than it has ever consumed.
CONSUMED_PER_SECOND_MAX = 400_000
FILL_DEPTH = 1000
FILL_SECONDS_MAX = 120.0
AFTER_BODY = BODY + b"\r\n"


class Publish(Tally):
    """Keeps a number of publishes in flight; each is answered on the connection's own inbox."""

    def __init__(self, number: int, depth: int) -> None:
        super().__init__()
        inbox = b"inbox.%d" % number
        self.opening = CONNECT + b"SUB %s 1\r\n" % inbox
        self.request = b"PUB bench %s %d\r\n%s\r\n" % (inbox, len(BODY), BODY)
        self.depth = depth
        self.kept = b""

    def open(self) -> bytes:
        return self.opening + self.request * self.depth

    def receive(self, data: bytes) -> bytes:
        *lines, self.kept = (self.kept + data).split(b"\r\n")
        reply = b""
        for line in lines:
            if line.startswith(b'{"stream"'):
                self.finished += 1
                reply += self.request
            elif line.startswith(b"PING"):
                reply += b"PONG\r\n"
            elif not line.startswith((b"MSG", b"INFO")):
                self.wrong(line)
        return reply


class ConsumeAndAcknowledge(Tally):
    """Acknowledges each message that is pushed."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = b""

    def open(self) -> bytes:
        return CONNECT + b"SUB deliver 1\r\n"

    def receive(self, data: bytes) -> bytes:
        # Each message is a line with the subject to acknowledge to, then the body.
        *messages, self.kept = (self.kept + data).split(AFTER_BODY)
        self.finished += len(messages)
        reply = b"".join([b"PUB %s 4\r\n+ACK\r\n" % message.rsplit(b" ", 2)[1] for message in messages])
        if b"PING\r\n" in data:
            reply += b"PONG\r\n"
        return reply


def publish_rate(port: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [Publish(number, IN_FLIGHT // CONNECTIONS) for number in range(CONNECTIONS)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def consume_rate(port: int, warm_seconds: float, seconds: float) -> Count:
    return closed_loop(port, [ConsumeAndAcknowledge()], warm_seconds=warm_seconds, seconds=seconds)


def ask(port: int, subject: str, body: Mapping[str, object]) -> None:
    """One request to the server's own API, such as creating a stream."""
    payload = json.dumps(body).encode()
    with connect(port, blocking=True) as link:
        link.sendall(CONNECT + b"SUB inbox 1\r\nPUB %s inbox %d\r\n" % (subject.encode(), len(payload)))
        link.sendall(payload + b"\r\n")
        answer = b""
        while b'"type"' not in answer:
            answer += link.recv(1 << 16)
        if b'"error"' in answer:
            raise StoppedError(answer.decode())


def fill(port: int, messages: int) -> Count:
    conversations = [Publish(number, FILL_DEPTH) for number in range(CONNECTIONS)]
    return until_finished(port, conversations, messages, seconds_max=FILL_SECONDS_MAX)


def measure(plan: Plan) -> Figures:
    with scratch_directory(plan.scratch) as directory:
        # It consumes messages faster than it stores them, so they are stored beforehand
        # by a server that leaves syncing for later.
        with started(directory, "2m") as port:
            ask(port, "$JS.API.STREAM.CREATE.BENCH", STREAM)
            messages = int(CONSUMED_PER_SECOND_MAX * (plan.warm_seconds + plan.seconds))
            stored = on_load_core(fill, port, messages).with_warm_up
        with started(directory, "always") as port:
            publish = on_load_core(publish_rate, port, plan.warm_seconds, plan.seconds)
            ask(port, "$JS.API.CONSUMER.DURABLE.CREATE.BENCH.c", CONSUMER)
            consume = on_load_core(consume_rate, port, plan.warm_seconds, plan.seconds)
    check_supply(stored, consume)
    return Figures(publish, consume)


@contextlib.contextmanager
def started(directory: Path, sync_interval: str) -> Iterator[int]:
    server, port = find(), free_port()
    assert server is not None
    config = directory / "nats.conf"
    jetstream = f'{{ store_dir: "{directory}/store", sync_interval: {sync_interval} }}'
    config.write_text(f'host: "127.0.0.1"\nport: {port}\njetstream: {jetstream}\n')
    with running([server, "--config", config], directory, lambda: accepts(port)):
        yield port


def find() -> Path | None:
    return program("nats-server")


TARGETS = (
    Target(
        "nats",
        "NATS JetStream, sync always",
        measure,
        find,
        note="an acknowledgement moves a cursor that is not synced (with work-queue retention, which"
        " deletes on acknowledgement, it consumes about as slowly as it publishes)",
    ),
)
