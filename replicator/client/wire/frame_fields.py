"""The parts of frames: JSON fields, positions, and entries behind a header. Sans-IO.

Every value that comes in is read here with its type and its limits (invariant 11), or is an :class:`InvalidFrame` that
says which field is wrong. :mod:`replicator.client.wire.frame_codec` puts whole frames together from these.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from replicator.client.argument_checks import PROPERTIES_MAX
from replicator.client.wire.frames import (
    HEADER_BYTES_MAX,
    PROPERTIES_CHARACTERS_MAX,
    VALUES_PER_FRAME_MAX,
    InvalidFrame,
)
from snapshots.position import Position

_LENGTH = struct.Struct(">I")
U63_MAX: Final = 2**63 - 1
U64_MAX: Final = 2**64 - 1

Choice = TypeVar("Choice", bound=Enum)


class Fields:
    """The fields of a JSON object, each read with its type and limits."""

    __slots__ = ("_fields", "type")

    def __init__(self, fields: dict[str, Any], type_name: str) -> None:
        self._fields = fields
        self.type = type_name

    @classmethod
    def parse(cls, text: str | bytes) -> Fields:
        """The object of a frame, with its ``type``."""
        opened = text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
        if opened > VALUES_PER_FRAME_MAX:
            raise InvalidFrame(f"the frame has more than {VALUES_PER_FRAME_MAX} arrays and objects")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidFrame("the frame is not JSON") from None
        if not isinstance(fields, dict):
            raise InvalidFrame("the frame is not a JSON object")
        return cls(fields, cls(fields, "").text("type", 40))

    def object(self, name: str) -> Fields:
        """An object inside this one."""
        value = self._fields.get(name)
        if not isinstance(value, dict):
            raise InvalidFrame(f"{name} is {value!r:.80}; expected an object")
        return Fields(value, self.type)

    def missing(self, name: str) -> bool:
        return self._fields.get(name) is None

    def text(self, name: str, length_max: int = 1_000, *, length_min: int = 0) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or not length_min <= len(value) <= length_max or not _is_unicode(value):
            raise InvalidFrame(f"{name} is {value!r:.80}; expected text of {length_min} to {length_max} characters")
        return value

    def choice(self, name: str, kind: type[Choice]) -> Choice:
        """A member of ``kind``, by its value."""
        value = self._fields.get(name)
        for member in kind:
            if member.value == value:
                return member
        raise InvalidFrame(f"{name} is {value!r:.80}; expected one of {', '.join(str(m.value) for m in kind)}")

    def number(self, name: str, low: int = 0, high: int = U63_MAX) -> int:
        return read_number(self._fields.get(name), name, low, high)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise InvalidFrame(f"{name} is {value!r:.80}; expected true or false")
        return value

    def array(self, name: str, length_max: int) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list) or len(value) > length_max:
            raise InvalidFrame(f"{name} must be an array of at most {length_max}")
        return value

    def position(self, name: str) -> Position:
        return read_position(self._fields.get(name), name)

    def strings(self, name: str) -> dict[str, str]:
        """An object of texts: properties."""
        value = self._fields.get(name)
        if not isinstance(value, dict) or len(value) > PROPERTIES_MAX:
            raise InvalidFrame(f"{name} must be an object of at most {PROPERTIES_MAX} strings")
        if not all(isinstance(item, str) and _is_unicode(item) and _is_unicode(key) for key, item in value.items()):
            raise InvalidFrame(f"{name} must be an object of strings")
        if sum(len(key) + len(item) for key, item in value.items()) > PROPERTIES_CHARACTERS_MAX:
            raise InvalidFrame(f"{name} must have at most {PROPERTIES_CHARACTERS_MAX} characters together")
        return value


def read_number(value: object, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise InvalidFrame(f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
    return value


def read_position(value: object, name: str = "position") -> Position:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidFrame(f"{name}: {value!r:.80} is not a position [ledger, entry]")
    return Position(read_number(value[0], "ledger", 0, U64_MAX), read_number(value[1], "entry", -1, U64_MAX))


def text_frame(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))


def data_frame(header: dict[str, Any], entries: Sequence[bytes]) -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(encoded)), encoded, *entries])


def split_data_frame(frame: bytes, expected: str) -> tuple[Fields, memoryview]:
    """The header of a data frame of type ``expected``, and its entries."""
    if len(frame) < _LENGTH.size:
        raise InvalidFrame(f"binary frame of {len(frame)} bytes is shorter than its header")
    (length,) = _LENGTH.unpack_from(frame)
    end = _LENGTH.size + length
    if length > HEADER_BYTES_MAX or end > len(frame):
        raise InvalidFrame(f"binary frame of {len(frame)} bytes says that its header has {length}")
    fields = Fields.parse(frame[_LENGTH.size : end])
    if fields.type != expected:
        raise InvalidFrame(f"binary frame of type {fields.type!r}; expected {expected!r}")
    return fields, memoryview(frame)[end:]


def cut(entries: memoryview, sizes: list[Any], size_min: int) -> Iterator[bytes]:
    """The entries of a data frame, which must be as long as ``sizes`` say, together and each."""
    at = 0
    for size in sizes:
        read_number(size, "size", size_min, len(entries) - at)
        yield bytes(entries[at : at + size])
        at += size
    if at != len(entries):
        raise InvalidFrame(f"the frame has {len(entries) - at} bytes after its last entry")


def _is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold it: JSON may spell half of a surrogate pair, which nothing can store."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
