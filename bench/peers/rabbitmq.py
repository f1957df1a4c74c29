"""RabbitMQ, a quorum queue: publisher confirms; then consuming with manual acknowledgements."""

import contextlib
import os
import pwd
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.cores import on_load_core
from bench.driver import Count, closed_loop, until_finished
from bench.peers.amqp import ConfirmedPublish, Consume, Declare
from bench.servers import accepts, free_port, running, scratch_directory
from bench.targets import IN_FLIGHT, Figures, Plan, Target, program

PUBLISHERS = 4
CONSUME_SECONDS_MAX = 120.0
DECLARE_SECONDS_MAX = 30.0
SCRIPT = "/usr/lib/rabbitmq/bin/rabbitmq-server"
USER = "rabbitmq"


def declare(port: int) -> Count:
    return until_finished(port, [Declare()], 1, seconds_max=DECLARE_SECONDS_MAX)


def publish_rate(port: int, connections: int, warm_seconds: float, seconds: float) -> Count:
    conversations = [ConfirmedPublish(IN_FLIGHT // connections) for _ in range(connections)]
    return closed_loop(port, conversations, warm_seconds=warm_seconds, seconds=seconds)


def consume_rate(port: int, messages: int, each: bool) -> Count:
    """The rate in the middle of the run, without its start and without the end of the queue."""
    edge = messages // 10
    consumer, seconds_max = Consume(IN_FLIGHT, each=each), CONSUME_SECONDS_MAX
    return until_finished(port, [consumer], messages - edge, seconds_max=seconds_max, warm_operations=edge)


def measure(plan: Plan, *, each: bool) -> Figures:
    with scratch_directory(plan.scratch) as directory, started(directory) as port:
        declare(port)
        publish = on_load_core(publish_rate, port, PUBLISHERS, plan.warm_seconds, plan.seconds)
        # It delivers faster than it stores, and slower if the queue is long, so consume what was just stored.
        consume = on_load_core(consume_rate, port, publish.with_warm_up, each)
    return Figures(publish, consume)


@contextlib.contextmanager
def started(directory: Path) -> Iterator[int]:
    """A separate node with its own name, directories and name service, everything on loopback."""
    server, names = find(), program("epmd")
    assert server is not None
    assert names is not None
    port, names_port, node_port = free_port(), free_port(), free_port()
    user = _unprivileged_user()
    if user is not None:
        shutil.chown(directory, user, user)
    environment = _environment(directory, port, names_port, node_port)
    epmd = [names, "-address", "127.0.0.1", "-port", str(names_port)]
    with (
        # Started here, in the foreground: otherwise the node starts one that outlives it.
        running(epmd, directory, lambda: accepts(names_port), user=user),
        running([server], directory, lambda: accepts(port), environment=environment, user=user),
    ):
        yield port


def _environment(directory: Path, port: int, names_port: int, node_port: int) -> dict[str, str]:
    (directory / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    (directory / "environment").touch()
    (directory / "plugins").write_text("[].\n")
    return {
        "HOME": str(directory),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": "penstock-bench@localhost",
        "RABBITMQ_DIST_PORT": str(node_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": str(directory / "environment"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_PID_FILE": str(directory / "pid"),
    }


def _unprivileged_user() -> str | None:
    """The package's own user, if the benchmark runs as root."""
    if os.geteuid() != 0:
        return None
    return pwd.getpwnam(USER).pw_name


def find() -> Path | None:
    return program(SCRIPT, "rabbitmq-server")


TARGETS = (
    Target(
        "rabbitmq",
        "RabbitMQ, quorum queue",
        lambda plan: measure(plan, each=False),
        find,
        "rabbitmq-server",
        note="publisher confirms; prefetch 256, one acknowledgement for all messages of a read",
    ),
    Target(
        "rabbitmq-each",
        "RabbitMQ, acknowledging each",
        lambda plan: measure(plan, each=True),
        find,
        "rabbitmq-server",
        note="the same with an acknowledgement for each message",
    ),
)
