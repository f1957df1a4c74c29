"""Finds the process that listens on a port of this machine, in /proc."""

from __future__ import annotations

from pathlib import Path

_LISTENING = "0A"  # The kernel's number for this TCP state.


def listening_process(port: int) -> str:
    """The process that listens on this TCP port, for an error message. Only root sees processes of other users."""
    sockets = _listening_sockets(port)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(descriptor.readlink()) in sockets for descriptor in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:
            continue  # It has ended, or belongs to another user.
    return "another process"


def _listening_sockets(port: int) -> set[str]:
    """Their names in the links of /proc."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                found.add(f"socket:[{fields[9]}]")
    return found
