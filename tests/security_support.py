"""Keys, tokens, certificates and topologies of workers that ask who somebody is."""

from __future__ import annotations

import datetime
import ipaddress
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from passlib.hash import apr_md5_crypt, bcrypt

from replicator.security.tokens import create_token, new_secret, read_secret

HOUR = datetime.timedelta(hours=1)


class Authority:
    """An authority, in ``ca.pem`` of a directory, and the certificates that it gives out."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.file = directory / "ca.pem"
        own = self._certificate(self._name, self._key.public_key(), ca=True)
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def give(self, common_name: str, *, stem: str = "") -> tuple[Path, Path]:
        """A certificate for this host and its key, as files."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = self._certificate(name, key.public_key(), ca=False)
        files = self.directory / f"{stem or common_name}.pem", self.directory / f"{stem or common_name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        files[1].write_bytes(key.private_bytes(encoding, form, serialization.NoEncryption()))
        return files

    def _certificate(self, name: x509.Name, key: Any, *, ca: bool) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOUR)
            .not_valid_after(now + HOUR)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([host, x509.DNSName("localhost")]), critical=False
            )
        return builder.sign(self._key, hashes.SHA256())


@dataclass(frozen=True, slots=True)
class Secrets:
    """A secret key in a directory, and tokens that it signs."""

    directory: Path

    @classmethod
    def made(cls, directory: Path) -> Secrets:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "secret.key").write_bytes(new_secret())
        return cls(directory)

    @property
    def key(self) -> Path:
        return self.directory / "secret.key"

    def token(self, role: str, *, seconds: float | None = None, **claims: object) -> str:
        """One that counts for so long; for ever without."""
        expires_at = None if seconds is None else time.time() + seconds
        return create_token(read_secret(self.key), role, expires_at=expires_at, claims=claims)

    def token_file(self, role: str) -> Path:
        file = self.directory / f"{role}.token"
        file.write_text(self.token(role))
        return file

    def passwords(self, **passwords: str) -> Path:
        """An htpasswd file, in which the first is hashed with bcrypt and the others as apr1."""
        lines = [
            f"{name}:{(apr_md5_crypt if number else bcrypt.using(rounds=5)).hash(password)}\n"
            for number, (name, password) in enumerate(passwords.items())
        ]
        file = self.directory / "htpasswd"
        file.write_text("".join(lines))
        return file

    def auth(self, **more: object) -> dict[str, Any]:
        """The section of a topology: the superuser is ``operator``, whose token workers show."""
        return {
            "tokens": {"secret_key": str(self.key)},
            "superusers": ["operator"],
            "token_file": str(self.token_file("operator")),
            **more,
        }
