"""What a topology's ``auth`` comes to once the files that it names are read."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.security.identifying import Identifying
from replicator.security.key_sets import KeySet
from replicator.security.passwords import Passwords
from replicator.security.tokens import Keys, OneKey, Tokens, TokenSettings, read_public_key, read_secret
from replicator.topology.auth import AuthSettings, TokenAuth


@dataclass(frozen=True, slots=True)
class MadeSecurity:
    """What one topology's ``auth`` comes to."""

    settings: AuthSettings
    identifying: Identifying
    key_set: KeySet | None


def make_security(settings: AuthSettings, former: MadeSecurity | None = None) -> MadeSecurity:
    """Read what it names; a key set that is there already goes on. Raises :class:`SecurityError`."""
    tokens = key_set = None
    if settings.tokens is not None:
        keys, key_set = _keys(settings.tokens, None if former is None else former.key_set)
        names = TokenSettings(settings.tokens.role_claim, settings.tokens.audience, settings.tokens.audience_claim)
        tokens = Tokens(keys, names)
    passwords = None if settings.passwords is None else Passwords(settings.passwords)
    return MadeSecurity(settings, Identifying(tokens, passwords, settings.certificates), key_set)


def _keys(settings: TokenAuth, former: KeySet | None) -> tuple[Keys, KeySet | None]:
    if settings.secret_key is not None:
        return OneKey(read_secret(settings.secret_key)), None
    if settings.public_key is not None:
        return OneKey(read_public_key(settings.public_key)), None
    assert settings.jwks is not None
    key_set = former if former is not None and former.url == settings.jwks else KeySet(settings.jwks, former)
    return key_set, key_set
