"""Tokens: JSON Web Tokens as Pulsar's clients send them, checked, made and shown. The cryptography is PyJWT's.

Whoever holds a token is who its claim ``sub`` says. It has to be signed by a key that is configured here, in an
algorithm of that kind of key: so a public key is never taken for a secret. It must not be expired, and must be for this
audience if one is configured. Keys come from a file or from a URL (JWKS, :mod:`replicator.security.key_sets`).
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
    load_pem_private_key,
    load_pem_public_key,
)
from jwt.types import Options

from replicator.security.errors import NotIdentified, SecurityError
from replicator.security.identity import ROLE_CHARS_MAX, TOKEN_CHARS_MAX, Identity

SECRET_BYTES_MIN: Final = 32
KEY_FILE_BYTES_MAX: Final = 64 * 1024
RSA_BITS: Final = 2048
SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512")
CURVE_ALGORITHMS: Final = {"secp256r1": ("ES256",), "secp384r1": ("ES384",), "secp521r1": ("ES512",)}
DATA_PREFIX: Final = "data:;base64,"


@dataclass(frozen=True, slots=True)
class Key:
    """Key that may sign tokens, and its algorithms."""

    material: Any
    algorithms: tuple[str, ...]

    def __repr__(self) -> str:
        return f"Key({', '.join(self.algorithms)})"


_SIGNATURE_ALONE: Final[Options] = {
    "verify_aud": False,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_iss": False,
    "verify_jti": False,
    "verify_sub": False,
}


class Keys(Protocol):
    """Source of keys."""

    def key_for(self, key_id: str | None) -> Key | None:
        """Return the key that a token names, or the only one; None if there is none (yet)."""


@dataclass(frozen=True, slots=True)
class SingleKey:
    """The only key, from a file. The key id in a token is ignored."""

    key: Key

    def key_for(self, key_id: str | None) -> Key | None:
        return self.key


@dataclass(frozen=True, slots=True)
class TokenSettings:
    """Claims that count."""

    role_claim: str = "sub"
    audience: str | None = None
    audience_claim: str = "aud"


class Tokens:
    """Checks tokens."""

    def __init__(
        self, keys: Keys, settings: TokenSettings | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._keys = keys
        self._settings = settings or TokenSettings()
        self._clock = clock

    def identify(self, token: str) -> Identity:
        """Return who holds ``token``. White space around it does not count: token files often end with a new line.

        Raises :class:`NotIdentified`; its message holds nothing of the token.
        """
        if len(token) > TOKEN_CHARS_MAX:
            raise NotIdentified("the token is too long")
        token = token.strip()
        try:
            header = jwt.get_unverified_header(token)
            key_id = header.get("kid")
            key = self._keys.key_for(key_id if isinstance(key_id, str) else None)
            if key is None:
                raise NotIdentified(
                    "the token is signed by a key that is not known here: get one from who makes tokens for this "
                    "cluster"
                )
            claims = jwt.decode(
                token,
                key.material,
                algorithms=list(key.algorithms),
                # The signature alone: claims are looked at below, by our clock and under their configured names.
                options=_SIGNATURE_ALONE,
            )
        except jwt.PyJWTError as error:
            raise NotIdentified(
                f"the token is not valid: {_reason(error)}; get one from who makes tokens for this cluster"
            ) from None
        except (ValueError, TypeError, KeyError, RecursionError):
            raise NotIdentified("the token is not valid: it cannot be read; get a new one") from None
        return self._identity(claims)

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        now = self._clock()
        expires_at, not_before = _seconds(claims, "exp"), _seconds(claims, "nbf")
        if expires_at is not None and now >= expires_at:
            raise NotIdentified("the token has expired: get a new one")
        if not_before is not None and now < not_before:
            raise NotIdentified("the token does not count yet: see that the clocks of both hosts are right")
        if self._settings.audience is not None:
            audiences = claims.get(self._settings.audience_claim)
            if self._settings.audience not in (audiences if isinstance(audiences, list) else [audiences]):
                raise NotIdentified("the token is for another audience: use one for this cluster")
        role = claims.get(self._settings.role_claim)
        if isinstance(role, list) and role:
            role = role[0]  # as upstream
        if not isinstance(role, str) or not role or len(role) > ROLE_CHARS_MAX:
            raise NotIdentified(
                f"the token does not say who it is for: its claim {self._settings.role_claim!r} must hold the role; "
                "get one that has it"
            )
        return Identity(role, expires_at)


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**53:
        raise NotIdentified(f"the token is not valid: its claim {name!r} is no time in seconds; get a new one")
    return float(value)


def _reason(error: jwt.PyJWTError) -> str:
    match error:
        case jwt.InvalidSignatureError():
            return "it is signed by another key"
        case jwt.InvalidAlgorithmError():
            return "it is signed in another way than the key here"
        case _:
            return "it cannot be read"


# Keys.


def read_secret(source: str | Path) -> Key:
    """Return the secret of HS256, from bytes in a file or ``data:;base64,…``. Raise :class:`SecurityError`."""
    material = _material(source, "the secret key")
    if len(material) < SECRET_BYTES_MIN:
        raise SecurityError(
            f"{_name(source)}: the secret key is too short; it must have at least {SECRET_BYTES_MIN} bytes"
        )
    try:
        jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).prepare_key(material)
    except jwt.InvalidKeyError:
        raise SecurityError(
            f"{_name(source)}: this is a key of a pair, and no secret; give the public key as public_key"
        ) from None
    return Key(material, SECRET_ALGORITHMS)


def read_public_key(source: str | Path) -> Key:
    """Return a public key of RSA or of a NIST curve, in PEM or DER. Raise :class:`SecurityError`."""
    material = _material(source, "the public key")
    try:
        load = load_pem_public_key if material.lstrip().startswith(b"-----") else load_der_public_key
        return _asymmetric(load(material))
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SecurityError(
            f"{_name(source)}: not a public key of RSA or a NIST curve in PEM or DER: {error}"
        ) from None


def read_private_key(source: str | Path) -> Key:
    """Return a private key of RSA or of a NIST curve, in PEM or DER. Raise :class:`SecurityError`."""
    material = _material(source, "the private key")
    try:
        load = load_pem_private_key if material.lstrip().startswith(b"-----") else load_der_private_key
        key = load(material, password=None)
        return Key(key, _asymmetric(key.public_key()).algorithms)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SecurityError(
            f"{_name(source)}: not a private key of RSA or a NIST curve in PEM or DER: {error}"
        ) from None


def _asymmetric(key: Any) -> Key:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS:
        return Key(key, RSA_ALGORITHMS)
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVE_ALGORITHMS:
        return Key(key, CURVE_ALGORITHMS[key.curve.name])
    raise ValueError(
        f"the key is too short or of another kind: it must be RSA with at least {RSA_BITS} bits, or of P-256, P-384 "
        "or P-521"
    )


def key_of_jwk(jwk: Mapping[str, Any]) -> Key:
    """Return a key in the form of key sets; raise :class:`SecurityError`. A secret is refused."""
    try:
        found = jwt.PyJWK.from_dict(dict(jwk)).key
        return _asymmetric(found)
    except (jwt.PyJWTError, ValueError, TypeError, AttributeError, KeyError, UnsupportedAlgorithm) as error:
        raise SecurityError(f"not a public key of RSA or a NIST curve: {type(error).__name__}") from None


def _material(source: str | Path, which_key: str) -> bytes:
    text = str(source)
    if text.startswith(DATA_PREFIX):
        try:
            return base64.b64decode(text.removeprefix(DATA_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            raise SecurityError(f"{which_key}: what follows {DATA_PREFIX} is not base64") from None
    try:
        with Path(text.removeprefix("file://")).open("rb") as file:
            material = file.read(KEY_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SecurityError(f"{text}: {which_key} cannot be read: {error.strerror}") from None
    if len(material) > KEY_FILE_BYTES_MAX:
        raise SecurityError(
            f"{text}: {which_key} is larger than {KEY_FILE_BYTES_MAX} bytes; see that this file holds a key"
        )
    return material


def _name(source: str | Path) -> str:
    return "the key" if str(source).startswith(DATA_PREFIX) else str(source)


# Making and showing.


def create_token(
    key: Key, role: str, *, expires_at: float | None = None, claims: Mapping[str, Any] | None = None
) -> str:
    """Return a token for ``role``, in the first algorithm of the key. Raise :class:`SecurityError`."""
    if not role or len(role) > ROLE_CHARS_MAX:
        raise SecurityError(f"the role has {len(role)} characters; give one of 1 to {ROLE_CHARS_MAX}")
    content: dict[str, Any] = {**(claims or {}), "sub": role}
    if expires_at is not None:
        content["exp"] = int(expires_at)
    return jwt.encode(content, key.material, algorithm=key.algorithms[0])


def show_token(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a token's header and claims, unchecked. Raise :class:`SecurityError`."""
    try:
        whole = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.InvalidTokenError, ValueError, TypeError, RecursionError):
        raise SecurityError("this is not a token: a token has three parts of base64 with dots between them") from None
    return dict(whole["header"]), dict(whole["payload"])


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES_MIN)


def new_key_pair(kind: str) -> tuple[bytes, bytes]:
    """Return a private and a public key of ``RS256`` or ``ES256``, in PEM."""
    made: Any
    if kind == "ES256":
        made = ec.generate_private_key(ec.SECP256R1())
    else:
        made = rsa.generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    private = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = made.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return bytes(private), bytes(public)


def as_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
