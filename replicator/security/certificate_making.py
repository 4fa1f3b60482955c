"""An authority of one's own, and certificates of hosts, for drills and tests. Use a real authority in production."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric import rsa as rivest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from replicator.running.private_files import replace_private

LASTING: Final = datetime.timedelta(days=1)
SKEW: Final = datetime.timedelta(minutes=5)
RSA_BITS: Final = 2048


class Authority:
    """Certificate authority. Its key stays in memory; its certificate is written to ``ca.pem`` in the directory."""

    def __init__(self, directory: Path, name: str = "an authority of one's own") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self.file = directory / "ca.pem"
        """Certificate to trust."""
        replace_private(self.file, self._signed(self._name, self._key.public_key(), ca=True).public_bytes(Encoding.PEM))

    def give(self, common_name: str, *hosts: str, rsa: bool = False) -> tuple[Path, Path]:
        """Make a certificate for ``127.0.0.1``, ``localhost`` and ``hosts``, and its key, in files named after
        ``common_name``; replace existing ones. Use ``rsa`` for clients that read no other kind of key.
        """
        key = rivest.generate_private_key(65537, RSA_BITS) if rsa else ec.generate_private_key(ec.SECP256R1())
        files = self.directory / f"{common_name}.pem", self.directory / f"{common_name}.key"
        replace_private(files[1], key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        signed = self._signed(_named(common_name), key.public_key(), hosts, ca=False)
        replace_private(files[0], signed.public_bytes(Encoding.PEM))
        return files

    def _signed(
        self,
        name: x509.Name,
        key: ec.EllipticCurvePublicKey | rivest.RSAPublicKey,
        hosts: Sequence[str] = (),
        *,
        ca: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - SKEW)
            .not_valid_after(now + LASTING)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            # Python 3.13 wants to be told whose key it is, and what it is for.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(_usage(ca=ca), critical=True)
        )
        if not ca:
            names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), *map(x509.DNSName, ("localhost", *hosts))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
