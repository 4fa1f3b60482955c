"""Authentication of one topology, made from its ``auth`` settings and the files that these name."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.security.identifying import Identifying
from replicator.security.key_sets import KeySet
from replicator.security.passwords import Passwords
from replicator.security.tokens import Keys, SingleKey, Tokens, TokenSettings, read_public_key, read_secret
from replicator.topology.auth import AuthSettings, TokenAuth


@dataclass(frozen=True, slots=True)
class LoadedSecurity:
    """The ``auth`` settings of one topology, with the keys and passwords read from their files."""

    settings: AuthSettings
    identifying: Identifying
    key_set: KeySet | None


def make_security(settings: AuthSettings, former: LoadedSecurity | None = None) -> LoadedSecurity:
    """Read the files that ``settings`` name, and return what they hold.

    The key set of ``former`` is kept if its URL is the same. Raises :class:`SecurityError` if a file cannot be used.
    """
    tokens = key_set = None
    if settings.tokens is not None:
        keys, key_set = _keys(settings.tokens, None if former is None else former.key_set)
        names = TokenSettings(settings.tokens.role_claim, settings.tokens.audience, settings.tokens.audience_claim)
        tokens = Tokens(keys, names)
    passwords = None if settings.passwords is None else Passwords(settings.passwords)
    return LoadedSecurity(settings, Identifying(tokens, passwords, settings.certificates), key_set)


def _keys(settings: TokenAuth, former: KeySet | None) -> tuple[Keys, KeySet | None]:
    if settings.secret_key is not None:
        return SingleKey(read_secret(settings.secret_key)), None
    if settings.public_key is not None:
        return SingleKey(read_public_key(settings.public_key)), None
    assert settings.jwks is not None
    key_set = former if former is not None and former.url == settings.jwks else KeySet(settings.jwks, former)
    return key_set, key_set
