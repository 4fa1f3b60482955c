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


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    directory.mkdir(mode=0o755, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = directory / "certificate.pem", directory / "key.pem"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return files
