"""Whether an address belongs to this machine, on any of its interfaces, and at which one others find the broker."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from penstock.config.config import Address, Config, parse_address

_ANY_PORT = 9
_ALL_INTERFACES = frozenset(("0.0.0.0", "::"))


def found_at(config: Config) -> Address:
    """Where others find the broker. One that listens on all interfaces has the host that it advertises, or the name
    of its machine."""
    listens, advertised = config.http.address, config.cluster.advertise
    if listens.host not in _ALL_INTERFACES:
        return listens
    return listens._replace(host=parse_address(advertised).host if advertised else socket.gethostname())


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
