"""Entries: the frames that producers send, logs store unchanged, and consumers get.

An entry is the tail of a Pulsar send frame, big-endian::

    magic 0x0e01 u16 | crc32c u32 | metadata size u32 | MessageMetadata | payload

The checksum covers everything from the metadata size to the end, so it is valid from the producer to the consumer. The
payload of a batch is a run of ``size u32 | SingleMessageMetadata | payload``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.checksums import crc32c
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""Default limit of the size of messages that clients may publish, as upstream. A topology can set another limit."""
METADATA_ROOM_BYTES: Final = 64 * 1024
"""Limit of metadata beside a payload of the largest size. Metadata alone may fill the whole entry, as at brokers. Only
publishing checks this limit: stored entries are copied and restored whatever their metadata."""
ENTRY_BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of the size of any entry in links and logs, whatever the topology sets. So a cluster with a smaller setting
still takes the messages that another cluster accepted."""
MESSAGE_BYTES_LIMIT: Final = ENTRY_BYTES_MAX - METADATA_ROOM_BYTES
"""The largest message that a topology may allow."""
BATCH_MESSAGES_MAX: Final = 100_000

_MAGIC: Final = 0x0E01
_FRAME = struct.Struct(">HII")
_MAGIC_AND_CHECKSUM = struct.Struct(">HI")
_SIZE = struct.Struct(">I")


_PLAIN_BYTES_MAX: Final = 4096
_PRODUCER: Final = 0x0A
_PLAIN: Final = re.compile(
    rb"\x10[\x80-\xff]{0,8}[\x00-\x7f]"  # sequence id
    rb"\x18[\x80-\xff]{0,8}[\x00-\x7f]"  # publish time
    rb"(?:\x48[\x80-\xff]{0,4}[\x00-\x7f])?"  # uncompressed size
)
"""Metadata of a plain message, after the producer's name."""


class BatchedMessage(NamedTuple):
    """One message of a batch: its own metadata and payload."""

    metadata: SingleMessageMetadata
    payload: memoryview


def encode_entry(
    metadata: MessageMetadata, payload: bytes | bytearray | memoryview, *, bytes_max: int = ENTRY_BYTES_MAX
) -> bytes:
    """Return a framed entry. Raise :class:`MessageTooLarge` if it has more than ``bytes_max``."""
    return _framed(metadata.SerializeToString(), payload, bytes_max)


def producer_field(name: str) -> bytes:
    """Return the producer's name encoded as in the metadata of its entries, for :func:`encode_plain_entry`."""
    encoded = name.encode()
    return b"\x0a%b%b\x10" % (varint(len(encoded)), encoded)


def encode_plain_entry(producer: bytes, sequence_id: int, publish_time_ms: int, payload: bytes) -> bytes:
    """Return the entry of a single message without further metadata. ``producer`` is a :func:`producer_field`.
    :func:`encode_entry` uses protobuf, which takes several times as long for each message."""
    return _framed(b"%b%b\x18%b" % (producer, varint(sequence_id), varint(publish_time_ms)), payload, ENTRY_BYTES_MAX)


def _framed(encoded: bytes, payload: bytes | bytearray | memoryview, bytes_max: int) -> bytes:
    size = _FRAME.size + len(encoded) + len(payload)
    if size > bytes_max:
        raise MessageTooLarge(
            f"entry of {size} bytes is over the limit of {bytes_max}: send it in chunks, or smaller batches"
        )
    head = _SIZE.pack(len(encoded)) + encoded
    checksum = crc32c(payload, crc32c(head))
    return b"".join([_MAGIC_AND_CHECKSUM.pack(_MAGIC, checksum), head, payload])


def decode_entry(entry: bytes | memoryview, *, check: bool = True) -> tuple[MessageMetadata, memoryview]:
    """Return the metadata and payload of an entry. Raise :class:`EntryCorrupt` or :class:`MessageTooLarge`.

    ``check=False`` does not verify the checksum, for entries that were verified when they arrived.
    """
    if len(entry) > ENTRY_BYTES_MAX:
        raise MessageTooLarge(
            f"entry of {len(entry)} bytes is over the limit of {ENTRY_BYTES_MAX}: send it in chunks, or smaller batches"
        )
    if len(entry) < _FRAME.size:
        raise EntryCorrupt(
            f"entry of {len(entry)} bytes is shorter than its frame: its client is wrong, or it was damaged"
        )
    view = memoryview(entry)
    magic, checksum, size = _FRAME.unpack_from(view)
    if magic != _MAGIC:
        raise EntryCorrupt(
            f"entry starts with {magic:#06x}, expected {_MAGIC:#06x}: its client is wrong, or it was damaged"
        )
    if _FRAME.size + size > len(view):
        raise EntryCorrupt(
            f"entry says {size} bytes of metadata and has {len(view) - _FRAME.size} in all: its client is wrong, or "
            "it was damaged"
        )
    if check and crc32c(view[6:]) != checksum:
        raise EntryCorrupt("entry's checksum is wrong: it was damaged after its client wrote it")
    try:
        metadata = MessageMetadata.FromString(bytes(view[_FRAME.size : _FRAME.size + size]))
    except DecodeError:
        raise EntryCorrupt(
            "entry's metadata is not a MessageMetadata: its client is wrong, or it was damaged"
        ) from None
    if not metadata.IsInitialized():
        raise EntryCorrupt("entry's metadata lacks producer name, sequence id or publish time: its client is wrong")
    if not 0 < metadata.num_messages_in_batch <= BATCH_MESSAGES_MAX:
        raise EntryCorrupt(
            f"entry says it has {metadata.num_messages_in_batch} messages, and one has 1 to {BATCH_MESSAGES_MAX}: its "
            "client is wrong"
        )
    return metadata, view[_FRAME.size + size :]


