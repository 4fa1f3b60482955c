"""Checks of a worker's TLS files: expiry, names, the chain, and whether the key fits."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from replicator.operating.doctor.findings import Finding, Level
from replicator.topology import Cluster, Topology

EXPIRES_SOON: Final = timedelta(days=30)
CHECK: Final = "certificate"


def look_at_certificates(topology: Topology, cluster: Cluster, now: datetime | None = None) -> Iterator[Finding]:
    """Check the certificates of a cluster; yield nothing if it has no TLS."""
    if cluster.tls is None:
        return
    now = now or datetime.now(UTC)
    name = cluster.name
    try:
        chain = x509.load_pem_x509_certificates(cluster.tls.certificate.read_bytes())
    except (OSError, ValueError) as error:
        yield _unusable(name, cluster.tls.certificate, error, "a certificate in PEM")
        return
    yield _expiry(name, chain, now)
    yield _names(cluster, chain[0])
    try:
        key = load_pem_private_key(cluster.tls.key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        yield _unusable(name, cluster.tls.key, error, "a private key in PEM, without a password")
    else:
        spki = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
        if key.public_key().public_bytes(*spki) == chain[0].public_key().public_bytes(*spki):
            yield Finding(CHECK, name, Level.OK, f"the private key {cluster.tls.key} belongs to the certificate")
        else:
            text = f"the private key {cluster.tls.key} does not belong to {cluster.tls.certificate}"
            yield Finding(
                CHECK,
                name,
                Level.ERROR,
                text,
                "put a certificate and its own key in place, and reload the worker (SIGHUP)",
            )
    yield from _chain(topology, cluster, chain)


def _expiry(name: str, chain: Sequence[x509.Certificate], now: datetime) -> Finding:
    first = min(chain, key=lambda each: each.not_valid_after_utc)
    ends, begins = first.not_valid_after_utc, max(each.not_valid_before_utc for each in chain)
    remedy = "have a new certificate issued, put it in place, and reload the worker (SIGHUP; docs/security.md)"
    if now >= ends:
        return Finding(CHECK, name, Level.ERROR, f"the certificate expired at {ends:%Y-%m-%d %H:%M} UTC", remedy)
    if now < begins:
        remedy = "correct this machine's clock, or wait"
        return Finding(
            CHECK, name, Level.ERROR, f"the certificate is valid only from {begins:%Y-%m-%d %H:%M} UTC", remedy
        )
    if now + EXPIRES_SOON >= ends:
        return Finding(CHECK, name, Level.WARNING, f"the certificate expires at {ends:%Y-%m-%d %H:%M} UTC", remedy)
    return Finding(CHECK, name, Level.OK, f"the certificate is valid until {ends:%Y-%m-%d}")


def _names(cluster: Cluster, certificate: x509.Certificate) -> Finding:
    """Check that the certificate has the name by which others call the worker."""
    host = cluster.address.rpartition(":")[0].strip("[]")
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        known: list[str] = []
    else:
        addresses = names.get_values_for_type(x509.IPAddress)
        known = [*names.get_values_for_type(x509.DNSName), *map(str, addresses)]
    if _has(known, host):
        return Finding(CHECK, cluster.name, Level.OK, f"the certificate names the host {host}")
    remedy = f"have it issued with the subjectAltName {host}, or use one of its names in the worker's `address`"
    text = f"the certificate names {', '.join(known) or 'no host'}, but others connect to {host}"
    return Finding(CHECK, cluster.name, Level.ERROR, text, remedy)


def _has(known: Sequence[str], host: str) -> bool:
    try:
        return str(ipaddress.ip_address(host)) in known
    except ValueError:
        wanted = host.lower()
        return any(
            name.lower() == wanted or (name.startswith("*.") and wanted.partition(".")[2] == name[2:].lower())
            for name in known
        )


def _chain(topology: Topology, cluster: Cluster, chain: Sequence[x509.Certificate]) -> Iterator[Finding]:
    """Check that each certificate of the file is issued by the next one, and the last one by a trusted authority."""
    name = cluster.name
    for certificate, issuer in pairwise(chain):
        if not _issued_by(certificate, issuer):
            text = f"{certificate.subject.rfc4514_string()} is not issued by the next certificate in the file"
            yield Finding(
                CHECK,
                name,
                Level.ERROR,
                text,
                "put the worker's own certificate first in the file, then each issuer in turn",
            )
            return
    trust = topology.tls.trust
    if trust is None:
        yield Finding(
            CHECK,
            name,
            Level.OK,
            "others look for its authority among those of their system, because `tls.trust` is not set",
        )
        return
    try:
        authorities = x509.load_pem_x509_certificates(trust.read_bytes())
    except (OSError, ValueError) as error:
        yield _unusable(name, trust, error, "authorities in PEM (`tls.trust`)")
        return
    if any(chain[-1] == each or _issued_by(chain[-1], each) for each in authorities):
        yield Finding(CHECK, name, Level.OK, f"an authority in {trust} issued the certificate")
        return
    text = f"no authority in {trust} issued {chain[-1].subject.rfc4514_string()}"
    remedy = "add the missing intermediate certificates to its file, or the authority to the file of `tls.trust`"
    yield Finding(CHECK, name, Level.ERROR, text, remedy)


def _issued_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _unusable(name: str, path: Path, error: Exception, wanted: str) -> Finding:
    reason = getattr(error, "strerror", None) or f"this is not {wanted}"
    return Finding(CHECK, name, Level.ERROR, f"{path}: {reason}", f"put {wanted} there, readable for the worker's user")
