"""Whether an address is this machine's own, on whichever of its interfaces."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

_ANY_PORT = 9


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Asks the kernel now, because addresses come and go: to an address of its own it would send from that very
    address. Nothing is sent."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _ANY_PORT))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False  # There is no way to it, so it is not here either.
