"""All quotas of a broker: whose accounts are counted, and what is counted and logged when one is exceeded."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from ipaddress import IPv6Address, IPv6Network, ip_address

import msgspec
from msgspec.structs import replace

from penstock.broker.figures.measures import Samples, one
from penstock.broker.quotas.account import Account, Accounts, MakeAccount, Scope
from penstock.broker.quotas.logins import Logins
from penstock.config.quotas import QuotaConfig, QuotaLimits
from penstock.errors import ProtocolError, Reason
from penstock.limits import ADDRESS_PREFIX_BITS, OFFENDERS_LOG_SECONDS, OFFENDERS_LOGGED_MAX, OFFENDERS_MAX
from penstock.model.access import EVERYTHING, NOBODY, Access
from penstock.model.answers import Refused

logger = logging.getLogger(__name__)

NAMES = QuotaLimits.__struct_fields__
_NONE = QuotaLimits()


class Quotas:
    """`exists`: whether there is a queue of this name."""

    def __init__(
        self, config: QuotaConfig, exists: Callable[[str], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.exists = exists
        self.clock = clock
        self.logins = Logins(clock)
        self.refused = dict.fromkeys(NAMES, 0)
        self._config = config
        self._addresses = Accounts("address", clock)
        self._identities = Accounts("identity", clock)
        self._offenders: Counter[str] = Counter()  # Since the last line in the log.
        self._logged_at = -OFFENDERS_LOG_SECONDS

    def use_settings(self, config: QuotaConfig) -> None:
        """What is counted goes on; an account has new limits when its client asks for something next."""
        self._config = config

    def state(self) -> Iterator[tuple[str, Samples]]:
        yield "penstock_quota_refused_total", [((name,), count) for name, count in self.refused.items()]
        yield "penstock_logins_failed_total", one(self.logins.failed_total)
        yield "penstock_quota_accounts", one(len(self._addresses) + len(self._identities))

    # ── Accounts ────────────────────────────────────────────────────────────────────────────────────────────

    def of_address(self, address: str) -> Account | None:
        """`address`: as from `network_of`. None: addresses have no quotas."""
        limits = self._config.address
        return None if limits == _NONE else self._addresses.of(address, limits)

    def of_identity(self, name: str, own: Mapping[str, float]) -> Account | None:
        """`own`: the limits that come with its token; names that are not those of quotas are ignored. None: it has no
        quotas."""
        known = {quota: type(getattr(_NONE, quota))(own[quota]) for quota in NAMES if quota in own}
        limits = replace(self._config.identity, **known) if known else self._config.identity
        return None if limits == _NONE else self._identities.of(name, limits)

    def shared(self, make: MakeAccount) -> dict[Scope, Accounts]:
        """All accounts, by their scope. From now on, they are made like this."""
        self._addresses.make = self._identities.make = make
        return {"address": self._addresses, "identity": self._identities}

    # ── Over quota ──────────────────────────────────────────────────────────────────────────────────────────

    def refuse(self, account: Account, quota: str, seconds: float = 1.0) -> Refused:
        """Count it, and say which quota it is and where it is set. `seconds`: until it may be granted."""
        self.refused[quota] += 1
        self._note(account)
        limit = getattr(account.limits, quota)
        detail = f"quota.{account.scope}.{quota} = {limit:g}"
        if limit != getattr(getattr(self._config, account.scope), quota):
            detail = f"{quota} = {limit:g} in the limits of token {account.name}"
        return Refused(Reason.QUOTA_EXCEEDED, detail, seconds)

    def _note(self, account: Account) -> None:
        """Log who exceeds quotas most, once in a while."""
        name = f"{account.scope} {account.name}"
        if name in self._offenders or len(self._offenders) < OFFENDERS_MAX:
            self._offenders[name] += 1
        now = self.clock()
        if now - self._logged_at >= OFFENDERS_LOG_SECONDS:
            self._logged_at = now
            most = dict(self._offenders.most_common(OFFENDERS_LOGGED_MAX))
            totals = {quota: count for quota, count in self.refused.items() if count}
            logger.warning("quota_exceeded", extra={"refused_total": totals, "most": most})
            self._offenders.clear()


def checked_limits(given: dict[str, float]) -> dict[str, float]:
    """The limits for a token. Raises `ProtocolError` for names that are not those of quotas, and for other values."""
    unknown = [name for name in given if name not in NAMES]
    if unknown:
        raise ProtocolError(f"unknown limit {unknown[0]!r}; the limits are {', '.join(NAMES)}")
    whole = {name: int(value) if value.is_integer() else value for name, value in given.items()}
    try:
        msgspec.convert(whole, QuotaLimits)
    except msgspec.ValidationError as error:
        raise ProtocolError(f"limits: {error}") from None
    return given


def client_of(access: Access | None, address: str) -> Hashable:
    """Who counts as one client, however many connections it has: an identity, or else an address."""
    is_known = access and access is not EVERYTHING and access is not NOBODY
    return access.identity if access and is_known else (network_of(address) if address else "",)


def network_of(host: str) -> str:
    """The address that is counted: all of IPv4, and of IPv6 the network that one customer usually has."""
    if ":" not in host:
        return host
    address = ip_address(host.partition("%")[0])
    assert isinstance(address, IPv6Address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(IPv6Network((address, ADDRESS_PREFIX_BITS), strict=False))
