"""Only who has the private key reads what was sent; changed or foreign entries are named, never shown as clear."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from replicator.client.errors import CryptoError, DecryptionFailed
from replicator.client.message import Message, Opening, OutgoingMessage, messages_of
from replicator.client.producing import encryption
from replicator.client.producing.encryption import (
    DATA_KEY_MS_MAX,
    ConsumerCryptoFailureAction,
    CryptoKeyReader,
    EntryDecryptor,
    EntryEncryptor,
)
from replicator.client.producing.framing import EntryFramer, chunked_entries, single_entry
from replicator.client.settings import CompressionType
from replicator.engine.log.entry import decode_entry, encode_entry
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

TOPIC = "persistent://public/default/t"


def _pem_pair(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    return (
        key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )


PUBLIC, PRIVATE = _pem_pair(rsa.generate_private_key(65537, 2048))
OTHER_PUBLIC, OTHER_PRIVATE = _pem_pair(rsa.generate_private_key(65537, 2048))
READER = CryptoKeyReader(lambda _name, _metadata: PUBLIC, lambda _name, _metadata: PRIVATE)


def _metadata(publish_time: int = 1_000) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_time)


def _messages(entry: object, opening: Opening) -> list[Message]:
    assert isinstance(entry, bytes)
    delivery = Delivery(Position(4, 7), 0, 1, None, entry, "eu", Position(4, 7))
    return list(messages_of(delivery, TOPIC, -1, None, opening))


def test_what_is_encrypted_does_not_show_and_the_private_key_opens_it() -> None:
    metadata = _metadata()
    encrypted = EntryEncryptor(["orders"], READER, 1_000).encrypt(metadata, b"secret text")
    assert b"secret" not in encrypted
    assert len(encrypted) == len(b"secret text") + 16, "the tag of AES-GCM ends the payload, as in Pulsar's clients"
    assert [key.key for key in metadata.encryption_keys] == ["orders"]
    assert len(metadata.encryption_param) == 12
    assert EntryDecryptor(READER).decrypt(metadata, encrypted) == b"secret text"


def test_keys_are_read_from_files(tmp_path: Path) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    public.write_bytes(PUBLIC)
    private.write_bytes(PRIVATE)
    reader = CryptoKeyReader(str(public), private)
    metadata = _metadata()
    encrypted = EntryEncryptor(["orders"], reader, 0).encrypt(metadata, b"x")
    assert EntryDecryptor(reader).decrypt(metadata, encrypted) == b"x"
    with pytest.raises(CryptoError, match=r"public key 'orders' cannot be read.*gone\.pem"):
        EntryEncryptor(["orders"], CryptoKeyReader(tmp_path / "gone.pem"), 0)


def test_any_one_of_several_keys_opens_it() -> None:
    keys = {"a": PUBLIC, "b": OTHER_PUBLIC}
    encryptor = EntryEncryptor(["a", "b"], CryptoKeyReader(lambda name, _metadata: keys[name]), 0)
    metadata = _metadata()
    encrypted = encryptor.encrypt(metadata, b"x")

    def private_key(name: str, metadata: Mapping[str, str]) -> bytes:
        if name == "a":
            raise CryptoError("no key a here")
        return OTHER_PRIVATE

    assert EntryDecryptor(CryptoKeyReader(None, private_key)).decrypt(metadata, encrypted) == b"x"


def test_every_entry_has_a_nonce_of_its_own_and_a_data_key_serves_four_hours() -> None:
    encryptor = EntryEncryptor(["orders"], READER, 1_000)
    seen = []
    for publish_time in (1_000, 1_000, 1_000 + DATA_KEY_MS_MAX - 1, 1_000 + DATA_KEY_MS_MAX):
        metadata = _metadata(publish_time)
        encrypted = encryptor.encrypt(metadata, b"x")
        assert EntryDecryptor(READER).decrypt(metadata, encrypted) == b"x"
        seen.append((metadata.encryption_param, metadata.encryption_keys[0].value))
    assert len({nonce for nonce, _ in seen}) == 4
    assert seen[0][1] == seen[1][1] == seen[2][1] != seen[3][1]


def test_a_data_key_is_replaced_before_random_nonces_could_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encryption, "DATA_KEY_ENTRIES_MAX", 2)
    encryptor = EntryEncryptor(["orders"], READER, 1_000)
    wrapped = []
    for _ in range(3):
        metadata = _metadata()
        encryptor.encrypt(metadata, b"x")
        wrapped.append(metadata.encryption_keys[0].value)
    assert wrapped[0] == wrapped[1] != wrapped[2]


def test_a_data_key_is_unwrapped_once() -> None:
    asked = []

    def private_key(name: str, metadata: Mapping[str, str]) -> bytes:
        asked.append(name)
        return PRIVATE

    encryptor, decryptor = EntryEncryptor(["k"], READER, 0), EntryDecryptor(CryptoKeyReader(None, private_key))
    for _ in range(3):
        metadata = _metadata()
        assert decryptor.decrypt(metadata, encryptor.encrypt(metadata, b"x")) == b"x"
    assert asked == ["k"]


@pytest.mark.parametrize(
    ("reader", "named"),
    [
        (CryptoKeyReader(), "no private key for 'orders'"),
        (CryptoKeyReader(None, lambda _n, _m: OTHER_PRIVATE), "does not decrypt the data key"),
        (CryptoKeyReader(None, lambda _n, _m: b"no pem"), "give one in PEM, without a password"),
        (CryptoKeyReader(None, lambda _n, _m: "text"), "must be PEM bytes"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_key_that_does_not_open_it_is_named(reader: CryptoKeyReader, named: str) -> None:
    metadata = _metadata()
    encrypted = EntryEncryptor(["orders"], READER, 0).encrypt(metadata, b"x")
    with pytest.raises(DecryptionFailed, match=named):
        EntryDecryptor(reader).decrypt(metadata, encrypted)


@pytest.mark.parametrize(
    ("pem", "named"),
    [(b"no pem", "not a public key in PEM"), (_pem_pair(ec.generate_private_key(ec.SECP256R1()))[0], "not an RSA key")],
)
def test_a_public_key_that_cannot_wrap_is_named_when_the_producer_is_made(pem: bytes, named: str) -> None:
    with pytest.raises(CryptoError, match=named):
        EntryEncryptor(["orders"], CryptoKeyReader(lambda _name, _metadata: pem), 0)


def test_a_changed_payload_is_never_shown() -> None:
    metadata = _metadata()
    encrypted = bytearray(EntryEncryptor(["orders"], READER, 0).encrypt(metadata, b"secret"))
    encrypted[0] ^= 1
    with pytest.raises(DecryptionFailed, match="does not fit"):
        EntryDecryptor(READER).decrypt(metadata, bytes(encrypted))
    metadata.encryption_param = b"short"
    with pytest.raises(DecryptionFailed):
        EntryDecryptor(READER).decrypt(metadata, bytes(encrypted))


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_an_entry_is_compressed_then_encrypted_and_opens_to_its_message(compression: CompressionType) -> None:
    framer = EntryFramer("p", compression, EntryEncryptor(["orders"], READER, 0))
    sealed = single_entry(OutgoingMessage(b"ab" * 500), 0, framer, 1, None)
    assert isinstance(sealed.entry, bytes)
    assert (len(sealed.entry) < 900) == (compression is CompressionType.LZ4)
    (message,) = _messages(sealed.entry, Opening(decryptor=EntryDecryptor(READER)))
    assert message.data() == b"ab" * 500
    assert not message.is_encrypted()


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4])
def test_without_a_key_an_entry_fails_by_its_position_or_is_shown_encrypted_as_asked(
    compression: CompressionType,
) -> None:
    framer = EntryFramer("p", compression, EntryEncryptor(["orders"], READER, 0))
    sealed = single_entry(OutgoingMessage(b"secret" * 20), 0, framer, 1, None)
    assert isinstance(sealed.entry, bytes)
    for opening in (
        Opening(),
        Opening(decryptor=EntryDecryptor(CryptoKeyReader(None, lambda _n, _m: OTHER_PRIVATE))),
    ):
        with pytest.raises(DecryptionFailed, match="entry 4:7 of persistent"):
            _messages(sealed.entry, opening)
    (message,) = _messages(sealed.entry, Opening(crypto_failure_action=ConsumerCryptoFailureAction.CONSUME))
    assert message.is_encrypted()
    assert message.data() == bytes(decode_entry(sealed.entry)[1])


def test_each_chunk_is_encrypted_alone() -> None:
    framer = EntryFramer("p", CompressionType.NONE, EntryEncryptor(["orders"], READER, 0))
    sealed = chunked_entries(OutgoingMessage(b"x" * 3_000), 0, framer, 1, None, uuid="u", message_bytes_max=1_000)
    decryptor = EntryDecryptor(READER)
    clear, nonces = b"", set()
    for entry in sealed:
        assert isinstance(entry.entry, bytes)
        metadata, payload = decode_entry(entry.entry)
        assert len(metadata.encryption_keys) == 1
        nonces.add(metadata.encryption_param)
        clear += decryptor.decrypt(metadata, payload)
    assert clear == b"x" * 3_000
    assert len(nonces) == len(sealed)


def test_a_key_that_is_gone_when_the_data_key_is_replaced_fails_the_entry_and_not_the_producer() -> None:
    pems = iter([PUBLIC, b"no pem"])
    reader = CryptoKeyReader(lambda _name, _metadata: next(pems))
    framer = EntryFramer("p", CompressionType.NONE, EntryEncryptor(["k"], reader, 0))
    assert isinstance(single_entry(OutgoingMessage(b"x"), 0, framer, 1, None).entry, bytes)
    assert isinstance(single_entry(OutgoingMessage(b"x"), 0, framer, DATA_KEY_MS_MAX, None).entry, CryptoError)


def test_an_encrypted_batch_that_cannot_be_read_is_one_message_of_its_entry() -> None:
    metadata = _metadata()
    metadata.num_messages_in_batch = 3
    encrypted = EntryEncryptor(["orders"], READER, 0).encrypt(metadata, b"a batch")
    entry = encode_entry(metadata, encrypted)
    (message,) = _messages(entry, Opening(crypto_failure_action=ConsumerCryptoFailureAction.CONSUME))
    assert message.data() == encrypted
    assert message.message_id().batch_index() == -1
