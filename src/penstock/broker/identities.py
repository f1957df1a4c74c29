"""Who a client is: bearer tokens (RFC 6750) and the access that each grants. Without tokens, everyone may do all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import sha256

from penstock.broker.jwt_identities import JwtIdentities, JwtRefusedError
from penstock.limits import NEVER_NS, SECOND_NS
from penstock.model.access import ADMIN, EVERYTHING, NOBODY, Access
from penstock.model.tokens import Token, certificate_key
from penstock.model.values import Nanos

Ended = Callable[[Collection[Access]], None]


class Identities:
    """Keeps digests instead of secrets. One lookup finds the identity, however many there are.

    Each secret has an `Access` of its own. If a token is changed in any way, its accesses end and new ones begin:
    `on_change` is called with those that have ended, so that connections forget them.
    """

    def __init__(
        self,
        tokens: Iterable[str],
        now: Callable[[], Nanos] = lambda: 0,
        owner: str = "",
        jwts: JwtIdentities | None = None,
    ) -> None:
        """`tokens`: those of the settings, which may do everything. `now`: the clock of the machine. `owner`: a
        secret that may do everything too, and is not asked for as long as there are no tokens."""
        self.on_change: list[Ended] = []
        self.reason = ""  # Why the last token was refused, if there is more to say than that it is unknown.
        self._now = now
        self._jwts = jwts
        self._of_settings = _administrators(tokens)
        self._by_key = dict(self._of_settings)
        self.has_admins = bool(self._by_key)  # Those of the settings, so tokens need not have one.
        # Clients must show a token, because there is one, even if it has expired.
        self.is_guarded = self._is_guarded(())
        if owner:
            self._by_key[digest_of(owner.encode())] = Access("owner", (ADMIN,))
        self._tokens: dict[str, Token] = {}  # Also those that have expired.
        self._used: dict[str, Nanos] = {}

    # ── Who it is ───────────────────────────────────────────────────────────────────────────────────────────

    def _is_guarded(self, tokens: Collection[str]) -> bool:
        return self.has_admins or bool(tokens) or self._jwts is not None

    @property
    def anonymous(self) -> Access:
        """The access of a client that shows no token."""
        return NOBODY if self.is_guarded else EVERYTHING

    def of_header(self, authorization: bytes | None) -> Access:
        """The access of a request with this `Authorization` field; `NOBODY` if it must be refused."""
        if not self.is_guarded:
            return EVERYTHING
        scheme, _, token = (authorization or b"").strip().partition(b" ")
        return self._of_bearer(token.strip()) if scheme.lower() == b"bearer" else NOBODY

    def of_token(self, token: str) -> Access:
        """The access that a token grants, in whatever way the protocol carries it."""
        return self._of_bearer(token.encode()) if self.is_guarded else EVERYTHING

    def of_certificate(self, name: str) -> Access:
        """The access of a client that shows no token, but a certificate with this name. Empty: it shows neither."""
        if not self.is_guarded:
            return EVERYTHING
        return self._of(certificate_key(name)) if name else NOBODY

    def _of_bearer(self, token: bytes) -> Access:
        self.reason = ""
        access = self._of(digest_of(token))
        if access is not NOBODY or self._jwts is None:
            return access
        try:
            return self._jwts.identify(token, self._now())
        except JwtRefusedError as error:
            self.reason = str(error)
            return NOBODY

    def _of(self, key: str) -> Access:
        access = self._by_key.get(key, NOBODY)
        self._used[access.name] = self._now()
        return access

    def used(self, name: str) -> Nanos:
        """When a client last identified itself with this token; 0 if it has not since the broker was started."""
        return self._used.get(name, 0)

    # ── What changes ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_guarded_without_settings(self) -> bool:
        """Whether clients would have to show a token if the settings had none."""
        return bool(self._tokens) or self._jwts is not None

    def use_settings(self, tokens: Iterable[str]) -> None:
        """Have exactly these administrators of the settings. Those that stay keep their connections."""
        was_guarded, before = self.is_guarded, self._of_settings
        found = {key: before.get(key, access) for key, access in _administrators(tokens).items()}
        ended = self._end(before.keys() - found.keys())
        self._by_key |= found
        self._of_settings, self.has_admins = found, bool(found)
        self.is_guarded = self._is_guarded(self._tokens)
        if self.is_guarded != was_guarded:
            ended.append(EVERYTHING)
        self._tell(ended)

    def load(self, tokens: Mapping[str, Token]) -> None:
        """Have exactly these tokens."""
        self.update({name: tokens.get(name) for name in (*self._tokens, *tokens)})

    def update(self, changes: Mapping[str, Token | None]) -> None:
        """Take note of tokens that were set, or revoked (None)."""
        was_guarded = self.is_guarded
        ended: list[Access] = []
        for name, token in changes.items():
            before = self._tokens.get(name)
            if token == before:
                continue
            ended += self._end(before.keys if before else ())
            if token is None:
                del self._tokens[name]
            else:
                self._tokens[name] = token
                self._by_key |= {key: token.access(name) for key in token.keys_at(self._now())}
        self.is_guarded = self._is_guarded(self._tokens)
        if self.is_guarded != was_guarded:
            ended.append(EVERYTHING)
        self._tell(ended)

    def expire(self) -> Nanos:
        """Take note of secrets whose time is over. Returns in how long the next one ends."""
        now = self._now()
        over = [key for token in self._tokens.values() for key in token.keys if key not in token.keys_at(now)]
        self._tell(self._end(over) + (self._jwts.ended(now) if self._jwts else []))
        look_again = now + SECOND_NS if self._jwts else NEVER_NS  # At the file of their keys.
        return min((look_again, *(token.next_end(now) for token in self._tokens.values()))) - now

    def _end(self, keys: Iterable[str]) -> list[Access]:
        return [self._by_key.pop(key) for key in keys if key in self._by_key]

    def _tell(self, ended: Collection[Access]) -> None:
        for callback in self.on_change if ended else ():
            callback(ended)


def _administrators(tokens: Iterable[str]) -> dict[str, Access]:
    return {
        digest_of(token.encode()): Access(f"auth.tokens[{index}]", (ADMIN,), kind="settings")
        for index, token in enumerate(tokens)
    }


def digest_of(secret: bytes) -> str:
    return sha256(secret).hexdigest()
