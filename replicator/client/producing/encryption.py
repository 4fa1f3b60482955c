"""End-to-end encryption: producers encrypt entries, consumers decrypt them, clusters see neither keys nor payloads.

Scheme (that of Pulsar's clients, so that they can read what this one wrote and the other way round):
1. A producer makes a random 256-bit data key. It wraps it with the RSA public key of each of its key names (OAEP with
   SHA-1, which is what the scheme says; OAEP does not depend on the hash's collision resistance).
2. Each entry's payload, compressed, is encrypted by AES-GCM with the data key and a random 96-bit nonce. The metadata
   has the wrapped data keys (``encryption_keys``) and the nonce (``encryption_param``); the tag ends the payload.
3. A consumer asks its key reader for the private key of one of the names, unwraps the data key, and decrypts.
4. The data key is replaced after :data:`DATA_KEY_MS_MAX` or :data:`DATA_KEY_ENTRIES_MAX` entries. The public keys are
   read again then, so a changed key takes effect.

Keys, properties and times of messages stay readable: clusters route, expire and compact by them.

Source: the publicly documented end-to-end encryption of Pulsar's clients. The clock is the entries' publish time, and
randomness is passed in. The package ``cryptography`` is imported when it is first needed: it is optional.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from replicator.client.errors import CryptoError, DecryptionFailed
from replicator.metadata.metadata_pb2 import EncryptionKeys, MessageMetadata

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.padding import OAEP

DATA_KEY_MS_MAX: Final = 4 * 3_600_000
"""Longest use of one data key; upstream's value."""
DATA_KEY_ENTRIES_MAX: Final = 2**30
"""Limit of entries per data key: well below 2**32, above which random nonces could repeat (NIST SP 800-38D)."""
DATA_KEYS_KNOWN_MAX: Final = 1_000
"""Limit of unwrapped data keys that a consumer remembers: so many producers may send at once without repeated
unwrapping."""

_DATA_KEY_BYTES: Final = 32
_NONCE_BYTES: Final = 12

KeySource = Callable[[str, Mapping[str, str]], bytes]
"""Function that returns the PEM of a key, from its name and the metadata that the producer's key reader set for it."""


class ConsumerCryptoFailureAction(Enum):
    """Action of a consumer for an entry that it cannot decrypt."""

    FAIL = "FAIL"
    """Raise :class:`DecryptionFailed`; the entry stays unacknowledged."""
    DISCARD = "DISCARD"
    """Acknowledge the entry without showing it."""
    CONSUME = "CONSUME"
    """Show the encrypted payload as one message; the application decrypts it."""


class CryptoKeyReader:
    """Source of keys: PEM files, or callables of (key name, key metadata) that return PEM bytes.

    A producer needs public keys, a consumer private ones. A file serves every key name.
    """

    __slots__ = ("_private", "_public")

    def __init__(
        self,
        public_key_path: str | Path | KeySource | None = None,
        private_key_path: str | Path | KeySource | None = None,
    ) -> None:
        self._public = public_key_path
        self._private = private_key_path

    def public_key(self, name: str) -> bytes:
        """Return the PEM of a public key. Raises :class:`CryptoError`."""
        return _read("public", self._public, name, {})

    def private_key(self, name: str, metadata: Mapping[str, str]) -> bytes:
        """Return the PEM of a private key. Raises :class:`CryptoError`."""
        return _read("private", self._private, name, metadata)


