"""Facts about the machine that the figures were measured on."""

import contextlib
import datetime
import os
import platform
import time
from argparse import ArgumentTypeError
from pathlib import Path

from bench.cores import LOAD_CORE, SERVER_CORE

BUSY_SAMPLE_SECONDS = 1.0
MEMORY_FILESYSTEMS = ("tmpfs", "ramfs")


def facts(scratch: Path) -> dict[str, object]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cpus": os.cpu_count(),
        "cpu": _cpu_model(),
        "server_core": SERVER_CORE,
        "load_core": LOAD_CORE,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "filesystem": filesystem(scratch),
        "fdatasync_4k_ms": round(fdatasync_milliseconds(scratch), 3),
        "python": platform.python_version(),
    }


def processes(pid: int) -> list[int]:
    """A process and its descendants, parents first. In /proc, each thread lists its own children."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            with contextlib.suppress(OSError):  # The thread has ended meanwhile.
                found += map(int, path.read_text().split())
    return found


def scratch(text: str) -> Path:
    """A directory that was named, of the disk to measure. One that is missing is not made: it might be the name of a
    disk with a mistake in it, and another disk would be measured."""
    path = Path(text)
    if not path.is_dir():
        raise ArgumentTypeError(f"{text} is no directory. Name one on the disk to measure, or make it first")
    if not os.access(path, os.W_OK | os.X_OK):
        raise ArgumentTypeError(f"{text} cannot be written to. Name a directory of your own on the disk to measure")
    return path


def filesystem(path: Path) -> str:
    """The type of the file system that contains the path: that of the longest matching mount point."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, mount_kind, *_ = line.split()
        if path.resolve().is_relative_to(mount_point) and len(mount_point) >= len(best):
            best, kind = mount_point, mount_kind
    return kind


def fdatasync_milliseconds(directory: Path, rounds: int = 200) -> float:
    """The median time to sync 4 KiB in space that is already allocated."""
    path = directory / "penstock-bench-fdatasync"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, rounds * 4096)
        os.fsync(descriptor)
        times = sorted(_timed_sync(descriptor, number * 4096) for number in range(rounds))
        return times[rounds // 2] * 1e3
    finally:
        os.close(descriptor)
        path.unlink()


def _timed_sync(descriptor: int, position: int) -> float:
    started = time.perf_counter()
    os.pwrite(descriptor, b"x" * 4096, position)
    os.fdatasync(descriptor)
    return time.perf_counter() - started


def busy_share() -> float:
    """The share of the machine that other processes use at the moment, which makes figures worse."""
    busy_before, all_before = _ticks()
    time.sleep(BUSY_SAMPLE_SECONDS)
    busy, everything = _ticks()
    return (busy - busy_before) / max(1, everything - all_before)


def _ticks() -> tuple[int, int]:
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far."""
    # The name of the process is in brackets and may contain anything, so count fields after it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def directory_bytes(directory: Path) -> int:
    """Space used on disk. For preallocated files this is not their length."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_blocks * 512
        except FileNotFoundError:
            continue  # Deleted meanwhile.
    return total
