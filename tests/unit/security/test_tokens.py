"""Valid tokens are accepted; all others are not."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.security.errors import NotIdentified, SecurityError
from replicator.security.key_sets import read_key_set
from replicator.security.tokens import (
    SingleKey,
    Tokens,
    TokenSettings,
    create_token,
    new_key_pair,
    new_secret,
    read_private_key,
    read_public_key,
    read_secret,
    show_token,
)

NOW = 1_000_000.0


def tokens(key: Any, **settings: Any) -> Tokens:
    return Tokens(SingleKey(key), TokenSettings(**settings), clock=lambda: NOW)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("keys")
    (directory / "secret").write_bytes(new_secret())
    for kind in ("RS256", "ES256"):
        private, public = new_key_pair(kind)
        (directory / f"{kind}.private").write_bytes(private)
        (directory / f"{kind}.public").write_bytes(public)
    return directory


@pytest.mark.parametrize("kind", ["HS256", "RS256", "ES256"])
def test_a_token_of_each_kind_of_key_says_who_and_until_when(keys: Path, kind: str) -> None:
    if kind == "HS256":
        signs = checks = read_secret(keys / "secret")
    else:
        signs, checks = read_private_key(keys / f"{kind}.private"), read_public_key(keys / f"{kind}.public")
    identity = tokens(checks).identify(create_token(signs, "app", expires_at=NOW + 5))
    assert (identity.role, identity.expires_at) == ("app", NOW + 5)
    assert jwt.get_unverified_header(create_token(signs, "app"))["alg"] == kind
    assert tokens(checks).identify(create_token(signs, "app")).expires_at is None


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"sub": "app", "exp": NOW - 1}, "expired"),
        ({"sub": "app", "exp": NOW}, "expired"),
        ({"sub": "app", "nbf": NOW + 1}, "does not count yet"),
        ({"sub": "app", "exp": "soon"}, "no time"),
        ({"sub": "app", "exp": True}, "no time"),
        ({"sub": ""}, "who it is for"),
        ({"sub": 7}, "who it is for"),
        ({"role": "app"}, "who it is for"),
        ({"sub": "x" * 1_001}, "who it is for"),
    ],
)
def test_claims_that_do_not_count(keys: Path, claims: dict[str, Any], why: str) -> None:
    key = read_secret(keys / "secret")
    token = jwt.encode(claims, key.material, algorithm="HS256")
    with pytest.raises(NotIdentified, match=why):
        tokens(key).identify(token)


@pytest.mark.parametrize(("aud", "counts"), [("us", True), (["eu", "us"], True), ("eu", False), (None, False)])
def test_an_audience_that_is_configured_must_be_named(keys: Path, aud: Any, counts: bool) -> None:
    key = read_secret(keys / "secret")
    token = create_token(key, "app", claims={} if aud is None else {"aud": aud})
    checked = tokens(key, audience="us")
    if counts:
        assert checked.identify(token).role == "app"
    else:
        with pytest.raises(NotIdentified, match="audience"):
            checked.identify(token)
    assert tokens(key).identify(token).role == "app", "none is configured"


def test_another_claim_may_hold_the_role_and_of_a_list_the_first_counts(keys: Path) -> None:
    key = read_secret(keys / "secret")
    token = create_token(key, "x", claims={"roles": ["app", "admin"]})
    assert tokens(key, role_claim="roles").identify(token).role == "app"


def test_a_public_key_is_never_taken_for_a_secret_and_none_is_no_algorithm(keys: Path) -> None:
    public = (keys / "RS256.public").read_bytes()
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
        for part in ({"alg": "none", "typ": "JWT"}, {"sub": "admin"})
    )
    signed = f"{head.replace(head, _part({'alg': 'HS256', 'typ': 'JWT'}))}.{body}"
    forged = f"{signed}.{_text(hmac.digest(public, signed.encode(), hashlib.sha256))}"
    for token in (f"{head}.{body}.", forged):
        for key in (read_public_key(keys / "RS256.public"), read_secret(keys / "secret")):
            with pytest.raises(NotIdentified):
                tokens(key).identify(token)


def _part(content: dict[str, Any]) -> str:
    return _text(json.dumps(content).encode())


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@given(
    st.one_of(st.text(max_size=300), st.binary(max_size=300).map(_text), st.lists(st.text(max_size=40)).map(".".join))
)
def test_whatever_is_shown_is_a_token_or_a_refusal_that_does_not_repeat_it(shown: str) -> None:
    key = read_secret(f"data:;base64,{base64.b64encode(b'k' * 32).decode()}")
    with pytest.raises(NotIdentified) as refused:
        tokens(key).identify(shown)
    assert len(shown) < 10 or shown not in str(refused.value)


@pytest.mark.parametrize(
    ("read", "content", "why"),
    [
        (read_secret, b"short", "at least 32 bytes"),
        (read_secret, b"x" * 100_000, "larger"),
        (read_secret, new_key_pair("RS256")[1], "no secret; give the public key as public_key"),
        (read_public_key, b"no key", "not a public key"),
        (read_public_key, b"-----BEGIN PUBLIC KEY-----\n", "not a public key"),
        (read_private_key, b"no key", "not a private key"),
    ],
)
def test_files_that_are_no_keys_are_refused_by_their_name(
    tmp_path: Path, read: Callable[[Path], Any], content: bytes, why: str
) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(SecurityError, match=why) as refused:
        read(tmp_path / "key")
    assert str(tmp_path / "key") in str(refused.value)
    with pytest.raises(SecurityError, match="cannot be read"):
        read(tmp_path / "absent")


def test_keys_in_der_as_other_tools_write_them_are_read(keys: Path, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

    key = load_pem_public_key((keys / "ES256.public").read_bytes())
    (tmp_path / "public.der").write_bytes(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))
    token = create_token(read_private_key(keys / "ES256.private"), "app")
    assert tokens(read_public_key(tmp_path / "public.der")).identify(token).role == "app"


def test_what_a_token_says_is_shown_without_a_key() -> None:
    header, claims = show_token(jwt.encode({"sub": "app"}, "k" * 32, algorithm="HS256"))
    assert (header["alg"], claims) == ("HS256", {"sub": "app"})
    with pytest.raises(SecurityError):
        show_token("nothing of the kind")


def test_a_key_set_gives_its_public_keys_by_their_ids_and_no_secrets(keys: Path) -> None:
    jwks = []
    for kind, algorithm in (("RS256", jwt.algorithms.RSAAlgorithm), ("ES256", jwt.algorithms.ECAlgorithm)):
        public = read_public_key(keys / f"{kind}.public").material
        jwks.append({**algorithm.to_jwk(public, as_dict=True), "kid": kind})
    jwks.append({"kty": "oct", "k": _text(b"s" * 32), "kid": "a secret"})
    found = read_key_set(json.dumps({"keys": jwks}).encode(), "https://idp")
    assert sorted(found) == ["ES256", "RS256"]
    token = create_token(read_private_key(keys / "RS256.private"), "app")
    assert Tokens(SingleKey(found["RS256"])).identify(token).role == "app"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"keys": 3}', b'{"keys": []}', b'{"keys": [{"kty": "x"}]}', b"[" * 9_000]
)
def test_what_is_no_key_set_is_refused(body: bytes) -> None:
    with pytest.raises(SecurityError, match="https://idp"):
        read_key_set(body, "https://idp")