class EntryEncryptor:
    """Encryptor with a producer's data key, wrapped for each of its key names. Raises :class:`CryptoError` if that
    fails."""

    __slots__ = ("_data_key", "_entries", "_key_names", "_key_reader", "_made_ms", "_random_bytes", "_wrapped")

    def __init__(
        self,
        key_names: Sequence[str],
        key_reader: CryptoKeyReader,
        wall_time_ms: int,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        assert key_names
        self._key_names = tuple(key_names)
        self._key_reader = key_reader
        self._random_bytes = random_bytes
        self._new_data_key(wall_time_ms)

    def encrypt(self, metadata: MessageMetadata, payload: bytes | bytearray | memoryview) -> bytes:
        """Return the encrypted payload, and put into ``metadata`` what decrypts it. Raises :class:`CryptoError`."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        if not 0 <= metadata.publish_time - self._made_ms < DATA_KEY_MS_MAX or self._entries >= DATA_KEY_ENTRIES_MAX:
            self._new_data_key(metadata.publish_time)
        self._entries += 1
        nonce = self._random_bytes(_NONCE_BYTES)
        del metadata.encryption_keys[:]
        metadata.encryption_keys.extend(self._wrapped)
        metadata.encryption_param = nonce
        return AESGCM(self._data_key).encrypt(nonce, bytes(payload), None)

    def _new_data_key(self, wall_time_ms: int) -> None:
        padding = _oaep()
        self._data_key = self._random_bytes(_DATA_KEY_BYTES)
        self._made_ms = wall_time_ms
        self._entries = 0
        self._wrapped = [
            EncryptionKeys(key=name, value=_wrap(name, self._key_reader.public_key(name), self._data_key, padding))
            for name in self._key_names
        ]


class EntryDecryptor:
    """Decryptor with a consumer's private keys, and the data keys that it has unwrapped."""

    __slots__ = ("_data_keys", "_key_reader")

    def __init__(self, key_reader: CryptoKeyReader) -> None:
        _oaep()  # a missing package is said when the consumer is made
        self._key_reader = key_reader
        self._data_keys: OrderedDict[tuple[str, bytes], bytes] = OrderedDict()

    def decrypt(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Return the decrypted payload.

        Raises :class:`DecryptionFailed` if no key fits or the payload was changed.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        reasons: list[str] = []
        for wrapped in metadata.encryption_keys:
            try:
                data_key = self._data_key_of(wrapped)
                return AESGCM(data_key).decrypt(metadata.encryption_param, bytes(payload), None)
            except InvalidTag:
                reasons.append(f"the payload does not fit key {wrapped.key!r}")
            except (CryptoError, ValueError) as error:
                reasons.append(str(error))
        raise DecryptionFailed("; ".join(reasons) or "there is no key")

    def _data_key_of(self, wrapped: EncryptionKeys) -> bytes:
        known = self._data_keys.get((wrapped.key, wrapped.value))
        if known is not None:
            self._data_keys.move_to_end((wrapped.key, wrapped.value))
            return known
        pem = self._key_reader.private_key(wrapped.key, {pair.key: pair.value for pair in wrapped.metadata})
        data_key = _unwrap(wrapped.key, pem, wrapped.value)
        self._data_keys[wrapped.key, wrapped.value] = data_key
        if len(self._data_keys) > DATA_KEYS_KNOWN_MAX:
            self._data_keys.popitem(last=False)
        return data_key


def _read(kind: str, source: str | Path | KeySource | None, name: str, metadata: Mapping[str, str]) -> bytes:
    if not source:
        raise CryptoError(f"the CryptoKeyReader has no {kind} key for {name!r}: make it with {kind}_key_path")
    if callable(source):
        pem = source(name, metadata)
        if not isinstance(pem, bytes):
            raise CryptoError(f"the key reader gave {type(pem).__name__} as {kind} key {name!r}; it must be PEM bytes")
        return pem
    try:
        return Path(source).read_bytes()
    except OSError as error:
        raise CryptoError(f"{kind} key {name!r} cannot be read: {error}") from error


def _oaep() -> OAEP:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    # Like official clients. OAEP does not need what SHA-1 lost.
    return padding.OAEP(mgf=padding.MGF1(hashes.SHA1()), algorithm=hashes.SHA1(), label=None)  # nosec B303


def _wrap(name: str, pem: bytes, data_key: bytes, padding: OAEP) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CryptoError(f"public key {name!r} is not a public key in PEM: {error}") from None
    if not isinstance(key, RSAPublicKey):
        raise CryptoError(
            f"public key {name!r} is not an RSA key; give one, because messages are encrypted with RSA keys only"
        )
    try:
        return key.encrypt(data_key, padding)
    except ValueError as error:
        raise CryptoError(
            f"public key {name!r} cannot encrypt the data key of messages: {error}; give a longer RSA key"
        ) from None


def _unwrap(name: str, pem: bytes, wrapped: bytes) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CryptoError(
            f"private key {name!r} cannot be read: {error}; give one in PEM, without a password"
        ) from None
    if not isinstance(key, RSAPrivateKey):
        raise CryptoError(
            f"private key {name!r} is not an RSA key; give one, because messages are encrypted with RSA keys only"
        )
    try:
        return key.decrypt(wrapped, _oaep())
    except ValueError:
        raise CryptoError(
            f"private key {name!r} does not decrypt the data key of the message: give the one that belongs to the "
            "producer's public key"
        ) from None
