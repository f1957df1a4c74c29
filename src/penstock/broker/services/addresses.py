"""Which addresses are on the public internet. All others are this machine, a private network, or unused.

The list is our own: what Python calls global changes with its version, and holds addresses at which cloud providers
answer for the machine itself.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

_NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # This network.
            "10.0.0.0/8",  # Private.
            "100.64.0.0/10",  # Shared with a provider's NAT; also metadata of some clouds.
            "127.0.0.0/8",  # Loopback.
            "168.63.129.16/32",  # Azure's host of the virtual machine.
            "169.254.0.0/16",  # Link-local; metadata of most clouds.
            "172.16.0.0/12",  # Private.
            "192.0.0.0/24",  # Protocol assignments; 192.0.0.192 is metadata of Oracle's cloud.
            "192.0.2.0/24",  # Documentation.
            "192.88.99.0/24",  # Relays of 6to4, no longer in use.
            "192.168.0.0/16",  # Private.
            "198.18.0.0/15",  # Benchmarks.
            "198.51.100.0/24",  # Documentation.
            "203.0.113.0/24",  # Documentation.
            "224.0.0.0/4",  # Multicast.
            "240.0.0.0/4",  # Reserved, and broadcast.
        ),
    )
)
_PUBLIC_IPV6 = IPv6Network("2000::/3")  # All that is given out so far.
_NOT_PUBLIC_IPV6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # Protocol assignments, Teredo among them.
            "2001:db8::/32",  # Documentation.
            "3fff::/20",  # Documentation.
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)  # The third quarter of an address that has an IPv4 address in its fourth.


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet, in whatever notation: not this machine, not a private network."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC)
    if inner := _inner(address):
        return is_public(inner)
    if (int(address) >> 32) & 0xFFFFFFFF in _ISATAP and not is_public(_last_quarter(address)):
        return False
    return address in _PUBLIC_IPV6 and not any(address in network for network in _NOT_PUBLIC_IPV6)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    if address in _NAT64:
        return _last_quarter(address)
    return address.ipv4_mapped or address.sixtofour


def _last_quarter(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFFFFFF)
