"""Identification of a client by the certificate that TLS has checked."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from replicator.security.errors import NotIdentified
from replicator.security.identity import ROLE_CHARS_MAX, Identity

Certificate = Mapping[str, Any]
"""Certificate in the form of :meth:`ssl.SSLSocket.getpeercert`."""


class RoleSource(StrEnum):
    """Part of a certificate that names the role."""

    COMMON_NAME = "common-name"
    SAN = "san"
    """The first name of its subjectAltName: DNS, e-mail or URI."""


_NAMES: Final = ("DNS", "email", "URI")


def identify_certificate(certificate: Certificate | None, role_from: RoleSource) -> Identity:
    """Return the identity in the certificate. Raise :class:`NotIdentified`."""
    if not certificate:
        raise NotIdentified("no client certificate was shown: connect with one")
    if role_from is RoleSource.SAN:
        found = next((value for kind, value in certificate.get("subjectAltName", ()) if kind in _NAMES), "")
    else:
        names = [value for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
        found = names[-1] if names else ""
    if not found or len(found) > ROLE_CHARS_MAX:
        raise NotIdentified(
            f"the client certificate has no {role_from.replace('-', ' ')}, by which its role is told: show one that "
            "has it"
        )
    return Identity(found)
