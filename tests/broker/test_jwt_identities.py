"""Which JWTs are accepted, as whom, and how the others are refused before they cost anything."""

from __future__ import annotations

import hashlib
import hmac
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from penstock.broker.jwt_identities import JwtIdentities, JwtRefusedError
from penstock.errors import ConfigError
from penstock.limits import JWT_BYTES_MAX, JWT_LEEWAY_SECONDS, JWT_SCOPES_MAX, JWTS_KNOWN_MAX, SECOND_NS
from penstock.model.access import Access
from tests.support.jwt_provider import AUDIENCE, ISSUER, Provider, unpadded


def identities(provider: Provider, scopes_claim: str = "penstock") -> JwtIdentities:
    return JwtIdentities(provider.path, ISSUER, AUDIENCE, scopes_claim)


def scopes(access: Access) -> list[str]:
    return [scope.text for scope in access.scopes]


def refusal(known: JwtIdentities, token: bytes, now: int | None = None) -> str:
    with pytest.raises(JwtRefusedError) as refused:
        known.identify(token, time.time_ns() if now is None else now)
    return str(refused.value)


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


# ── Tokens that are accepted ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
def test_a_signed_token_has_a_name_scopes_and_an_end(tmp_path: Path, algorithm: str) -> None:
    provider = Provider(tmp_path, algorithm)
    end = int(time.time()) + 60
    token = provider.token("ann", penstock=["publish:orders*", "read:jobs"], exp=end)
    known = identities(provider)
    access = known.identify(token, time.time_ns())
    assert (access.name, access.kind, scopes(access)) == ("ann", "jwt", ["publish:orders*", "read:jobs"])
    assert known.ended((end + JWT_LEEWAY_SECONDS) * SECOND_NS - 1) == []
    assert known.ended((end + JWT_LEEWAY_SECONDS) * SECOND_NS) == [access]


def test_scopes_may_be_words_of_another_claim(provider: Provider) -> None:
    token = provider.token(scope="openid publish:orders  read:jobs", penstock=["admin:*"])
    identity = identities(provider, "scope").identify(token, time.time_ns())
    assert scopes(identity) == ["publish:orders", "read:jobs"]


def test_a_token_without_scopes_names_somebody_who_may_do_nothing(provider: Provider) -> None:
    assert identities(provider).identify(provider.token(), time.time_ns()).scopes == ()


def test_one_of_several_audiences_is_enough(provider: Provider) -> None:
    token = provider.token(aud=["others", AUDIENCE])
    assert identities(provider).identify(token, time.time_ns()).name == "ann"


def test_a_token_need_not_say_when_it_begins(provider: Provider) -> None:
    assert identities(provider).identify(provider.token(nbf=None, iat=None), time.time_ns()).name == "ann"


def test_clocks_may_differ_a_little(provider: Provider) -> None:
    now = int(time.time())
    known = identities(provider)
    token = provider.token(nbf=now, exp=now + 10)
    assert known.identify(token, (now - JWT_LEEWAY_SECONDS) * SECOND_NS).name == "ann"
    assert known.identify(token, (now + 9 + JWT_LEEWAY_SECONDS) * SECOND_NS).name == "ann"


# ── Tokens that are refused ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"iss": "https://other.example"}, "the token has another issuer"),
        ({"iss": ISSUER + "/"}, "the token has another issuer"),
        ({"aud": "others"}, "the token is for another audience"),
        ({"aud": [1]}, "the token is for another audience"),
        ({"exp": None}, "the token has no exp"),
        ({"iss": None}, "the token has no iss"),
        ({"aud": None}, "the token has no aud"),
        ({"sub": None}, "the token has no sub"),
        ({"exp": "tomorrow"}, "exp of the token is not a time"),
        ({"exp": True}, "exp of the token is not a time"),
        ({"exp": 1e300}, "exp of the token is not a time"),
        ({"exp": float("nan")}, "exp of the token is not a time"),
        ({"nbf": []}, "nbf of the token is not a time"),
        ({"penstock": {"publish": "orders"}}, "the scopes of the token are not a list of scopes"),
        ({"penstock": ["openid"]}, "the scopes of the token are not a list of scopes"),
        ({"penstock": [1]}, "the scopes of the token are not a list of scopes"),
        ({"penstock": ["read:x"] * (JWT_SCOPES_MAX + 1)}, f"the token has more than {JWT_SCOPES_MAX} scopes"),
    ],
)
def test_a_claim_that_is_wrong_or_missing_is_named(provider: Provider, claims: dict[str, Any], reason: str) -> None:
    assert refusal(identities(provider), provider.token(**claims)) == reason


