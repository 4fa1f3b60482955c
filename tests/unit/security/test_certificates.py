"""Role of a client by its certificate, as Python's ``ssl`` gives it."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from replicator.client.authentication import ConnectionSecurity
from replicator.operating.start_checks import tls_context
from replicator.security.access import Access
from replicator.security.certificate_making import Authority
from replicator.security.certificates import RoleSource, identify_certificate
from replicator.security.errors import NotIdentified
from replicator.security.identity import ROLE_CHARS_MAX
from replicator.topology.fields import TlsSettings

SHOWN = {
    "subject": ((("organizationName", "acme"),), (("commonName", "outer"),), (("commonName", "inner"),)),
    "subjectAltName": (("IP Address", "127.0.0.1"), ("DNS", "orders.example"), ("URI", "spiffe://acme/orders")),
}


def test_the_role_is_the_last_common_name_or_the_first_name_among_the_others() -> None:
    assert identify_certificate(SHOWN, RoleSource.COMMON_NAME).role == "inner"
    assert identify_certificate(SHOWN, RoleSource.SAN).role == "orders.example"
    for kind in ("DNS", "email", "URI"):
        shown = {"subjectAltName": (("IP Address", "127.0.0.1"), (kind, "orders"))}
        assert identify_certificate(shown, RoleSource.SAN).role == "orders"


@pytest.mark.parametrize("rsa", [False, True])
def test_an_authority_gives_keys_of_either_kind(rsa: bool, tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).give("host", rsa=rsa)
    assert isinstance(load_pem_private_key(key.read_bytes(), None), RSAPrivateKey) == rsa
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)


@pytest.mark.parametrize(
    ("shown", "role_from"),
    [
        (None, RoleSource.COMMON_NAME),
        ({}, RoleSource.SAN),
        ({"subject": ((("organizationName", "acme"),),)}, RoleSource.COMMON_NAME),
        ({"subject": ((("commonName", ""),),)}, RoleSource.COMMON_NAME),
        ({"subject": ((("commonName", "x" * (ROLE_CHARS_MAX + 1)),),)}, RoleSource.COMMON_NAME),
        ({"subject": SHOWN["subject"]}, RoleSource.SAN),
        ({"subjectAltName": (("IP Address", "127.0.0.1"),)}, RoleSource.SAN),
    ],
)
def test_a_certificate_without_the_name_is_nobodys(shown: dict[str, object] | None, role_from: RoleSource) -> None:
    with pytest.raises(NotIdentified):
        identify_certificate(shown, role_from)


def test_a_worker_speaks_nothing_older_than_tls_1_2(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).give("worker")
    files = TlsSettings.model_validate({"certificate": str(certificate), "key": str(key)})
    assert tls_context("worker", files, optional=False).minimum_version == ssl.TLSVersion.TLSv1_2


def test_who_asks_a_worker_speaks_nothing_older_either() -> None:
    assert Access(tls=True).make_ssl_context().minimum_version == ssl.TLSVersion.TLSv1_2
    assert ConnectionSecurity().ssl_context().minimum_version == ssl.TLSVersion.TLSv1_2
