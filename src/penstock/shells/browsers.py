"""Which web pages may use the broker, and by which host names.

A browser sends requests to this machine for any page that asks it to. It says which page asked (`Origin`,
`Sec-Fetch-Site`); a program that is not a browser sends neither. A page whose name was made to point to this machine
(DNS rebinding) has the same origin as the broker, but its name is in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from ipaddress import IPv4Address, IPv6Address, ip_address

from penstock.config.config import Config
from penstock.dialects.wire.http import Headers
from penstock.errors import Fault
from penstock.remembering import remembered

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d*)?")
_OWN_SITES = frozenset((b"same-origin", b"none"))  # `none`: the user typed the address.
_SHOWN_MAX = 100


class BrowserPolicy:
    """Depends on the header fields alone, so it is asked once for fields that repeat."""

    def __init__(
        self,
        hosts: Collection[str],
        origins: Collection[str],
        *,
        is_guarded: Callable[[], bool],
        any_address: bool,
    ) -> None:
        """`is_guarded`: clients must show a token, which a page that has no business here does not have."""
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origin.lower() for origin in origins)
        self._any_host = "*" in hosts
        self._is_guarded = is_guarded
        self._any_address = any_address

    def refusal(self, headers: Headers) -> tuple[Fault, str] | None:
        """Why a request with these fields is refused; None if it is not."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host is not None and not (self._any_host or self._is_known(host) or self._is_guarded()):
            return Fault.FORBIDDEN_HOST, _shown(host)
        if "*" in self._origins or (origin is not None and _text(origin) in self._origins):
            return None
        if origin is not None and not _is_own(origin, host):
            return Fault.FORBIDDEN_ORIGIN, _shown(origin)
        site = headers.get(b"sec-fetch-site")
        if site is not None and site not in _OWN_SITES:
            return Fault.FORBIDDEN_ORIGIN, f"Sec-Fetch-Site is {_shown(site)}"
        return None

    def _is_known(self, host: bytes) -> bool:
        name = _name_of(host)
        if name in self._hosts or name == "localhost" or name.endswith(".localhost"):
            return True
        address = _address(name)
        return address is not None and (self._any_address or _is_loopback(address))


def policy_of(config: Config, is_guarded: Callable[[], bool]) -> BrowserPolicy:
    """A host name in http.address is a name of the broker. A broker that listens on all addresses accepts each of
    them as its name: no page can make its own name look like an address."""
    listens_on = config.http.address.host
    address = _address(listens_on)
    return BrowserPolicy(
        (*config.http.hosts, listens_on),
        (*config.http.origins, *config.ws.origins),
        is_guarded=is_guarded,
        any_address=address is not None and address.is_unspecified,
    )


def _is_own(origin: bytes, host: bytes | None) -> bool:
    """Whether this broker served the page itself, over HTTP or through a TLS proxy."""
    return host is not None and _text(origin) in (f"http://{_text(host)}", f"https://{_text(host)}")


@remembered(1024)
def _name_of(host: bytes) -> str:
    """The name or address in a Host field, without the port; empty if the field is malformed."""
    match = _HOST.fullmatch(_text(host))
    return (match[1] or match[2]).removesuffix(".") if match else ""


def _address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name)
    except ValueError:
        return None


def _is_loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _text(field: bytes) -> str:
    return field.decode("latin-1").strip().lower()


def _shown(field: bytes) -> str:
    return _text(field)[:_SHOWN_MAX]