@pytest.mark.parametrize("subject", ["", "a\nb", "\ud800", "x" * 251])
def test_a_subject_is_a_name(provider: Provider, subject: str) -> None:
    assert refusal(identities(provider), provider.token(subject)).startswith("sub of the token is not a name")


def test_a_token_ends_with_its_last_second_and_the_leeway_even_if_it_was_verified_before(provider: Provider) -> None:
    now = int(time.time())
    known, token = identities(provider), provider.token(exp=now + 10)
    assert known.identify(token, now * SECOND_NS).name == "ann"
    assert refusal(known, token, (now + 10 + JWT_LEEWAY_SECONDS) * SECOND_NS) == "the token has expired"


def test_a_token_is_refused_before_its_time(provider: Provider) -> None:
    now = int(time.time())
    token = provider.token(nbf=now + JWT_LEEWAY_SECONDS + 1)
    assert refusal(identities(provider), token, now * SECOND_NS) == "the token is not valid yet"


def test_another_key_with_the_same_id_signs_nothing(provider: Provider, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = Provider(tmp_path / "other")
    assert refusal(identities(provider), other.token()) == "the signature of the token is wrong"


def test_a_changed_claim_breaks_the_signature(provider: Provider) -> None:
    header, _, signature = provider.token("ann").split(b".")
    claims = unpadded(json.dumps({"sub": "root", "iss": ISSUER, "aud": AUDIENCE, "exp": 1 << 33}).encode())
    assert (
        refusal(identities(provider), b".".join((header, claims, signature))) == "the signature of the token is wrong"
    )


@pytest.mark.parametrize("algorithm", ["none", "None", "HS256", "RS256", "PS256", "ES384", ""])
def test_no_token_chooses_its_algorithm(provider: Provider, algorithm: str) -> None:
    """With HS256, it is signed with the public key as the secret, which everybody has."""
    header = unpadded(json.dumps({"alg": algorithm, "kid": "first", "typ": "JWT"}).encode())
    claims = provider.token().split(b".")[1]
    secret = provider.path.read_bytes()
    signature = unpadded(hmac.new(secret, header + b"." + claims, hashlib.sha256).digest())
    for last in (signature, b""):
        reason = refusal(identities(provider), b".".join((header, claims, last)))
        assert reason == "the token has an algorithm or a header field that is not allowed"


def test_a_header_field_that_must_be_understood_is_refused(provider: Provider) -> None:
    token = provider.token(headers={"crit": ["x"], "x": 1})
    assert refusal(identities(provider), token) == "the token has an algorithm or a header field that is not allowed"


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b".",
        b"..",
        b"a.b",
        b"a.b.c.d",
        b"....",
        b"\xff.\xff.\xff",
        b"pst_0123",
        unpadded(b"[]") + b".e30.",
        unpadded(b"{}") + b".e30.",
        unpadded(b'{"alg":"ES256"}') + b".e30.",
        unpadded(b'{"alg":"ES256","kid":["first"]}') + b".e30.",
        unpadded(b"[" * 4000) + b".e30.",
        unpadded(b'{"alg":"ES256","kid":"first"}') + b".e30.",
        unpadded(b'{"alg":"ES256","kid":"first"}') + b".%%%.%%%",
    ],
)
def test_what_is_no_token_is_refused_in_plain_words(provider: Provider, token: bytes) -> None:
    assert refusal(identities(provider), token).startswith(("the token is not", "the token has no", "the signature"))


def test_a_payload_that_is_no_object_is_refused(provider: Provider) -> None:
    for payload in (b"[]", b"1", b"no JSON", b'{"sub":' + b"[" * 3000):
        assert refusal(identities(provider), provider.sign(payload)) == "the token is not a JWT"


# ── What a flood costs ────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_keys_and_long_tokens_are_refused_before_any_cryptography(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = identities(provider)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("a signature was verified")

    monkeypatch.setattr("jwt.decode", fail)
    assert refusal(known, provider.token(headers={"kid": "second"})) == "the token is signed with an unknown key"
    assert refusal(known, b"x" * (JWT_BYTES_MAX + 1)) == f"the token is longer than {JWT_BYTES_MAX} bytes"


