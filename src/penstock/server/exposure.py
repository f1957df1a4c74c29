"""Whether a broker may listen where it is told to: other machines must not reach it without tokens and TLS."""

from __future__ import annotations

import logging
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address

from penstock.config.config import Address, Config
from penstock.errors import ConfigError

logger = logging.getLogger(__name__)


def check_exposure(config: Config, *, has_tokens: bool, insecure: bool) -> None:
    """Refuse to listen where other machines can reach the broker without a token, or read what is sent. Log it if
    this machine can do everything without one."""
    for key, address in (("http.address", config.http.address), ("lines.address", config.lines.address)):
        if not (insecure or (has_tokens and config.tls.certificate) or _is_loopback(key, address)):
            raise ConfigError(
                f"{key} = {address} can be reached from other machines, and {_danger(config, has_tokens)}"
            )
    if not has_tokens:
        everyone = "everyone who can connect" if insecure else "every program on this machine"
        logger.info("no_tokens", extra={"access": f"{everyone} may do everything; see docs/access.md"})


def check_links(config: Config, address: Address, *, insecure: bool) -> None:
    """Refuse links to other brokers that somebody else could read on their way."""
    if not (insecure or config.tls.certificate or _is_loopback("cluster.advertise", address)):
        raise ConfigError(
            f"brokers would send messages to {address} without encryption: others could read them on their way. Set"
            " tls.certificate, or start with --insecure"
        )


def _danger(config: Config, has_tokens: bool) -> str:
    if has_tokens:
        missing, danger = "tls.certificate is empty", "others could read messages and tokens on their way"
        remedy = "Set tls.certificate"
    else:
        missing, danger = "the broker has no tokens", "anyone could read and delete messages"
        create = f"penstock tokens create NAME --scope admin --data {config.data}"
        remedy = f"Create a token ({create}), or set auth.tokens"
    return f"{missing}: {danger}. {remedy}, listen on 127.0.0.1, or start with --insecure"


def _is_loopback(key: str, address: Address) -> bool:
    """Whether only this machine can reach it. A name must stand for loopback addresses only."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"{key} = {address}: the host cannot be resolved: {error}") from None
    return all(_is_loopback_ip(str(entry[4][0])) for entry in found)


def _is_loopback_ip(text: str) -> bool:
    ip: IPv4Address | IPv6Address = ip_address(text)
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped:
        ip = ip.ipv4_mapped
    return ip.is_loopback
