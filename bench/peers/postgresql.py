"""PostgreSQL as a queue: INSERT; then DELETE of the oldest row that nobody else holds (SKIP LOCKED).

Eight connections, one statement at a time on each, synchronous commit. The client is pgbench.
"""

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.cores import on_load_core
from bench.driver import HOST, Count, StoppedError
from bench.load import BODY
from bench.servers import free_port, running, scratch_directory
from bench.targets import Figures, Plan, Target, check_supply, program

CONNECTIONS = 8
DATABASE = "postgres"
USER = "postgres"
SETUP_SECONDS_MAX = 60
INSERT = f"INSERT INTO messages (body) VALUES ('{BODY.decode()}');\n"
TAKE = """
DELETE FROM messages
WHERE id = (SELECT id FROM messages ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1)
RETURNING body;
"""
OPTIONS = {"fsync": "on", "synchronous_commit": "on", "listen_addresses": HOST, "max_wal_size": "4GB"}


def measure(plan: Plan) -> Figures:
    with scratch_directory(plan.scratch) as directory, started(directory) as port:
        table = "CREATE TABLE messages (id bigserial PRIMARY KEY, body bytea NOT NULL)"
        subprocess.run(
            [str(tool("psql")), *connection(port), "--quiet", "--command", table],
            check=True,
            timeout=SETUP_SECONDS_MAX,
        )
        warm, seconds = plan.warm_seconds, plan.seconds
        publish = on_load_core(statement_rate, port, directory, INSERT, warm, seconds)
        more = on_load_core(statement_rate, port, directory, INSERT, warm, seconds)
        consume = on_load_core(statement_rate, port, directory, TAKE, warm, seconds)
    check_supply(publish.with_warm_up + more.with_warm_up, consume)
    return Figures(publish, consume)


def statement_rate(port: int, directory: Path, statement: str, warm_seconds: float, seconds: float) -> Count:
    script = directory / "statement.sql"
    script.write_text(statement)
    warm_up = run_pgbench(port, script, warm_seconds)
    timed = run_pgbench(port, script, seconds)
    # The processor time of pgbench is that of our child processes.
    used = os.times()
    share = (used.children_user + used.children_system) / (warm_seconds + seconds)
    return Count(timed, max(1, round(seconds)), warm_up + timed, share, 0, "")


def run_pgbench(port: int, script: Path, seconds: float) -> int:
    """Run pgbench and return how many statements it finished. It accepts only whole seconds."""
    options = ["--no-vacuum", "--protocol=prepared", f"--client={CONNECTIONS}", "--jobs=1"]
    options += [f"--time={max(1, round(seconds))}", f"--file={script}"]
    finished = subprocess.run(
        [str(tool("pgbench")), *connection(port), *options, DATABASE],
        capture_output=True,
        text=True,
        timeout=seconds + SETUP_SECONDS_MAX,
    )
    found = re.search(r"transactions actually processed: (\d+)", finished.stdout)
    failed = re.search(r"failed transactions: ([1-9])", finished.stdout)
    if finished.returncode or found is None or failed:
        raise StoppedError(f"pgbench: {finished.stderr or finished.stdout}")
    return int(found.group(1))


def connection(port: int) -> list[str]:
    return [f"--host={HOST}", f"--port={port}", f"--username={USER}"]


@contextlib.contextmanager
def started(directory: Path) -> Iterator[int]:
    port, user = free_port(), _unprivileged_user()
    if user is not None:
        shutil.chown(directory, user, user)
    data = directory / "data"
    # The server listens on loopback only, for the time of the run, and holds only random data.
    make = [str(tool("initdb")), "--auth=trust", f"--username={USER}", "--no-sync", f"--pgdata={data}"]
    subprocess.run(
        make, check=True, capture_output=True, timeout=SETUP_SECONDS_MAX, user=user, group=user, cwd=directory
    )
    options = [f"--{name}={value}" for name, value in OPTIONS.items()]
    options.append(f"--unix_socket_directories={directory}")
    command = [tool("postgres"), "-D", data, "-p", str(port), *options]
    # SIGINT is its fast shutdown, which does not wait for clients to disconnect.
    with running(command, directory, lambda: is_ready(port), user=user, end_signal=signal.SIGINT):
        yield port


def is_ready(port: int) -> bool:
    """Whether it answers: it accepts connections well before that."""
    return subprocess.run([str(tool("pg_isready")), "--quiet", *connection(port)]).returncode == 0


def _unprivileged_user() -> str | None:
    """The package's own user, if the benchmark runs as root."""
    return pwd.getpwnam(USER).pw_name if os.geteuid() == 0 else None


def tool(name: str) -> Path:
    """Debian keeps the server's programs of each version in a directory of their own."""
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: path.parts[-3])
    found = newest[-1] if newest else program(name)
    assert found is not None
    return found


def find() -> Path | None:
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    return newest[-1] if newest else program("pgbench")


TARGETS = (
    Target(
        "postgresql",
        "PostgreSQL, SKIP LOCKED, 8 in flight",
        measure,
        find,
        "postgresql",
        note="8 connections, one statement in flight on each",
    ),
)