def test_a_token_is_verified_once(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    known, token = identities(provider), provider.token()
    first = known.identify(token, time.time_ns())
    monkeypatch.setattr("jwt.decode", None)
    assert known.identify(token, time.time_ns()) is first


def test_a_bounded_number_of_tokens_is_remembered(provider: Provider) -> None:
    known = identities(provider)
    first = known.identify(provider.token(), time.time_ns())
    (identity,) = known._known.values()
    for number in range(JWTS_KNOWN_MAX):
        known._remember(number.to_bytes(4, "big"), identity)
    assert len(known._known) == JWTS_KNOWN_MAX
    assert known.ended(time.time_ns()) == [first], "nobody would end it otherwise"


def test_no_refusal_shows_the_token(provider: Provider) -> None:
    token = provider.token("very-secret", iss="very-secret", aud="very-secret")
    assert "very-secret" not in refusal(identities(provider), token)
    assert token.decode() not in refusal(identities(provider), token + b"x")


# ── Keys ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_key_that_is_taken_away_ends_its_tokens(provider: Provider, tmp_path: Path) -> None:
    known, token = identities(provider), provider.token()
    assert known.identify(token, time.time_ns()).name == "ann"
    assert known.ended(time.time_ns()) == []
    (tmp_path / "next").mkdir()
    second = Provider(tmp_path / "next", "EdDSA", key_id="second")
    provider.publish(second.public())
    assert [access.name for access in known.ended(time.time_ns())] == ["ann"]
    assert refusal(known, token) == "the token is signed with an unknown key"
    assert known.identify(second.token(), time.time_ns()).name == "ann"


def test_a_file_that_becomes_wrong_changes_nothing(provider: Provider) -> None:
    known, token = identities(provider), provider.token()
    provider.path.write_text("half a fi")
    assert known.ended(time.time_ns()) == []
    provider.path.unlink()
    assert known.ended(time.time_ns()) == []
    assert known.identify(token, time.time_ns()).name == "ann"
    provider.publish(provider.public())
    assert len(known.ended(time.time_ns())) == 1


def test_keys_for_other_purposes_are_passed_over(provider: Provider) -> None:
    public = provider.public()
    others = [
        {**public, "kid": "for encryption", "use": "enc"},
        {**public, "kid": "for another algorithm", "alg": "ES384"},
        {**public, "kid": None},
        {"kty": "EC", "crv": "P-384", "kid": "curve", "x": "AA", "y": "AA"},
        {"kty": "new", "kid": "kind"},
        {},
    ]
    provider.publish(*others, {**public, "use": "sig", "alg": "ES256"})
    assert set(identities(provider).keys.by_id) == {"first"}


def key(**changes: Any) -> dict[str, Any]:
    return {"kty": "EC", "crv": "P-256", "kid": "first", "x": "AA", "y": "AA", **changes}


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([], "no key for RS256, ES256 or EdDSA"),
        ([key(d="very-secret")], "key 1 is secret"),
        ([{"kty": "oct", "k": "very-secret", "kid": "first"}], "key 1 is secret"),
        ([key()], "key 1 is not a valid ES256 key"),
        ([{"kty": "RSA", "kid": "first", "n": "very-secret", "e": "AQAB"}], "key 1 has fewer than 2048 bits"),
        ([{"kty": "RSA", "kid": "first"}], "key 1 has fewer than 2048 bits"),
        ([1], "not a JWK set"),
        ([key()] * 1001, "more than 1000 keys"),
    ],
)
def test_a_file_that_is_wrong_is_refused_at_start_without_showing_it(
    provider: Provider, keys: list[Any], reason: str
) -> None:
    provider.publish(*keys)
    with pytest.raises(ConfigError, match=reason) as refused:
        identities(provider)
    assert "very-secret" not in str(refused.value)
    assert str(provider.path) in str(refused.value)


def test_two_keys_with_one_id_are_refused(provider: Provider) -> None:
    provider.publish(provider.public(), provider.public())
    with pytest.raises(ConfigError, match="key 2 has the kid of an earlier key"):
        identities(provider)


def test_a_missing_file_and_one_that_is_too_large_are_refused(provider: Provider) -> None:
    provider.path.write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ConfigError, match="at most 1048576 bytes"):
        identities(provider)
    provider.path.unlink()
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        identities(provider)


def test_a_missing_library_is_named_with_the_line_that_installs_it(provider: Provider) -> None:
    program = (
        "import sys; sys.modules['jwt'] = None\n"
        "from pathlib import Path\n"
        "from penstock.broker.jwt_identities import JwtIdentities\n"
        f"JwtIdentities(Path({str(provider.path)!r}), '', '', '')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "auth.jwt_keys needs jwt, which is not installed; run: pip install 'penstock[jwt]'" in ended.stderr
