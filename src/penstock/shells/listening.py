"""Why an address cannot be listened on, and which process of this machine listens there: /proc knows."""

from __future__ import annotations

import errno
from pathlib import Path

from penstock.config.config import Address
from penstock.errors import ConfigError, InUseError, PenstockError

_LISTENING = "0A"  # The kernel's number for this TCP state.
_OPTIONS = "--http HOST:PORT, --lines HOST:PORT"


def cannot_listen(address: Address, error: OSError, options: str = _OPTIONS) -> PenstockError:
    """`options`: those that choose another address."""
    if error.errno != errno.EADDRINUSE:
        return ConfigError(f"cannot listen on {address}: {error.strerror or error}")
    choose = f"choose another address: {options}"
    if (process := listening_process(address.port)) is None:
        return InUseError(
            f"cannot listen on {address}: nobody listens there, but a connection or another process still has the"
            f" port. Try again in a minute, or {choose}"
        )
    return InUseError(f"cannot listen on {address}: {process} listens there. Stop it, or {choose}")


def listening_process(port: int) -> str | None:
    """The process that listens on this TCP port, for an error message; None if nobody does. Only root sees processes
    of other users."""
    sockets = _listening_sockets(port)
    if sockets is not None and not sockets:
        return None
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(descriptor.readlink()) in (sockets or ()) for descriptor in (process / "fd").iterdir()):
                return f"process {process.name} ({(process / 'comm').read_text().strip()})"
        except OSError:
            continue  # It has ended, or belongs to another user.
    return "another process"


def _listening_sockets(port: int) -> set[str] | None:
    """Their names in the links of /proc; None where there is no such directory."""
    found: set[str] = set()
    if not Path("/proc/net/tcp").exists():
        return None
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