def is_plain(entry: bytes | memoryview) -> bool:
    """Return whether a small entry is sound and holds one message whose metadata has nothing that a check must look at.

    That is metadata of a producer's name, a sequence id, a publish time, and perhaps the uncompressed size, in this
    order, as clients write it. :func:`decode_entry` decides about all other entries. Protobuf takes several times as
    long, for each message.
    """
    size_bytes = len(entry)
    if not _FRAME.size + 2 <= size_bytes <= _PLAIN_BYTES_MAX:
        return False
    whole = bytes(entry)
    magic, checksum, size = _FRAME.unpack_from(whole)
    end = _FRAME.size + size
    name_bytes = whole[_FRAME.size + 1]
    return (
        magic == _MAGIC
        and end <= size_bytes
        and whole[_FRAME.size] == _PRODUCER
        and name_bytes < 0x80
        and _PLAIN.fullmatch(whole, _FRAME.size + 2 + name_bytes, end) is not None
        and crc32c(whole[6:]) == checksum
    )


def may_be_delayed(entry: memoryview) -> bool:
    """Return False only if the metadata has no ``deliver_at_time``: then it need not be parsed.

    Look for both ways in which a field with that number can begin. The second has a tag that is longer than needed. An
    entry that is cut short raises no error here.
    """
    size = int.from_bytes(entry[_FRAME.size - _SIZE.size : _FRAME.size], "big")
    metadata = bytes(entry[_FRAME.size : _FRAME.size + size])
    return b"\x98\x01" in metadata or b"\x98\x81" in metadata


def split_batch(metadata: MessageMetadata, payload: memoryview) -> Iterator[BatchedMessage]:
    """Yield the messages of an uncompressed batch, in order. Raise :class:`EntryCorrupt` if the batch is cut short."""
    at = 0
    for index in range(metadata.num_messages_in_batch):
        if at + 4 > len(payload):
            raise EntryCorrupt(
                f"batch ends before message {index} of {metadata.num_messages_in_batch}: its client is wrong, or it "
                "was damaged"
            )
        (size,) = _SIZE.unpack_from(payload, at)
        at += 4
        if at + size > len(payload):
            raise EntryCorrupt(
                f"batch ends inside message {index} of {metadata.num_messages_in_batch}: its client is wrong, or it "
                "was damaged"
            )
        single = SingleMessageMetadata()
        try:
            single.ParseFromString(bytes(payload[at : at + size]))
        except DecodeError:
            raise EntryCorrupt(
                f"metadata of message {index} of the batch cannot be read: its client is wrong, or it was damaged"
            ) from None
        at += size
        if single.payload_size < 0 or at + single.payload_size > len(payload):
            raise EntryCorrupt(
                f"batch ends inside message {index} of {metadata.num_messages_in_batch}: its client is wrong, or it "
                "was damaged"
            )
        yield BatchedMessage(single, payload[at : at + single.payload_size])
        at += single.payload_size


def append_to_batch(batch: bytearray, metadata: SingleMessageMetadata, payload: bytes) -> None:
    """Add one message to the payload of a batch in the making. Set the ``payload_size`` of its metadata."""
    metadata.payload_size = len(payload)
    encoded = metadata.SerializeToString()
    batch += _SIZE.pack(len(encoded))
    batch += encoded
    batch += payload


def append_plain_to_batch(batch: bytearray, sequence_id: int, payload: bytes) -> None:
    """Add a message whose metadata has only a sequence id to the payload of a batch in the making."""
    encoded = b"\x18%b\x40%b" % (varint(len(payload)), varint(sequence_id))
    batch += _SIZE.pack(len(encoded))
    batch += encoded
    batch += payload


def varint(value: int) -> bytes:
    """Return a non-negative number encoded as a protobuf varint."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x200000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
