"""Sections ``auth`` and ``tls`` of a topology file: who may use the workers, the workers' own credentials, and whether
everything is encrypted. They hold files and URLs only, no secret.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from replicator.engine.errors import EngineError
from replicator.engine.topic_name import check_tenant, parse_namespace, parse_topic
from replicator.security.certificates import RoleSource
from replicator.security.identity import ROLE_CHARS_MAX
from replicator.security.permissions import Action
from replicator.topology.scalars import Flag, data_path, one_of
from replicator.topology.sections import Section

_File = Annotated[Path, BeforeValidator(data_path)]


def check_role(text: str) -> str:
    """Return ``text`` if it is the name of a role."""
    if not text.strip() or len(text) > ROLE_CHARS_MAX or not text.isprintable():
        raise ValueError(f"the name of a role must have 1 to {ROLE_CHARS_MAX} printable characters")
    return text


Role = Annotated[str, AfterValidator(check_role)]
Roles = Annotated[tuple[Role, ...], Field(strict=False)]


def _check_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError("the URL of a key set must have no user and no password, since status and logs show it")
    if parts.scheme == "https" and parts.hostname:
        return text
    if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
        return text
    raise ValueError(
        f"{text[:80]!r}, the URL of a key set, must begin with https://, or with http:// on this host alone: whoever "
        "can change the keys on their way could sign in as anybody"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class TokenAuth(Section):
    """Source of the keys that valid tokens are checked with: one of three."""

    secret_key: _File | None = None
    """Key of HS256: whoever can check tokens can also make them."""
    public_key: _File | None = None
    """Key of RS256 or ES256."""
    jwks: Annotated[str, AfterValidator(_check_url)] | None = None
    """URL at which an identity provider publishes its public keys."""
    role_claim: str = "sub"
    audience: str | None = None
    audience_claim: str = "aud"

    @model_validator(mode="after")
    def _one_source(self) -> TokenAuth:
        given = [name for name in ("secret_key", "public_key", "jwks") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"`tokens` needs one of secret_key, public_key and jwks, and has {' and '.join(given) or 'none'}"
            )
        return self


def _check_places(value: object) -> object:
    """Check that places are tenants, namespaces or topics in their full form, with lists of actions."""
    if not isinstance(value, Mapping):
        return value
    return {_full_name(str(place)): roles for place, roles in value.items()}


def _full_name(place: str) -> str:
    try:
        if "://" in place:
            return str(parse_topic(place))
        return parse_namespace(place) if "/" in place else check_tenant(place)
    except EngineError as error:
        raise ValueError(
            f"{place[:80]!r} is no tenant, TENANT/NAMESPACE or persistent://TENANT/NAMESPACE/TOPIC: {error}"
        ) from None


_Actions = Annotated[tuple[Annotated[Action, one_of(Action)], ...], Field(strict=False, min_length=1)]


class AuthSettings(Section):
    """Authentication of clients, and their permissions. Without a way to authenticate, all clients have the same
    rights.
    """

    tokens: TokenAuth | None = None
    passwords: _File | None = None
    """File of user names and passwords in the form of ``htpasswd``, with bcrypt or apr1."""
    certificates: Annotated[RoleSource, one_of(RoleSource)] | None = None
    """Part of a client's certificate that names its role."""
    superusers: Roles = ()
    metrics: Roles | Literal["open"] = ()
    """The roles that may read ``/metrics`` beside superusers, or ``open`` for everybody."""
    token_file: _File | None = None
    """File with the token that workers and the pipeline show to workers; it may be replaced at any time."""
    permissions: Annotated[dict[str, dict[Role, _Actions]], BeforeValidator(_check_places)] = Field(default={})
    """Permissions by tenant, namespace or topic, and by role. They add to those that operators grant."""

    @model_validator(mode="after")
    def _whole(self) -> AuthSettings:
        if not self.enabled:
            if self != AuthSettings.model_construct():
                raise ValueError("nobody can say who they are: `auth` needs `tokens`, `passwords` or `certificates`")
        elif not self.superusers:
            raise ValueError(
                "`superusers` is empty, so nobody could grant permissions: name at least the role of workers and "
                "operators"
            )
        return self

    @property
    def enabled(self) -> bool:
        return self.tokens is not None or self.passwords is not None or self.certificates is not None

    @property
    def certificates_are_optional(self) -> bool:
        """Return whether there is another way to authenticate, so that clients with ``tls.ca`` need no certificate."""
        return self.certificates is not None and (self.tokens is not None or self.passwords is not None)

    @property
    def metrics_roles(self) -> frozenset[str] | None:
        """Return the roles that may read the metrics beside superusers; None if everybody may."""
        return None if isinstance(self.metrics, str) else frozenset(self.metrics)

    def granted(self) -> Mapping[str, Mapping[str, frozenset[str]]]:
        """Return the permissions by place and role."""
        return {
            place: {role: frozenset(actions) for role, actions in roles.items()}
            for place, roles in self.permissions.items()
        }

    def written(self) -> dict[str, Any]:
        """Return the settings in the form of the topology file."""
        return self.model_dump(mode="json", exclude_defaults=True)


class TlsPolicy(Section):
    """Whether everything that workers say to each other and to clients is encrypted."""

    required: Flag = False
    """Plain connections are refused, and workers, the pipeline and tools ask ``address`` by TLS."""
    trust: _File | None = None
    """The authorities of the workers' certificates, in PEM; those of this host without it."""

    def written(self) -> dict[str, Any]:
        """Return the settings in the form of the topology file."""
        return self.model_dump(mode="json", exclude_defaults=True)
