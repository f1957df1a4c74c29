"""A load that costs little: `pour.c`, compiled here, on connections that are opened here.

It is for brokers that may use all cores, which leave none for the load. So the load must take little of them, and
what it takes is part of the result.
"""

import contextlib
import socket
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.driver import StoppedError

SOURCE = Path(__file__).with_suffix(".c")
ESTABLISHED = "01"


class Poured(NamedTuple):
    """What a run has done. Messages, not requests."""

    per_second: float
    with_warm_up: int
    load_cpu_seconds: float


class Stream(NamedTuple):
    """A connection, and the request that is sent on it again and again."""

    link: socket.socket
    request: bytes


def compiled(directory: Path) -> Path:
    program = directory / "pour"
    subprocess.run(["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE], check=True)
    return program


def pour(
    program: Path, framing: str, streams: Sequence[Stream], *, depth: int, messages: int, warm: float, seconds: float
) -> Poured:
    """Keep so many requests in flight on each connection. Each request has so many messages."""
    paths: dict[bytes, Path] = {}
    for stream in streams:
        if stream.request not in paths:
            paths[stream.request] = program.with_name(f"request-{len(paths)}")
            paths[stream.request].write_bytes(stream.request)
        stream.link.setblocking(False)
    lines = [f"{stream.link.fileno()} {paths[stream.request]}\n" for stream in streams]
    result = subprocess.run(
        [program, framing, str(depth), str(warm), str(seconds)],
        input="".join(lines),
        capture_output=True,
        text=True,
        pass_fds=[stream.link.fileno() for stream in streams],
    )
    if result.returncode:
        raise StoppedError(result.stderr.strip())
    figures, complaint = result.stdout.split("\n", 1)
    answers, took, all_answers, cpu_seconds, wrong = figures.split()
    assert wrong == "0", f"{wrong} wrong answers, such as {complaint!r}"
    return Poured(int(answers) * messages / float(took), int(all_answers) * messages, float(cpu_seconds))


# Which process serves a connection


def servers_of(links: Sequence[socket.socket], port: int, processes: Sequence[int]) -> list[int]:
    """For each connection to the port the process that has accepted it."""
    process_of = {inode: process for process in processes for inode in _sockets(process)}
    inodes = _inodes(port)
    return [process_of[inodes[link.getsockname()[1]]] for link in links]


def _sockets(process: int) -> Iterator[str]:
    for descriptor in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(OSError):  # It was closed meanwhile.
            target = str(descriptor.readlink())
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")


def _inodes(port: int) -> dict[int, str]:
    """The sockets of the server, by the ports of their clients."""
    found = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *rest = line.split()
        if state == ESTABLISHED and int(local.partition(":")[2], 16) == port:
            found[int(remote.partition(":")[2], 16)] = rest[5]
    return found


def grouped(links: Sequence[socket.socket], servers: Sequence[int]) -> dict[int, list[socket.socket]]:
    """The connections of each process."""
    found = defaultdict(list)
    for link, server in zip(links, servers, strict=True):
        found[server].append(link)
    return found
