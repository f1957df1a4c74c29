"""Whether an address belongs to this machine, on any of its interfaces."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

_ANY_PORT = 9


def is_own(address: IPv4Address | IPv6Address) -> bool:
    """Ask the kernel, because addresses come and go: it sends to an address of its own from the same address. Nothing
    is sent here."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), _ANY_PORT))
            return ip_address(probe.getsockname()[0]) == address
    except OSError:
        return False  # There is no route to it, so it is not ours.
