"""Credentials of a worker at brokers: files that may be replaced, and errors that name them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from replicator.apache.credentials import TlsFiles, showing_of
from replicator.client.errors import AuthenticationError
from replicator.security.certificate_making import Authority
from replicator.topology.apache import ApacheSettings


def settings(auth: dict[str, Any], **tls: str) -> ApacheSettings:
    places = {"service_url": "pulsar+ssl://b:6651", "admin_url": "https://b:8443"}
    return ApacheSettings.model_validate({**places, "auth": auth, "tls": tls})


@pytest.mark.parametrize(
    ("field", "first", "second", "shown"),
    [
        ("token_file", " one\n", "two", [b"one", b"two"]),
        ("password_file", "me:first\n", "me:se:cond\n", [b"me:first", b"me:se:cond"]),
    ],
)
def test_a_file_is_read_whenever_it_is_shown(
    tmp_path: Path, field: str, first: str, second: str, shown: list[bytes]
) -> None:
    file = tmp_path / "shown"
    authentication = showing_of(settings({field: str(file)})).authentication
    found = []
    for content in (first, second):
        file.write_text(content)
        found.append(authentication.credentials())
    assert found == shown


@pytest.mark.parametrize(
    ("field", "content", "text"),
    [
        ("password_file", None, "cannot be read: No such file or directory; see that the worker may read the file"),
        ("password_file", "\n", "the file is empty; write the credentials into it"),
        ("password_file", "me", "the file must hold one line, NAME:PASSWORD"),
        ("password_file", ":secret", "the file must hold one line, NAME:PASSWORD"),
        ("password_file", "me:", "the file must hold one line, NAME:PASSWORD"),
        ("password_file", "me:secret\nyou:secret", "the file must hold one line, NAME:PASSWORD"),
        ("token_file", None, "cannot be read: No such file or directory; see that the worker may read the file"),
        ("token_file", "", "the file is empty; write the credentials into it"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_and_not_shown(
    tmp_path: Path, field: str, content: str | None, text: str
) -> None:
    file = tmp_path / "shown"
    if content is not None:
        file.write_text(content)
    with pytest.raises(AuthenticationError) as refused:
        showing_of(settings({field: str(file)})).authentication.credentials()
    assert str(refused.value) == f"apache.auth.{field}, {file}: {text}"


def certified(directory: Path) -> tuple[Authority, Path, Path]:
    authority = Authority(directory)
    return (authority, *authority.give("bridge"))


def showing_certificate(certificate: Path, key: Path, **tls: str) -> TlsFiles:
    return TlsFiles(showing_of(settings({"certificate": str(certificate), "key": str(key)}, **tls)))


def test_tls_is_made_anew_when_a_file_was_replaced_and_only_then(tmp_path: Path) -> None:
    authority, certificate, key = certified(tmp_path)
    files = showing_certificate(certificate, key, ca=str(authority.file))
    first = files.context()
    assert files.context() is first
    authority.give("bridge")
    second = files.context()
    assert second is not first
    assert files.context() is second
    Authority(tmp_path)  # its own certificate is another one
    assert files.context() is not second


def encrypted(certificate: Path, key: Path) -> None:
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    form, way = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(form, way, serialization.BestAvailableEncryption(b"secret")))


def of_another(certificate: Path, key: Path) -> None:
    certificate.write_bytes(Authority(certificate.parent / "other").give("bridge")[0].read_bytes())


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda certificate, _: certificate.unlink(), "No such file"),
        (lambda certificate, _: certificate.write_text("nothing"), "PEM"),
        (of_another, "(?i)key.values.mismatch"),
        (encrypted, "the private key is encrypted; give one without a passphrase"),
    ],
)
def test_a_certificate_that_cannot_be_used_is_named_and_one_that_takes_its_place_is_used(
    tmp_path: Path, spoil: Callable[[Path, Path], None], text: str
) -> None:
    authority, certificate, key = certified(tmp_path)
    files = showing_certificate(certificate, key)
    files.context()
    spoil(certificate, key)
    os.utime(key, ns=(1, 1))
    for _ in range(2):
        with pytest.raises(AuthenticationError, match=text) as refused:
            files.context()
        assert str(refused.value).endswith(f"apache.auth.certificate and .key, {certificate}, {key}")
    authority.give("bridge")
    files.context()
